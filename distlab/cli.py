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
from distlab.errors import (
    DistlabError,
    InvalidArgument,
    UnsupportedEnvironment,
    did_you_mean,
    is_installed,
    printable,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    given = list(sys.argv[1:] if argv is None else argv)
    # What follows `--` is JupyterLab's, and argparse would make it a folder; a script's is its own.
    cut = given.index("--") if "--" in given and given[0] != "launch" else len(given)
    parser, commands = _parser()
    if not given:
        parser.print_help()
        return 0
    if not given[0].startswith("-") and given[0] not in commands:
        return _refuse(
            InvalidArgument(
                asked=f"distlab {given[0]}",
                found=f"no command {given[0]!r}",
                do=did_you_mean(given[0], commands),
            )
        )
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
    """Ends its help with an example, and refuses unknown options with its own usage.

    The parsers of commands are of this class, too.
    """

    def __init__(self, *, example: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self._example = example

    def format_help(self) -> str:
        lines = "".join(f"  {line}\n" for line in self._example)
        return f"{super().format_help()}\nExample:\n{lines}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    parser = _Parser(
        prog="distlab",
        description="Learn distributed training in TensorFlow by running it. `distlab COMMAND "
        "--help` explains a command, with an example.",
        example=[
            "distlab doctor                    # does everything work here?",
            "distlab lab my-lab                # then begin with the first lesson",
        ],
    )
    parser.add_argument("--version", action="version", version=f"distlab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    doctor = commands.add_parser(
        "doctor",
        help="report what this machine has, and what won't work on it",
        description="Report the versions, the devices and the strategies that work on this "
        "machine, and for each problem say how to solve it. Where TF_CONFIG or Slurm describes a "
        "cluster, also say what this process is there for. The command changes nothing. The "
        "exit code is 1 if there are problems.",
        example=["distlab doctor"],
    )
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser(
        "lab",
        help="copy the lessons into a folder and open JupyterLab there",
        description="Copy the lessons and exercises, without solutions, into FOLDER, and open "
        "JupyterLab there. If you run it again, it adds what's new and never touches what you "
        "changed. Arguments after -- go to JupyterLab.",
        example=[
            "distlab lab my-lab                # opens JupyterLab in a browser",
            "distlab lab my-lab --lay-only     # only copies the lessons",
        ],
    )
    lab.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("distlab-lab"),
        metavar="FOLDER",
        help="where the lessons go (distlab-lab)",
    )
    lab.add_argument(
        "--no-browser", action="store_true", help="print the address and open no browser"
    )
    lab.add_argument("--port", type=_port, help="JupyterLab's port, 0 to 65535")
    lab.add_argument(
        "--fresh",
        action="append",
        metavar="NAME",
        help="put a fresh copy of a notebook beside the one that you changed",
    )
    lab.add_argument("--lay-only", action="store_true", help="copy the lessons, and open nothing")
    lab.set_defaults(run=_lab)

    progress = commands.add_parser(
        "progress",
        help="report which tasks of the exercises you've passed",
        description="Report which tasks of the exercises you've passed. The command reads the "
        "outputs that are stored in the notebooks of FOLDER, and runs nothing.",
        example=["distlab lab my-lab --lay-only", "distlab progress my-lab"],
    )
    progress.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the lessons' folder (this one)",
    )
    progress.set_defaults(run=_progress)
    _add_launch(commands)
    add_grade(commands)
    add_exercise(commands)
    add_bench(commands)
    add_example(commands)
    return parser, list(commands.choices)


def _add_launch(commands: Any) -> None:
    launch = commands.add_parser(
        "launch",
        help="run a script on the workers of a cluster on this machine",
        description="Run SCRIPT, or with -m a module, once for each task of a cluster. Every task "
        "is a real process on this machine, with its own TF_CONFIG, and each line that it prints "
        "begins with its name. Arguments after the script go to the script. The exit code is 0 "
        "when all tasks that train end well, and otherwise that of the first task that fails (128 "
        "and more for a signal); it's 130 after Ctrl-C, 143 after SIGTERM, and 124 after "
        "--timeout. A task that ends with 143 has saved, so it's started again like one that "
        "failed.",
        usage="distlab launch [OPTIONS] SCRIPT [ARGS...]\n"
        "       distlab launch [OPTIONS] -m MODULE [ARGS...]",
        allow_abbrev=False,
        example=[
            "distlab example train             # writes examples/train.py",
            "distlab launch --workers 2 examples/train.py --epochs 2",
        ],
    )
    number = {"type": int, "metavar": "N"}
    launch.add_argument("--workers", default=1, help="number of workers (1)", **number)
    launch.add_argument(
        "--ps",
        default=0,
        help="number of parameter servers (0); with any, a chief coordinates, and a worker that is "
        "lost is started again alone",
        **number,
    )
    launch.add_argument("--chief", action="store_true", help="add a chief besides the workers")
    launch.add_argument(
        "--evaluator",
        action="store_true",
        help="add a task that evaluates; once training has ended, it has --grace-secs to end too",
    )
    launch.add_argument(
        "--max-restarts",
        default=0,
        help="how often to start all tasks again after a failure (0)",
        **number,
    )
    launch.add_argument(
        "--devices-per-worker",
        help="logical devices of each worker, made before the script starts; under make_strategy's "
        "strategy each of them is a replica",
        **number,
    )
    seconds = {"type": float, "metavar": "SECS"}
    launch.add_argument(
        "--timeout", help="end all tasks after that time, and show where each one was", **seconds
    )
    launch.add_argument(
        "--grace-secs",
        default=30.0,
        help="time that tasks have to save after this command gets SIGTERM (30)",
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
    # An AGENTS.md of the learner's own stays, and there is nothing to say about it. A folder that
    # is only laid may be handed out, so it names no path of this machine.
    here = {} if options.lay_only else {"distlab": _own_name(), "python": sys.executable}
    instructions = assistant_page.assistant_page(**here)
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
