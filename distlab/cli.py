"""The command `distlab`.

distlab doctor                      # what this machine has, and what cannot work on it
distlab lab my-lab --port 8899      # lay the lessons into my-lab and open JupyterLab there
distlab progress my-lab             # which tasks of the exercises in my-lab are passed
distlab launch --workers 2 train.py --epochs 3      # run a script on two workers
distlab grade handed-in --out graded                # grade a folder of submissions
distlab exercise new 20_my_topic                    # an exercise of your own to start from
distlab bench train.py --replicas 1 2 4             # how your own model scales on this machine
distlab example train                               # write examples/train.py into this folder
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distlab import __version__
from distlab.authoring.exercise.exercise_command import add_exercise
from distlab.autograder.grade_command import add_grade
from distlab.course.bench_command import add_bench
from distlab.course.example_command import add_example
from distlab.environment import explain_missing
from distlab.errors import DistlabError, UnsupportedEnvironment, is_installed, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    given = list(sys.argv[1:] if argv is None else argv)
    # What follows `--` is JupyterLab's, and argparse would make it a folder; a script's is its own.
    cut = given.index("--") if "--" in given and given[0] != "launch" else len(given)
    parser = _parser()
    if not given:
        parser.print_help()
        return 0
    options = parser.parse_args(given[:cut])
    options.further = given[cut + 1 :]
    try:
        return int(options.run(options))
    except DistlabError as error:
        return _refuse(error)
    except ModuleNotFoundError as error:
        if not _is_of_an_extra(error):
            raise
        return _refuse(explain_missing(str(error.name), asked=f"distlab {given[0]}"))
    except KeyboardInterrupt:
        return 130


def _refuse(error: DistlabError) -> int:
    print(printable(f"distlab: {error}", keep="\n"), file=sys.stderr)
    return 2


def _is_of_an_extra(error: ModuleNotFoundError) -> bool:
    """Whether an installed file imports what is missing, and not the user's own code."""
    *_, (last, _) = (
        frame
        for frame in traceback.walk_tb(error.__traceback__)
        if not frame[0].f_code.co_filename.startswith("<frozen importlib")
    )
    return is_installed(last.f_code.co_filename)


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know with its own usage, also as the parser of a command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="distlab", description="Learn distributed training in TensorFlow by running it."
    )
    parser.add_argument("--version", action="version", version=f"distlab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    doctor = commands.add_parser("doctor", help="what this machine has, and what cannot work on it")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser(
        "lab",
        help="lay the lessons into a folder and open JupyterLab there",
        description="Lay notebooks and exercises, no solutions, into FOLDER and open JupyterLab "
        "there. Run again, it adds what is new and never touches what you changed. Arguments "
        "after -- are JupyterLab's.",
    )
    lab.add_argument("folder", nargs="?", type=Path, default=Path("distlab-lab"), metavar="FOLDER")
    lab.add_argument("--no-browser", action="store_true", help="open no browser; print the address")
    lab.add_argument("--port", type=_port, help="the port of JupyterLab")
    lab.add_argument(
        "--fresh",
        action="append",
        metavar="NAME",
        help="lay a fresh copy of a notebook that you changed beside yours",
    )
    lab.add_argument("--lay-only", action="store_true", help="lay the lessons; open nothing")
    lab.set_defaults(run=_lab)

    progress = commands.add_parser(
        "progress",
        help="which tasks of the exercises are passed",
        description="Say which tasks are passed, by the outputs that the notebooks in FOLDER keep.",
    )
    progress.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="FOLDER")
    progress.set_defaults(run=_progress)
    _add_launch(commands)
    add_grade(commands)
    add_exercise(commands)
    add_bench(commands)
    add_example(commands)
    return parser


