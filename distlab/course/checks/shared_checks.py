"""Tools that the checks of several lessons share.

`Counter` tests whether a learner's loop splits the examples among the replicas. Weights do not show
it: if every replica has the whole batch and also divides by the number of replicas, the weights end
where those of one device do.

    counter = Counter(strategy)                          # in the strategy's scope
    model = keras.Sequential([keras.Input((4,)), counter.layer(), keras.layers.Dense(3)])
    ...
    counter.on_replicas()                                # [11, 11, 11, 9]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from distlab.course.checks.criteria import Choice, Gate, Holds, Requirement
from distlab.course.checks.mistakes import Observed
from distlab.course.checks.verdict import Criterion, Inputs, Plain

# The key of outputs under which checks pass on what `Counter.on_replicas` returns.
SEEN = "examples on replicas"


class Counter:
    """Counts the examples that go through a model, on each replica."""

    def __init__(self, strategy: Any) -> None:
        import tensorflow as tf

        self._strategy = strategy
        on_read = tf.VariableSynchronization.ON_READ
        none = tf.VariableAggregation.NONE
        self._examples_seen = tf.Variable(
            0, synchronization=on_read, aggregation=none, trainable=False
        )

    def layer(self) -> Any:
        """Returns a layer that passes on its input, for the beginning of a model."""
        import keras
        import tensorflow as tf

        strategy, examples_seen = self._strategy, self._examples_seen

        class PassedOn(keras.layers.Layer):  # type: ignore[misc]
            def call(self, x: Any) -> Any:
                # A model may be called outside the strategy as well: that is no step of training.
                if (
                    tf.distribute.get_strategy() is strategy
                    and not tf.distribute.in_cross_replica_context()
                ):
                    examples_seen.assign_add(tf.shape(x)[0])
                return x

            def compute_output_spec(self, x: Any) -> Any:
                return keras.KerasTensor(x.shape, self.compute_dtype)

        return PassedOn()

    def on_replicas(self) -> list[int]:
        """Returns how many examples each replica has received so far."""
        return [
            int(copy) for copy in self._strategy.experimental_local_results(self._examples_seen)
        ]


def is_shared(counts: list[int], examples: int) -> bool:
    """Whether no replica went without examples, and not every replica had all of them."""
    return all(count > 0 for count in counts) and sum(counts) < len(counts) * examples


def shares_work(examples_of: Callable[[Inputs], int], *, points: float) -> Holds:
    """Returns the criterion that the replicas share the examples."""
    return Holds(
        "the replicas share the work",
        lambda given, out: is_shared(out[SEEN], examples_of(given)),
        lambda given, out: (
            "every replica worked on all the examples, so all did the same"
            if all(out[SEEN])
            else "a replica has seen no example at all"
        ),
        points=points,
    )


def not_distributed(examples_of: Callable[[Inputs], int]) -> Observed:
    """Returns the mistake of a loop whose data set was not distributed."""
    return Observed(
        "not_distributed",
        lambda given, out: all(out[SEEN]) and not is_shared(out[SEEN], examples_of(given)),
    ).feedback(
        "Every replica worked on all the examples. The weights are right, but several replicas "
        "take as long as one. What does `run` do with a batch that is not cut into shares?"
    )


class PairsByCase:
    """The parts of a check in which each case is answered with a pair of words.

    Args:
        cases: By the name of each case the two right words, and a question that leads on after a
            wrong one, and does not say the answer.
        among: For the first and for the second word, under its name: all words to choose from.
    """

    def __init__(self, cases: Mapping[str, tuple[str, str, str]], **among: tuple[str, ...]) -> None:
        self.cases = cases
        (self.first, self.second), self.among = among, among

    @property
    def criteria(self) -> tuple[Requirement, ...]:
        """Half a point for each word, if not all cases have the same answer."""
        gate = Holds(
            "the answer depends on the case",
            lambda _, out: out["varies"] or out[next(iter(self.cases))] is None,
            "your function gives the same answer to every case",
        )
        return Gate(gate), *(word for case in self.cases for word in self._words(case))

    def _words(self, case: str) -> tuple[Choice, Choice]:
        def word(key: str, name: str) -> Choice:
            label, ask = f"case {case}: the {name}", self.cases[case][2]
            return _Word(key, label, among=self.among[name], ask=ask, points=0.5)

        return word(case, self.first), word(self._second(case), self.second)

    def _second(self, case: str) -> str:
        return f"{case}_{self.second}"

    def inputs(self, seed: int) -> Inputs:
        """Draws the order in which the cases are asked for."""
        return {"order": np.random.default_rng(seed).permutation(sorted(self.cases)).tolist()}

    def call(self, choose: Callable[[str], Any], inputs: Inputs) -> Plain:
        """Returns the learner's answer to each case."""
        return {case: choose(case) for case in inputs["order"]}

    def read(self, given: Inputs, outputs: Plain) -> Plain:
        """Takes each answer apart; an answer that is no pair is read as the first word alone."""
        answers = [outputs[case] for case in self.cases]
        answers = [
            answer.tolist() if isinstance(answer, np.ndarray) else answer for answer in answers
        ]
        words: dict[str, Plain] = {"varies": any(answer != answers[0] for answer in answers)}
        for case, answer in zip(self.cases, answers, strict=True):
            is_pair = isinstance(answer, list) and len(answer) == 2
            first, second = answer if is_pair else (answer, answer if answer is None else "")
            words |= {case: first, self._second(case): second}
        return words

    def reference(self, given: Inputs, **answers: Plain) -> Plain:
        """Returns the right words, or others for the keys that are given."""
        right: dict[str, Plain] = {"varies": True}
        for case, (first, second, _) in self.cases.items():
            right |= {case: first, self._second(case): second}
        return right | answers

    def any_is(self, word: str) -> Callable[[Inputs, Plain], bool]:
        """Returns the condition that some case was answered with this word."""
        keys = [key for case in self.cases for key in (case, self._second(case))]
        return lambda _, out: any(out[key] == word for key in keys)


class _Word(Choice):
    """One of the two words that are asked for in each case."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """As for every choice, but an answer that is no pair has no second word."""
        difference = super().compare(yours, expected)
        message = "two words were asked for, as a pair"
        return replace(difference, message=message, yours="") if yours == "" else difference


def softmax(logits: Any) -> Any:
    """Each row's probabilities."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)
