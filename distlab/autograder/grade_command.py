"""The command `distlab grade`.

distlab grade handed-in --out graded
distlab grade handed-in --out graded --late 0.8 --overrides mine.csv --only jane
distlab grade handed-in --out graded                    # again, with points in graded/reports.csv
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from distlab.course.results.stops import ANSWER_SECS
from distlab.environment import require_modules
from distlab.errors import InvalidArgument, printable

# Of the extra `lab`: what the pages are made with, and what answers to the lessons use.
_NEEDS = ("jinja2", "markdown_it", "cloudpickle", "jupyter_client", "tensorflow_datasets")


def add_grade(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "grade",
        help="grade a folder of submissions",
        description="Grade the hand-ins in FOLDER. It's a folder or a zip as you download it from "
        "Moodle, Canvas, Blackboard, Brightspace, Gradescope, GitHub Classroom, Google Classroom "
        "or Microsoft Teams, as nbgrader collects it, or with one folder for each learner. Each "
        "answer runs in isolation, within limits of time and memory. In OUT you find class.html "
        "(how the class did, and what to teach again), gradebook.csv, details.csv, review.csv, "
        "and a page of feedback for each hand-in. Learners' reports are for you to read: you find "
        "them in the pages of feedback, fill in points and comments in OUT/reports.csv, whose "
        "cells are never overwritten, and run the command again. Run it again after an "
        "interruption too, or when more is handed in, because what's graded is kept.",
        example=["distlab grade handed-in --out graded"],
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the hand-ins")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT", help="where results go; never in FOLDER"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="answers at a time (one for each core)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the inputs, which differ for each learner (drawn once for OUT)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="LEARNER",
        help="grade only this learner; again, if graded before",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="grade what was graded before as well, for example with different limits",
    )
    parser.add_argument(
        "--secs",
        type=float,
        default=ANSWER_SECS,
        metavar="SECS",
        help=f"time for each answer ({ANSWER_SECS:g})",
    )
    parser.add_argument(
        "--memory-mib", type=int, default=4096, metavar="MIB", help="memory for each answer (4096)"
    )
    parser.add_argument(
        "--late",
        type=float,
        default=1.0,
        metavar="PART",
        help="the part of its points that a late hand-in keeps, 0 to 1 (1: all)",
    )
    parser.add_argument(
        "--overrides",
        type=Path,
        metavar="CSV",
        help="your own points, in place of the checks': a table with the columns learner, check, "
        "points, comment; they count even for a hand-in that cannot be graded",
    )
    parser.add_argument(
        "--extra-checks",
        type=Path,
        metavar="FILE",
        help="checks of your own: private ones that learners never see, or lesson_NAME.py of an "
        "exercise that you wrote",
    )
    parser.add_argument(
        "--canvas",
        nargs=2,
        metavar=("EXPORT", "COLUMN"),
        help="a gradebook exported from Canvas, and the assignment's title in it: OUT/canvas.csv "
        "is the same with these points",
    )
    parser.add_argument(
        "--moodle",
        type=Path,
        metavar="WORKSHEET",
        help="the assignment's grading worksheet from Moodle: OUT/moodle.csv is the same with "
        "these points",
    )
    parser.add_argument(
        "--exercise",
        metavar="NAME",
        help="whose points --canvas and --moodle take, where hand-ins are of several exercises",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="grade several notebooks of one exercise as one learner's, without asking",
    )
    parser.add_argument(
        "--feedback-zip",
        action="store_true",
        help="also OUT/feedback.zip, the pages of feedback as Moodle and Canvas take them back",
    )
    parser.add_argument(
        "--allow-root",
        action="store_true",
        help="grade as root where no walls can be built: in a container of its own only",
    )
    parser.set_defaults(run=_grade)


def _grade(options: argparse.Namespace) -> int:
    require_modules("distlab grade", *_NEEDS)
    from distlab.autograder.gradebook.feedback_zip import NAME, write_feedback_zip
    from distlab.autograder.gradebook.platforms import CANVAS, MOODLE, check_export, give_back
    from distlab.autograder.grader import GradingOptions
    from distlab.autograder.isolation.limits import Limits
    from distlab.autograder.run import MARKS, grade

    out = options.out
    platforms = {
        "--canvas": (options.canvas, "canvas.csv"),
        "--moodle": (options.moodle, "moodle.csv"),
    }
    if options.exercise and not any(asked for asked, _ in platforms.values()):
        raise InvalidArgument(
            asked=f"give back the points of {options.exercise!r}",
            found="neither --canvas nor --moodle",
            do="add one of them, or leave out --exercise; to grade one learner, use --only",
        )
    if options.canvas:
        check_export(CANVAS, Path(options.canvas[0]), options.canvas[1])
    if options.moodle:
        check_export(MOODLE, options.moodle)
    results = grade(
        options.folder,
        out,
        GradingOptions(
            jobs=options.jobs,
            seed=options.seed,
            limits=Limits(secs=options.secs, memory_bytes=options.memory_mib * 2**20),
            late_factor=options.late,
            overrides=options.overrides,
            only=tuple(options.only),
            again=options.again or bool(options.only),
            extra_checks=options.extra_checks,
            allow_root=options.allow_root,
            allow_doubles=options.yes,
        ),
        say=_say,
        ask=_ask,
    )
    scored = results.scored
    if any(asked for asked, _ in platforms.values()):
        give_back(
            scored,
            out,
            canvas=options.canvas,
            moodle=options.moodle,
            exercise=options.exercise,
            say=_say,
        )
    if options.feedback_zip:
        others = write_feedback_zip(results.graded, out)
        _say(f"{out / NAME} has a page for each of {len(results.graded)} hand-ins")
        if others:
            names = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
            _say(f"neither Moodle nor Canvas can tell whose these are: {names}")
    written = platforms | {"--feedback-zip": (options.feedback_zip, NAME)}
    for option, (asked, name) in written.items():
        if not asked and (out / name).exists():
            _say(f"{out / name} is from an earlier run: give {option} to write it again")
    broken = sum(bool(graded.problem) for graded in results.graded)
    to_read = sum(len(score.to_be_read) for _, score in scored)
    print(f"{len(scored)} hand-ins, of which {broken} could not be graded: {out}")
    print(f"how the class did, and what to teach again: {out / 'class.html'}")
    if broken:
        own = "" if options.extra_checks else "; an exercise of your own needs --extra-checks"
        print(f"{out / 'review.csv'} says why; you can give points for them with --overrides{own}")
    if to_read:
        print(
            f"reports still to be read: {to_read}; until then their points are missing. Read them "
            f"in the pages of {out / 'feedback'}, fill in {out / MARKS}, and run this again"
        )
    return 0


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _ask(question: str) -> bool:
    """Returns the answer of the person at the terminal; no where nobody is."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    _say(question)
    print("[y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
