"""A look at the first batch, before the step is traced: what counts how, and what cannot hold.

trial = Trial(model, "train_step")
trial.run(batch)                       # fills trial.found, and may warn
"""

from __future__ import annotations

import warnings
from typing import Any

import keras

from distlab.training.keras_private import losses, models, own_metrics, step_methods
from distlab.training.keras_private.batch import Way
from distlab.training.keras_private.losses import batch_losses_gathered
from distlab.training.trial.findings import Findings, find
from distlab.training.trial.trial import examples_in, in_trial, make_variables

_TOLD = "_distlab_told_of"  # a model's attribute: what it was said of
_GATHER_BY_HAND = "distlab.all_gather(tensor) gives every replica the rows of all"


# Operations of a functional model that are no layers and cannot look at other examples.
_ENTRY_BY_ENTRY = {"Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Negative", "GetItem"}


class Trial:
    """The trial of one of a model's steps.

    Args:
        model: A prepared model.
        method: "train_step" or "test_step".

    Attributes:
        found: What the trial has found; empty before, and where none was possible.
        complaint: What looks at the batch as a whole, and what to do, if something does.
    """

    def __init__(self, model: keras.Model, method: str) -> None:
        self.found = Findings()
        self.complaint: tuple[str, str] | None = None
        self._model = model
        self._method = method
        self._own = self._makes_variables = step_methods.is_own(model, method)

    def is_needed(self) -> bool:
        """Whether the model has something that only a trial can tell, and replicas to tell of.

        Losses and layers that Keras does not bring may compute anything; the gradient of an
        embedding may have the same rows whatever the batch.
        """
        model = self._model
        if model.distribute_strategy.num_replicas_in_sync == 1:
            return False
        return (
            losses.of_own_making(model)
            or own_metrics.has_any(model)
            or any(_may_look_at_batch(layer) for layer in models.layers(model))
        )

    def run(self, batch: Any) -> bool:
        """Tries the step.

        Args:
            batch: The first global batch; None where there is none in one piece.

        Returns:
            Whether that was the trial. A batch of one example shows nothing: try a later one.
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
                    self.found.fill(find(model, self._method, batch, replicas=replicas))
        except (RuntimeError, AttributeError) as error:  # it may ask for its replica context
            self._warn_untried(f"{type(error).__name__}: {error}")
        self._makes_variables = False
        if not has_shares:
            return replicas == 1
        found = self.found
        if found.draws:
            self._warn_untried(
                "it draws random numbers by functions of TensorFlow that a trial cannot repeat"
            )
        for path, (far, agreed) in found.changes.items():
            self._warn_written(path, far, agreed)
        uneven = [name for name, way in found.logs.items() if way is Way.WHOLE]
        if uneven:
            warnings.warn(
                f"{model.name}: its {self._method} returns {', '.join(uneven)}, which the shares "
                "of a batch do not make by a mean or a sum (a maximum, say): what is logged is the "
                "mean of what each replica returns.",
                stacklevel=2,
            )
        if not self._own:
            losses.take_ways(model, found.losses)
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
            return True
        if models.has_own(model, self._method, "compute_loss"):
            what, do = f"the loss in its own {self._method}", _GATHER_BY_HAND
        elif not batch_losses_gathered(model) and (names := losses.names_of_own_making(model)):
            what = " or ".join(f"the loss {name!r}" for name in names)
            do = 'distribute(build, strategy, batch_losses="gather") computes it from all examples'
        else:
            what, do = "a layer, or a loss that it adds,", _GATHER_BY_HAND
        self._warn(what, max(off), do)
        return True

    def _warn_untried(self, why: str) -> None:
        warnings.warn(
            f"{self._model.name}: its {self._method} could not be tried on the first batch "
            f"({why}), so each loss is taken for a mean over examples.",
            stacklevel=2,
        )

    def _warn_written(self, path: str, off: float, agreed: bool) -> None:
        then = "they take the mean of what they write" if agreed else "each keeps what it wrote"
        warnings.warn(
            f"{self._model.name}: a step writes {path}. Each replica does so from its own "
            f"examples, and {then}: on the first batch the change is {off:.1%} off one device's. "
            "Compute it from distlab.all_gather(tensor), which has the rows of all, or, where a "
            "mean over examples is meant, keep it in add_weight(trainable=False).",
            stacklevel=2,
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


def _may_look_at_batch(layer: keras.layers.Layer) -> bool:
    """Whether a layer, by itself, needs a trial; those inside it are asked for themselves."""
    if isinstance(layer, keras.Model):
        return _brings(type(layer).call) or any(
            not isinstance(one, keras.layers.Layer) and type(one).__name__ not in _ENTRY_BY_ENTRY
            for one in getattr(layer, "operations", ())
        )
    called = (layer.activity_regularizer, getattr(layer, "activation", None))
    return (
        isinstance(layer, keras.layers.Embedding | keras.layers.Lambda)
        or _brings(type(layer))
        or any(_brings(one) for one in called if one is not None)
    )


def _brings(thing: Any) -> bool:
    """Whether a class, a function or what is called like one is not Keras's."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module.partition(".")[0] != "keras"
