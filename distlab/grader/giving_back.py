"""Gives the points of one exercise back to Canvas and Gradescope, and says what did not fit.

give_back(results.scored, out, canvas=("export.csv", "Exercise 09"), say=print)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from distlab.errors import InvalidArgument, did_you_mean
from distlab.grader.returning import fill_canvas, most_in_canvas, write_gradescope
from distlab.grader.scoring import Graded, Score

Scored = Sequence[tuple[Graded, Score]]


def give_back(
    scored: Scored,
    out: Path,
    *,
    canvas: Sequence[str] | None = None,
    gradescope: bool = False,
    exercise: str | None = None,
    say: Callable[[str], None],
) -> None:
    """Writes `canvas.csv` and the folder `gradescope`, whichever is asked.

    Args:
        scored: All submissions, each with what it earned.
        out: The folder of the results.
        canvas: An exported gradebook, and the assignment's title in it.
        gradescope: Whether to write what Gradescope takes.
        exercise: Whose points; None where all notebooks are of one.
        say: Takes a line for whatever did not fit.

    Raises:
        InvalidArgument: There is no such exercise, there are several and none is named, or the
            export is none.
    """
    if exercise:
        scored = _of_exercise(exercise, scored, say)
    if gradescope:
        write_gradescope(out / "gradescope", scored)
    if canvas:
        exported, column, to = Path(canvas[0]), canvas[1], out / "canvas.csv"
        for learner in fill_canvas(exported, scored, column=column, to=to):
            say(f"not in {exported}: {learner}")
        inside = most_in_canvas(exported, column=column)
        most = max((score.points for _, score in scored), default=0.0)
        if inside not in (None, most):
            say(
                f"in Canvas {column!r} has {inside:g} points, and here there are {most:g}: {to} "
                "has the points as they are here; change the assignment's points in Canvas"
            )


def _of_exercise(name: str, scored: Scored, say: Callable[[str], None]) -> Scored:
    """Returns the notebooks of one exercise, and those that cannot be graded."""
    known = sorted({one.stem for one, _ in scored if one.stem})
    if name not in known:
        raise InvalidArgument(
            asked=f"give back the points of {name!r}",
            found="no notebook of that exercise",
            do=did_you_mean(name, known) if known else "leave --exercise out",
        )
    chosen = [(one, score) for one, score in scored if one.stem in ("", name)]
    everybody, theirs = ({one.submission.learner for one, _ in some} for some in (scored, chosen))
    for learner in sorted(everybody - theirs):
        say(f"no notebook of {name}, so no points are given back: {learner}")
    return chosen
