"""The command `distlab exercise`.

distlab exercise new 20_my_topic --folder mine
distlab exercise build mine/20_my_topic.py --out handout --no-solutions
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from distlab.environment import require_modules


def add_exercise(commands: Any) -> None:
    """Adds the command."""
    exercise = commands.add_parser(
        "exercise",
        help="write exercises of your own, and build their two editions",
        description="For teachers: make a new exercise to start from, then build its student "
        "edition and its solution.",
        example=[
            "distlab exercise new 20_my_topic --folder mine",
            "distlab exercise build mine/20_my_topic.py --out handout",
        ],
    )
    actions = exercise.add_subparsers(metavar="ACTION", required=True)

    new = actions.add_parser(
        "new",
        help="make an exercise to start from: source, checks, test",
        description="Make the source of a new exercise, its checks and their test. It works as it "
        "is, so you replace its task by yours, step by step. In a clone of distlab the files go "
        "where those of a lesson are, and elsewhere into a folder. Nothing is overwritten.",
        example=["distlab exercise new 20_my_topic --folder mine"],
    )
    new.add_argument("name", metavar="NN_slug", help="as in 20_my_topic")
    new.add_argument(
        "--folder",
        type=Path,
        metavar="F",
        help="where the files go (in a clone: its lessons; else here)",
    )
    new.set_defaults(run=_new)

    build = actions.add_parser(
        "build",
        help="build the student edition and the solution",
        description="Build the student edition of each SOURCE into OUT/exercises, and the solution "
        "into OUT/solutions. The checks are read from lesson_NAME.py beside the source. The "
        "student edition has nbgrader's metadata too. A notebook that is there and differs is "
        "only overwritten with --force.",
        example=[
            "distlab exercise new 20_my_topic --folder mine",
            "distlab exercise build mine/20_my_topic.py --out handout",
        ],
    )
    build.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="SOURCE",
        help="an exercise's .py file, as `new` makes it",
    )
    build.add_argument(
        "--out", type=Path, required=True, metavar="OUT", help="where the notebooks go"
    )
    build.add_argument(
        "--execute", action="store_true", help="run the notebooks, and store their outputs"
    )
    build.add_argument("--no-solutions", action="store_true", help="build only the student edition")
    build.add_argument(
        "--force", action="store_true", help="overwrite notebooks that are there and differ"
    )
    build.set_defaults(run=_build)


def _new(options: argparse.Namespace) -> int:
    from distlab.authoring.exercise.new_exercise import make_exercise

    made = make_exercise(options.name, folder=options.folder)
    for path in made.files:
        print(f"new  {path}")
    print("It works as it is: replace its task by yours.")
    print("test it:   " + shlex.join(["python", "-m", "pytest", str(made.test)]))
    build = ["make", "notebooks"]
    if made.is_own:
        build = ["distlab", "exercise", "build", str(made.source), "--out", "handout"]
    print("build it:  " + shlex.join(build))
    return 0


def _build(options: argparse.Namespace) -> int:
    tools = ["jupytext", "nbformat", *["nbclient", "ipykernel"] * options.execute]
    require_modules("distlab exercise build", *tools)
    from distlab.authoring.exercise.own_editions import BuildOptions, build_editions

    built = build_editions(
        options.sources,
        BuildOptions(
            out=options.out,
            execute=options.execute,
            force=options.force,
            solutions=not options.no_solutions,
        ),
    )
    for page in built:
        print(f"{page.outcome:12}{page.path}")
    return 0
