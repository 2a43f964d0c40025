"""Checks that grade an exercise: in the notebook now, over a folder of submissions later.

To add one, write `distlab/grading/lesson_NN_slug.py` (a package of that name, where it grows) with
a tuple `CHECKS`:

    import numpy as np
    from distlab.grading import Check, Mistake, Verdict, expect_close

    def inputs(seed):
        draw = np.random.default_rng(seed)
        return {"sums": draw.normal(size=4), "counts": draw.permutation([1, 2, 3, 4])}

    def call(combine, inputs):                # the only part that runs the learner's code
        return {"mean": combine(inputs["sums"], inputs["counts"])}

    def judge(inputs, outputs):               # plain values only, fresh from bytes
        mean = inputs["sums"].sum() / inputs["counts"].sum()
        return Verdict.of(
            expect_close("the mean", yours=outputs["mean"], expected=mean, atol=1e-6)
        )

    CHECKS = (
        Check(
            name="combine_means", function="combine", title="The mean over unequal shares",
            points=2, inputs=inputs, call=call, judge=judge,
            hint="Each example counts once, not each replica.",
            revisit="Unequal shares",
            mistakes=(
                Mistake(
                    "mean_of_means", "A replica with few examples must not weigh the most.",
                    yields=lambda i: {"mean": np.mean(i["sums"] / i["counts"])},
                ),
            ),
        ),
    )

`distlab exercise new NN_slug` makes one to start from, with its exercise and its test.
Then hold it with `tests/lessons/support.py`: the solution passes, the stub earns nothing,
each mistake is caught by name. No TensorFlow at the top of such a module: a check must be
found, and a plain answer judged, in well under a second.
"""

from distlab.grading.checks import Check as Check
from distlab.grading.checks import Criterion as Criterion
from distlab.grading.checks import Mistake as Mistake
from distlab.grading.checks import Verdict as Verdict
from distlab.grading.comparing import expect_close as expect_close
from distlab.grading.comparing import expect_equal as expect_equal
from distlab.grading.comparing import expect_shape as expect_shape
from distlab.grading.comparing import expect_true as expect_true

__all__ = [
    "Check",
    "Criterion",
    "Mistake",
    "Verdict",
    "expect_close",
    "expect_equal",
    "expect_shape",
    "expect_true",
]
