"""Batch and learning-rate arithmetic; nothing here needs TensorFlow until a schedule is made.

plan = plan_batch(per_replica=64, replicas=4, base_learning_rate=1e-3, rule="linear")
plan.global_batch          # 256: what fit, and a tf.data batch, must be given
plan.learning_rate         # 0.004
plan.warmup(steps=500)     # a Keras schedule from 0.001 to 0.004
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from distlab.errors import InvalidArgument, did_you_mean

Source = Literal["memory", "files", "distribute"]

_RULES = ("linear", "square_root", "none")


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How a global batch falls on the replicas, and the learning rate that goes with it.

    Attributes:
        global_batch: Examples in one step, over all replicas.
        shares: Examples of a full batch on each replica, in replica order: equal, or as
            TensorFlow cuts a batch that comes from memory. `shares_of` tells the other cases.
        reference_batch: The batch for which `base_learning_rate` was found.
        base_learning_rate: The learning rate that was found on one device.
        learning_rate: The learning rate for `global_batch` by `rule`.
        rule: "linear", "square_root" or "none".
    """

    global_batch: int
    shares: tuple[int, ...]
    reference_batch: int
    base_learning_rate: float
    learning_rate: float
    rule: str

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return len(self.shares)

    @property
    def per_replica(self) -> int:
        """Examples of a full batch on the first replica, which never has fewer than others."""
        return self.shares[0]

    def shares_of(self, examples: int, *, source: Source = "memory") -> tuple[int, ...]:
        """Returns each replica's share of `examples`, as in the partial last batch of an epoch.

        Args:
            examples: Examples in the batch.
            source: What cuts the batch. "memory" and "files" are TensorFlow, reading a pipeline
                that holds its examples or one that reads files; "distribute" is the `fit` of a
                model from `dl.distribute` with replicas on CPUs in one process.

        Returns:
            One number a replica, in replica order; some may be 0.

        Raises:
            InvalidArgument: There's no such source.

        Example:
            >>> plan = dl.plan_batch(replicas=4, global_batch=32)
            >>> plan.shares_of(10), plan.shares_of(10, source="files")
            ((3, 3, 3, 1), (8, 2, 0, 0))
        """
        return split_batch(examples, self.replicas, source=source, full_batch=self.global_batch)

    def steps(self, examples: int) -> int:
        """Returns the steps of one pass over `examples` examples, a partial last one included.

        Args:
            examples: Examples in the data set.

        Returns:
            The steps of an epoch.

        Example:
            >>> dl.plan_batch(replicas=4, global_batch=64).steps(1437)
            23
        """
        return math.ceil(examples / self.global_batch)

    def warmup(self, *, steps: int) -> Any:
        """Returns a Keras schedule that climbs to `learning_rate`, so that training starts gently.

        It rises linearly from the one-device rate to the scaled one (Goyal et al. 2017,
        section 2.2) and then stays there. The schedule is Keras's own `CosineDecay`, so a saved
        model loads without distlab.

        Args:
            steps: The steps of the climb; Goyal et al. take those of five epochs.

        Returns:
            The schedule, which goes into an optimizer in place of a rate.

        Raises:
            InvalidArgument: `steps` isn't a whole number of at least 1.

        Example:
            >>> plan = dl.plan_batch(replicas=4, per_replica=64, base_learning_rate=0.5)
            >>> rate = plan.warmup(steps=100)
            >>> dl.show("at the start, halfway, at the end", [rate(step) for step in (0, 50, 100)])
            at the start, halfway, at the end: [0.5, 1.25, 2]
        """
        _whole_number("warmup", "steps", steps)
        import keras

        return keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=self.base_learning_rate,
            warmup_target=self.learning_rate,
            warmup_steps=steps,
            decay_steps=1,
            alpha=1.0,
        )


