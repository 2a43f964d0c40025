"""The rubric of lesson 13's report."""

from distlab.checks.rubric import RubricRow, WrittenReport

REPORTS = (
    WrittenReport(
        name="one_against_many",
        title="One device against many, for a CNN",
        rubric=(
            RubricRow(
                "what_differs",
                2,
                "names a pair of steps whose difference is larger than their spread (1), and calls "
                "no difference a speedup that lies within it (1: speedup_within_noise)",
            ),
            RubricRow(
                "which_part",
                2,
                "says which part grows with the replicas, with a figure (1), and why it does on "
                "this machine (1)",
            ),
            RubricRow(
                "what_to_change",
                2,
                "says what a device of its own for each replica changes (1), and what it does not "
                "change (1)",
            ),
        ),
    ),
)
