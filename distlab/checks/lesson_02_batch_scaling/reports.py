"""The rubric of lesson 02's report."""

from distlab.checks.rubric import RubricRow, WrittenReport

REPORTS = (
    WrittenReport(
        name="where_the_rule_ends",
        title="Where a rule for Adam ends",
        rubric=(
            RubricRow(
                "which_rule",
                2,
                "names the batch size up to which each rule keeps the accuracy (1); compares the "
                "losses with the error bars and with the one point of 360 digits (1)",
            ),
            RubricRow(
                "steps_or_epochs",
                1,
                "says that equal epochs are 64 times fewer steps at a batch of 512, and that equal "
                "steps would compare different amounts of data",
            ),
            RubricRow(
                "sixteen_replicas",
                2,
                "advises a global batch below the bend, or more epochs (1); says what the other "
                "replicas could do instead, or that they save no steps (1)",
            ),
            RubricRow(
                "edge_of_the_grid",
                1,
                "names the batch whose best rate is at the edge of the grid, and says what that "
                "does to the differences",
            ),
        ),
    ),
)
