"""Checks that train nothing notice each small fault of a solution, or say why it is none."""

from tests.support.repository import ROOT
from tools.mutants import mutants_of

# It forks, so it needs a process in which TensorFlow has done nothing yet.
RUN = "from tools.mutate_solutions import main; print('ended with', main({arguments!r}))"
HALF = '''
def half(numbers, most=9):
    """The first half."""
    for n in range(len(numbers)):
        if n < most and numbers:
            return min(numbers[n:most], axis=1.5, verbose=0)
'''


def test_a_mutant_has_one_fault_in_its_line():
    made = [(mutant.line, mutant.changed) for mutant in mutants_of(HALF)]
    loop, test = "for n in range(len(numbers)):", "if n < most and numbers:"
    last = "return min(numbers[n:most], axis=1.5, verbose=0)"
    assert made == [
        (loop, "for n in range(len(numbers) + 1):"),
        (loop, "for n in range(len(numbers) - 1):"),
        (test, "if not (n < most and numbers):"),
        (test, "if n < most or numbers:"),
        (test, "if n <= most and numbers:"),
        (last, "pass"),
        (last, "return min(numbers[n:most], verbose=0)"),
        (last, "return max(numbers[n:most], axis=1.5, verbose=0)"),
        (last, "return min(numbers[n + 1:most], axis=1.5, verbose=0)"),
        (last, "return min(numbers[n - 1:most], axis=1.5, verbose=0)"),
        (last, "return min(numbers[n:most + 1], axis=1.5, verbose=0)"),
        (last, "return min(numbers[n:most - 1], axis=1.5, verbose=0)"),
        (last, "return min(numbers[n:most], axis=1.6500000000000001, verbose=0)"),
    ]


def test_pure_checks_notice_every_mutant_that_is_not_listed_as_equivalent(run_python):
    said = run_python(RUN.format(arguments=[]), warm=True, cwd=ROOT)
    assert "0 earn all points, 0 rows to remove\nended with 0" in said, said


def test_a_mutant_that_is_not_listed_and_a_row_without_one_are_told(run_python, tmp_path):
    table = tmp_path / "table.md"
    table.write_text("| `staleness` | `updates += 1` | `pass` | it is noticed |\n")
    arguments = ["--only", "staleness", "--equivalent", str(table)]
    *told, summary, ended = run_python(
        RUN.format(arguments=arguments), warm=True, cwd=ROOT
    ).splitlines()
    first = "updates, seen, found = ({}, {{}}, {{}})"
    row = "| `staleness` | `{}` | `{}` | |"
    assert told == [
        f"earns all points: {row.format(first.format(0), first.format(1))}",
        f"earns all points: {row.format(first.format(0), first.format(-1))}",
        f"gone, or noticed now, so remove its row: {row.format('updates += 1', 'pass')}",
    ]
    counted = "15 noticed, 0 equivalent, 2 earn all points, 1 rows to remove"
    assert summary == f"1 checks, 17 mutants: {counted}"
    assert ended == "ended with 1"
