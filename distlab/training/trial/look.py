"""A look at the first batch, before the step is traced: what counts how, and what cannot hold.

trial = Trial(model, "train_step")
trial.run(batch)                       # fills trial.found, and may warn

A loss that is zero in the first batch, such as a penalty that a callback switches on later, shows
nothing there. It is taken for a mean, and the trial stays open: later batches are looked at.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras

from distlab.training.keras_private import losses, models, own_metrics, step_methods
from distlab.training.keras_private.batch import Way
from distlab.training.keras_private.example_axes import (
    has_axis_of_examples,
    keeps_examples_apart,
)
from distlab.training.keras_private.losses import batch_losses_gathered
from distlab.training.step_errors import in_short
from distlab.training.trial.findings import Findings, find
from distlab.training.trial.trial import examples_in, in_trial, make_variables

_TOLD = "_distlab_told_of"  # a model's attribute: what it was said of
_LOOKS_IN_A_ROW = 16
_GATHER_BY_HAND = "distlab.all_gather(tensor) gives every replica the rows of all"


# What an attribute of `Findings` says something of.
_KINDS = {
    "gradients": "the loss in its own step",
    "losses": "a compiled loss",
    "added": "a loss that a layer adds",
    "means": "a number that a metric is given",
    "logs": "a number that its step returns",
}


class Trial:
    """The trial of one of a model's steps.

    Args:
        model: A prepared model.
        method: "train_step" or "test_step".

    Attributes:
        found: What the trial has found; empty before, and where none was possible.
        version: How often `found` has changed: a step is traced again for each.
        complaint: What looks at the batch as a whole, and what to do, if something does.
    """

    def __init__(self, model: keras.Model, method: str) -> None:
        self.found = Findings()
        self.version = 0
        self.complaint: tuple[str, str] | None = None
        self._model = model
        self._method = method
        self._own = self._makes_variables = step_methods.is_own(model, method)
        self._told: set[str] = set()

    def is_needed(self) -> bool:
        """Whether the model has something that only a trial can tell, and replicas to tell of.

        Losses and layers that Keras does not bring may compute anything, and some that it brings
        go over examples; the gradient of an embedding may have the same rows whatever the batch.
        """
        model = self._model
        if model.distribute_strategy.num_replicas_in_sync == 1:
            return False
        return (
            losses.of_own_making(model)
            or own_metrics.has_any(model)
            or any(_may_look_at_batch(layer) for layer in models.layers(model))
        )

    def run(self, batch: Any, *, missed: int = 0) -> bool:
        """Tries the step.

        Args:
            batch: A global batch; None where there is none in one piece.
            missed: How many batches were trained on since the one that was looked at before.

        Returns:
            Whether all is known. A batch of one example shows nothing: try a later one.
        """
        model = self._model
        replicas: int = model.distribute_strategy.num_replicas_in_sync
        if batch is None:
            return True
        has_shares = replicas > 1 and examples_in(batch) > 1
        if not has_shares and not self._makes_variables:
            return replicas == 1
        try:
            with in_trial(model):
                if self._makes_variables:
                    make_variables(model, self._method, batch)
                if has_shares:
                    self._take(find(model, self._method, batch, replicas=replicas), missed)
        # It may ask for its replica context, or need a graph, as `tf.custom_gradient` of weights.
        except (RuntimeError, AttributeError, TypeError) as error:
            self._warn_untried(f"{type(error).__name__}: {in_short(error)}")
            self.found.open.clear()
        self._makes_variables = False
        if not has_shares:
            return replicas == 1
        if not self._own:
            losses.take_ways(model, self.found.losses)
        self._warn_of_found()
        return not self.found.open

    def _take(self, found: Findings, missed: int) -> None:
        """Takes what a batch has shown; of a later one, what was open before it."""
        if self.version == 0:
            self.found.fill(found)
            self.version = 1
            return
        changed = self.found.learn(found)
        self.version += bool(changed)  # only then: a new trace takes Python's values of now
        for kind, taken_for in changed:
            if kind == "gradients" and not self._own:
                continue  # each loss is known by itself
            if missed or taken_for is Way.SUM:  # what is zero in a batch counts right in any way
                self._warn_late(_KINDS[kind], missed)

    def _warn_of_found(self) -> None:
        model, found = self._model, self.found
        if found.draws:
            self._warn_untried(
                "it draws random numbers by functions of TensorFlow that a trial cannot repeat"
            )
        for path, (far, agreed) in found.changes.items():
            self._warn_written(path, far, agreed)
        uneven = [name for name, way in found.logs.items() if way is Way.WHOLE]
        if uneven:
            self._say(
                f"logs {uneven}",
                f"its {self._method} returns {', '.join(uneven)}, which the shares "
                "of a batch do not make by a mean or a sum (a maximum, say): what is logged is the "
                "mean of what each replica returns.",
            )
        by_method = "gradients" if self._method == "train_step" else "means"
        off = [
            off
            for kind in (by_method, "losses", "added")
            for way, off in zip(getattr(found, kind), found.off.get(kind, []), strict=True)
            if way is Way.WHOLE
        ]
        # The gradient of a sum of losses is the sum that the parts of each make.
        parts = [] if self._own else [*found.losses, *found.added]
        if not off or (Way.SUM in parts and Way.WHOLE not in parts):
            return
        if models.has_own(model, self._method, "compute_loss"):
            what, do = f"the loss in its own {self._method}", _GATHER_BY_HAND
        elif not batch_losses_gathered(model) and (names := losses.names_of_own_making(model)):
            what = " or ".join(f"the loss {name!r}" for name in names)
            do = 'distribute(build, strategy, batch_losses="gather") computes it from all examples'
        else:
            what, do = "a layer, or a loss that it adds,", _GATHER_BY_HAND
        self._warn(what, max(off), do)

    def _say(self, key: str, text: str) -> None:
        """Warns once, even if several batches are looked at."""
        if key not in self._told:
            self._told.add(key)
            warnings.warn(f"{self._model.name}: {text}", stacklevel=2)

    def _warn_late(self, what: str, missed: int) -> None:
        replicas = self._model.distribute_strategy.num_replicas_in_sync
        self._say(
            f"late {what}",
            f"the first batch did not show how {what} counts over the replicas, and this batch "
            f"does. From now on it is right. In earlier batches, of which {missed} came since the "
            f"last look, it may have counted up to {replicas} times too much or too little.",
        )

    def _warn_untried(self, why: str) -> None:
        self._say(
            "untried",
            f"its {self._method} could not be tried on the first batch "
            f"({why}), so each loss is taken for a mean over examples.",
        )

    def _warn_written(self, path: str, off: float, agreed: bool) -> None:
        then = "they take the mean of what they write" if agreed else "each keeps what it wrote"
        self._say(
            f"written {path}",
            f"a step writes {path}. Each replica does so from its own "
            f"examples, and {then}: on the first batch the change is {off:.1%} off one device's. "
            "Compute it from distlab.all_gather(tensor), which has the rows of all, or, where a "
            "mean over examples is meant, keep it in add_weight(trainable=False).",
        )

    def _warn(self, what: str, off: float, do: str) -> None:
        replicas = self._model.distribute_strategy.num_replicas_in_sync
        found = (
            f"{what} looks at the batch as a whole. Each of the {replicas} replicas computes it "
            f"from its own examples, so this is not one device's training: on the first batch it "
            f"differs by {off:.1%}"
        )
        self.complaint = found, do
        told = self._model.__dict__.setdefault(_TOLD, {})
        if told.get(what) is self._model.loss and what in told:  # by the trial of the other step
            return
        told[what] = self._model.loss  # a later compile may bring another of the same name
        warnings.warn(f"{self._model.name}: {found}. {do}.", stacklevel=2)


class Looks:
    """Which batches a trial looks at: the first, and later ones while something is open.

    A look costs a few steps. So of many executions fewer and fewer are looked at, and always the
    first of an epoch, where a callback may have switched a loss on.

    Args:
        trial: The trial; None where none is needed.
    """

    def __init__(self, trial: Trial | None) -> None:
        self._trial = trial
        self._executions = self._missed = 0
        self._iterator: Callable[[], Any] = lambda: None
        self.is_open = trial is not None

    @property
    def version(self) -> int:
        """A number for what is known."""
        return 0 if self._trial is None else self._trial.version

    def is_due(self, iterator: Any = None) -> bool:
        """Whether to look at the first batch of an execution that begins.

        Args:
            iterator: Where the batch comes from, one for each epoch; None for a single batch.
        """
        if not self.is_open:
            return False
        self._executions += 1
        number, is_new = self._executions, self._iterator() is not iterator
        self._iterator = (lambda: None) if iterator is None else weakref.ref(iterator)
        return is_new or number <= _LOOKS_IN_A_ROW or number & (number - 1) == 0

    def look(self, batch: Any) -> None:
        """Looks at a batch that is about to be trained on.

        Args:
            batch: It, in one piece.
        """
        assert self._trial is not None
        self.is_open = not self._trial.run(batch, missed=self._missed)
        self._missed = -1  # the batch itself

    def passed(self, batches: int) -> None:
        """Counts batches that were trained on.

        Args:
            batches: How many.
        """
        self._missed += batches


def _may_look_at_batch(layer: keras.layers.Layer) -> bool:
    """Whether a layer, by itself, needs a trial; those inside it are asked for themselves."""
    if isinstance(layer, keras.Model):
        return _brings(type(layer).call) or any(
            not isinstance(one, keras.layers.Layer) and not keeps_examples_apart(one)
            for one in getattr(layer, "operations", ())
        )
    called = (layer.activity_regularizer, getattr(layer, "activation", None))
    return (
        isinstance(layer, keras.layers.Embedding | keras.layers.Lambda)
        or _brings(type(layer))
        or has_axis_of_examples(layer)
        or any(_brings(one) for one in called if one is not None)
    )


def _brings(thing: Any) -> bool:
    """Whether a class, a function or what is called like one is not Keras's."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module.partition(".")[0] != "keras"