def plan_batch(
    *,
    replicas: int,
    per_replica: int | None = None,
    global_batch: int | None = None,
    base_learning_rate: float = 1e-3,
    reference_batch: int | None = None,
    rule: Literal["linear", "square_root", "none"] = "linear",
    uneven: bool = False,
) -> BatchPlan:
    """Splits a global batch over the replicas, and scales the learning rate to it.

    Give `per_replica` and the global batch grows with the replicas, each of which works as much as
    one device did (weak scaling). Give `global_batch` and the step stays what it was, while more
    replicas share it (strong scaling).

    Args:
        replicas: Replicas in sync, `strategy.num_replicas_in_sync`.
        per_replica: Examples in one step on each replica.
        global_batch: Examples in one step over all replicas.
        base_learning_rate: The learning rate that worked with `reference_batch`.
        reference_batch: Examples in a step of that experiment; None means one replica's batch.
        rule: With k = global_batch / reference_batch, "linear" multiplies the rate by k, for
            SGD (Goyal et al. 2017, "Accurate, Large Minibatch SGD"); "square_root" by
            sqrt(k), for Adam and RMSProp (Malladi et al. 2022, "On the SDEs and Scaling Rules
            for Adaptive Gradient Algorithms", who also move the betas); "none" leaves it.
        uneven: Allow a global batch that the replicas can't share equally.

    Returns:
        A `BatchPlan`. Its `global_batch` is the size that `fit` and a data set's `batch` expect,
        its `learning_rate` belongs in the optimizer, and its `warmup` climbs to that rate.

    Raises:
        InvalidArgument: A number is below 1, both or neither batch is given, the rule is
            unknown, or the batch isn't divisible and `uneven` isn't set.

    Example:
        >>> plan = dl.plan_batch(replicas=4, per_replica=64, base_learning_rate=0.5)
        >>> plan.global_batch, plan.learning_rate
        (256, 2.0)
        >>> plan.steps(1437)  # five full batches, and a partial one
        6
    """
    _whole_number("plan_batch", "replicas", replicas)
    if (per_replica is None) == (global_batch is None):
        raise InvalidArgument(
            asked=f"plan_batch(per_replica={per_replica}, global_batch={global_batch})",
            found="both batches" if per_replica is not None else "neither batch",
            do="pass one of them: per_replica to let the global batch grow with the replicas, "
            "global_batch to keep it",
        )
    if rule not in _RULES:
        raise InvalidArgument(
            asked=f"plan_batch(rule={rule!r})",
            found=f"rule={rule!r}, which is no rule",
            do=did_you_mean(str(rule), _RULES),
        )
    if not base_learning_rate > 0:
        raise InvalidArgument(
            asked=f"plan_batch(base_learning_rate={base_learning_rate!r})",
            found=f"base_learning_rate={base_learning_rate!r}",
            do="pass the rate, above 0, that worked on one device: base_learning_rate=1e-3",
        )
    if per_replica is not None:
        _whole_number("plan_batch", "per_replica", per_replica)
        total = per_replica * replicas
    else:
        assert global_batch is not None
        total = _whole_number("plan_batch", "global_batch", global_batch)
        if total % replicas and not uneven:
            raise InvalidArgument(
                asked=f"plan_batch(global_batch={total}, replicas={replicas})",
                found=f"{total} examples cannot be shared equally by {replicas} replicas",
                do=f"take {_near_multiples(total, replicas)}, or uneven=True with a loss that "
                "is weighted by examples, as distlab.distribute does",
                pitfall="Empty shares: the last step is too short",
            )
    shares = split_batch(total, replicas)
    reference = shares[0] if reference_batch is None else reference_batch
    _whole_number("plan_batch", "reference_batch", reference)
    ratio = total / reference
    factor = {"linear": ratio, "square_root": math.sqrt(ratio), "none": 1.0}[rule]
    return BatchPlan(
        global_batch=total,
        shares=shares,
        reference_batch=reference,
        base_learning_rate=base_learning_rate,
        learning_rate=base_learning_rate * factor,
        rule=rule,
    )


def split_batch(
    examples: int, replicas: int, *, source: Source = "memory", full_batch: int | None = None
) -> tuple[int, ...]:
    """Returns how many examples of one batch each replica gets, in replica order.

    What cuts the batch decides, and TensorFlow has two ways:

    | source | 10 examples on 4 replicas, after batches of 32 | rule |
    |---|---|---|
    | "memory" | 3 3 3 1 | pieces of examples / replicas, rounded up |
    | "files" | 8 2 0 0 | the pieces of a full batch, in order, while they last |
    | "distribute" | 3 3 2 2 | as equal as possible |

    "memory" and "files" are `strategy.experimental_distribute_dataset`, and so Keras's `fit`. It
    decides by the auto-shard policy, which is AUTO if you set none. AUTO means FILE for a pipeline
    that contains a data set that reads files, even inside `interleave`, and then TensorFlow fixes
    the pieces beforehand, from the size that `batch` was given. AUTO means DATA for every other
    pipeline, and TensorFlow then cuts each batch as it comes. OFF cuts as FILE does. A `map` behind
    `batch` can hide that size; TensorFlow then cuts each batch as it comes, from files too.
    "distribute" is `fit` of a model from `dl.distribute` with replicas on CPUs in one process.

    A loss is right under all three if it counts its examples.
    """
    if source == "memory":
        most = math.ceil(examples / replicas)
        pieces = [most] * replicas
    elif source in ("files", "distribute"):
        whole = full_batch if source == "files" and full_batch else examples
        size, more = divmod(whole, replicas)
        pieces = [size + (replica < more) for replica in range(replicas)]
    else:
        raise InvalidArgument(
            asked=f"split_batch(source={source!r})",
            found=f"source={source!r}, which is no source",
            do=did_you_mean(str(source), get_args(Source)),
        )
    before = [0, *itertools.accumulate(pieces)]
    return tuple(
        max(0, min(piece, examples - start)) for piece, start in zip(pieces, before, strict=False)
    )


def _whole_number(call: str, name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(
            asked=f"{call}({name}={value!r})",
            found=f"{name}={value!r}",
            do="pass a whole number of at least 1",
        )
    return value


def _near_multiples(total: int, replicas: int) -> str:
    below, above = total // replicas * replicas, math.ceil(total / replicas) * replicas
    return f"{below} or {above}" if below else str(above)
