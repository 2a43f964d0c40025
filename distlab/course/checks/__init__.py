"""Checks judge a learner's answers, in the notebook and over a folder of submissions.

To add a check, write `checks.py` in `distlab/course/lesson_NN_slug/`, or a package of that name,
with a tuple `CHECKS`. A check states a task from top to bottom:

    import numpy as np
    from distlab.course.checks import Check, Close, Cost, Fault

    def inputs(seed):
        draw = np.random.default_rng(seed)
        return {"sums": draw.normal(size=4), "counts": draw.permutation([1, 2, 3, 4])}

    def call(combine, inputs):                # the only part that runs the learner's code
        return {"mean": combine(inputs["sums"], inputs["counts"])}

    def reference(given, *, of_means=False):  # each mistake is one changed argument
        if of_means:
            return {"mean": np.mean(given["sums"] / given["counts"])}
        return {"mean": given["sums"].sum() / given["counts"].sum()}

    CHECKS = (
        Check(
            name="combine_means", function="combine", title="The mean over unequal shares",
            cost=Cost.PURE, inputs=inputs, call=call, reference=reference,
            criteria=(Close("mean", "the mean", atol=1e-6, points=2),),
            question="How much does one example count, on each replica?",
            direction="Count the examples of all replicas first.",
            hint="Add up all sums, and divide once by the number of all examples.",
            revisit='"When a mean of means is wrong" in lesson 01',
            mistakes=(
                Fault("mean_of_means", of_means=True).feedback(
                    "You averaged the replicas' means, so an example counts more if its replica "
                    "has few of them. How much should each example count?"
                ),
            ),
        ),
    )

`criteria.py` has what can be expected, and `mistakes.py` how a mistake is recognised. The feedback
on a mistake says what the code did, what follows from that, and asks a question. `distlab exercise
new NN_slug` makes a check to start from, with its exercise and its test. Tests of every check hold
that its solution passes, its stub earns nothing and each `Fault` is named. The lesson's own test
adds another right answer, and a wrong one for each `Observed` and `Raises`, with the helpers in
`tests/support/lesson_checks.py`. Import no TensorFlow at the top of such a module: a check must be
found, and a plain answer judged, in well under a second.
"""

from distlab.course.checks.check import Check as Check
from distlab.course.checks.check import Cost as Cost
from distlab.course.checks.criteria import Choice as Choice
from distlab.course.checks.criteria import Close as Close
from distlab.course.checks.criteria import Equal as Equal
from distlab.course.checks.criteria import Form as Form
from distlab.course.checks.criteria import Gate as Gate
from distlab.course.checks.criteria import Holds as Holds
from distlab.course.checks.criteria import Then as Then
from distlab.course.checks.mistakes import Fault as Fault
from distlab.course.checks.mistakes import Observed as Observed
from distlab.course.checks.mistakes import Raises as Raises
from distlab.course.checks.verdict import Criterion as Criterion
from distlab.course.checks.verdict import Inputs as Inputs
from distlab.course.checks.verdict import Plain as Plain
from distlab.course.checks.verdict import Verdict as Verdict

__all__ = [
    "Check",
    "Choice",
    "Close",
    "Cost",
    "Criterion",
    "Equal",
    "Fault",
    "Form",
    "Gate",
    "Holds",
    "Inputs",
    "Observed",
    "Plain",
    "Raises",
    "Then",
]
