"""Every public name shows an example, and the example does what it shows."""

import doctest
import inspect

import pytest

import distlab
from distlab.cluster.warm.process import ADDRESS_VARIABLE, can_fork, shared_server

# Beside each name, the methods that its users call: of a class, or of what a function returns.
EXAMPLES = {name: [f"distlab:{name}"] for name in distlab.__all__ if name != "__version__"}
for name, where, methods in (
    ("LocalCluster", "distlab:LocalCluster", "run execute kill restart status"),
    ("plan_batch", "distlab.batching:BatchPlan", "shares_of steps warmup"),
    ("predict", "distlab.course.predictions.prediction:Prediction", "reveal"),
):
    EXAMPLES[name] += [f"{where}.{method}" for method in methods.split()]


# What examples have besides `dl`: those of methods, the object that they are called on.
GIVEN = {"LocalCluster": "cluster = distlab.LocalCluster(workers=2)"}


def run_example(name, text, **given):
    """Runs what a docstring shows, and raises unless it holds."""
    names = {"dl": distlab, "__name__": "__main__", **given}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert "\nExample:\n" in text and test.examples, f"{name} has no example"
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


# What the process of an example runs. The first cluster prints who can reach its servers: here it
# is the given one, and not an example's.
RUN = f"""
import doctest, inspect, pkgutil, distlab
{inspect.getsource(run_example)}
given = {{}}
exec(CODE, {{"distlab": distlab}}, given)
for name in NAMES:
    run_example(name, inspect.getdoc(pkgutil.resolve_name(name)) or "", **given)
"""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_name_runs_in_a_process_of_its_own(name, run_python):
    environ = {ADDRESS_VARIABLE: shared_server().address} if can_fork() else {}
    given = f"CODE, NAMES = {GIVEN.get(name, '')!r}, {EXAMPLES[name]!r}\n"
    run_python(given + RUN, environ=environ, warm=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Sums.\n\nExample:\n    >>> 1 + 1\n    2\n", None),
        ("Sums.\n\nExample:\n    >>> 1 + 1\n    3\n", r"Got:\n +2"),
        ("Sums.\n\nExample:\n    >>> dl.sums()\n", "has no attribute 'sums'"),
        ("Sums.\n\nExample:\n    sums()\n", "sums has no example"),
        ("Sums.\n", "sums has no example"),
    ],
)
def test_an_example_that_is_missing_or_wrong_is_noticed(text, complaint):
    if complaint is None:
        run_example("sums", text)
        return
    with pytest.raises(AssertionError, match=complaint):
        run_example("sums", text)