def _add_launch(commands: Any) -> None:
    launch = commands.add_parser(
        "launch",
        help="run a script on the workers of a cluster on this machine",
        description="Run SCRIPT, or with -m a module, once for each task of a cluster of real "
        "processes on this machine, each with its TF_CONFIG. What follows the script is the "
        "script's. Lines of output begin with their task. The exit code is that of the first "
        "task that fails (128 and more for a signal), 0 when all that train end well, 130 after "
        "Ctrl-C, 143 after SIGTERM, 124 after --timeout. A task that ends with 143 has saved, "
        "and is started again like one that failed.",
        usage="distlab launch [OPTIONS] SCRIPT [ARGS...]\n"
        "       distlab launch [OPTIONS] -m MODULE [ARGS...]",
        allow_abbrev=False,
    )
    number = {"type": int, "metavar": "N"}
    launch.add_argument("--workers", default=1, help="how many workers (1)", **number)
    launch.add_argument(
        "--ps",
        default=0,
        help="how many parameter servers; with some there is a chief, which coordinates, and a "
        "worker that is lost is started again alone",
        **number,
    )
    launch.add_argument("--chief", action="store_true", help="a chief besides the workers")
    launch.add_argument(
        "--evaluator",
        action="store_true",
        help="a task that evaluates; it has --grace-secs to end when training has ended",
    )
    launch.add_argument(
        "--max-restarts",
        default=0,
        help="how often to start again after a failure: all tasks, at once (0)",
        **number,
    )
    launch.add_argument(
        "--devices-per-worker",
        help="logical devices of each worker, made before the script starts: each is a replica "
        "under the strategy that make_strategy makes",
        **number,
    )
    seconds = {"type": float, "metavar": "SECS"}
    launch.add_argument(
        "--timeout", help="when to end all, and show where each task was", **seconds
    )
    launch.add_argument(
        "--grace-secs",
        default=30.0,
        help="how long tasks may take to save when this command gets SIGTERM (30)",
        **seconds,
    )
    launch.add_argument("-m", dest="is_module", action="store_true", help=argparse.SUPPRESS)
    launch.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    launch.set_defaults(run=_launch)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 0 to 65535")
    return int(text)


def _doctor(options: argparse.Namespace) -> int:
    from distlab.diagnostics import doctor

    report = doctor()
    print(report)
    return 1 if report.problems else 0


def _lab(options: argparse.Namespace) -> int:
    from distlab.course import assistant_page
    from distlab.course.course_page import PAGE, course_page
    from distlab.course.lab import check_jupyterlab, open_lab
    from distlab.course.learner_folder import lay_course, lay_page

    if not options.lay_only:
        check_jupyterlab()
    report = lay_course(options.folder, fresh=options.fresh)
    page = lay_page(options.folder, PAGE, course_page(options.folder))
    # An AGENTS.md of the learner's own stays, and there is nothing to say about it.
    instructions = assistant_page.assistant_page(distlab=_own_name(), python=sys.executable)
    lay_page(options.folder, assistant_page.PAGE, instructions)
    print("\n".join([*report.lines(command=_own_name()), *page.lines()[1:]]), flush=True)
    if not options.lay_only:
        open_lab(
            options.folder,
            open_browser=not options.no_browser,
            port=options.port,
            further=options.further,
        )
    return 0


def _progress(options: argparse.Namespace) -> int:
    from distlab.course.checks.progress import progress

    print(progress(options.folder))
    return 0


def _launch(options: argparse.Namespace) -> int:
    if not hasattr(os, "fork"):
        raise UnsupportedEnvironment(
            asked="distlab launch",
            found=f"{sys.platform}, where no process can be forked",
            do="on Windows run it under WSL2",
        )
    from distlab.cluster.launch.launcher import LaunchOptions, launch
    from distlab.cluster.spec import Layout

    command = options.command[options.command[:1] == ["--"] :]
    return launch(
        [*["-m"] * options.is_module, *command],
        LaunchOptions(
            layout=Layout(
                workers=options.workers,
                parameter_servers=options.ps,
                chief=options.chief or options.ps > 0,
                evaluator=options.evaluator,
            ),
            max_restarts=options.max_restarts,
            devices_per_worker=options.devices_per_worker,
            timeout_secs=options.timeout,
            grace_secs=options.grace_secs,
        ),
    )


def _own_name() -> str:
    """Returns what to type for this command: its path too where PATH has another, or none."""
    on_path = shutil.which("distlab")
    command = Path(sys.argv[0])
    if command.name != "distlab" or (on_path and Path(on_path).resolve() == command.resolve()):
        return "distlab"
    return str(command)


if __name__ == "__main__":
    sys.exit(main())
