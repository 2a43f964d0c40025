"""The command `distlab`.

distlab doctor                      # what this machine has, and what cannot work on it
distlab lab my-lab --port 8899      # lay the lessons into my-lab and open JupyterLab there
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from distlab import __version__
from distlab.errors import DistlabError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments; those of the process when None.

    Returns:
        0, 1 where `doctor` finds problems, 2 for an error, 130 when interrupted.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # What follows `--` is JupyterLab's, and argparse would make it a folder.
    cut = given.index("--") if "--" in given else len(given)
    options = _parser().parse_args(given[:cut])
    options.further = given[cut + 1 :]
    try:
        return int(options.run(options))
    except DistlabError as error:
        print(f"distlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="distlab", description="Learn distributed training in TensorFlow by running it."
    )
    parser.add_argument("--version", action="version", version=f"distlab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    doctor = commands.add_parser("doctor", help="what this machine has, and what cannot work on it")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser(
        "lab",
        help="lay the lessons into a folder and open JupyterLab there",
        description="Lay notebooks and exercises into FOLDER and open JupyterLab there. Run again, "
        "it adds what is new and never touches what you changed. Arguments after -- are "
        "JupyterLab's.",
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
    return parser


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
    from distlab.course import lay_course
    from distlab.lab import check_jupyterlab, open_lab

    if not options.lay_only:
        check_jupyterlab()
    report = lay_course(options.folder, fresh=options.fresh)
    print("\n".join(report.lines(command=_own_name())), flush=True)
    if not options.lay_only:
        open_lab(
            options.folder,
            open_browser=not options.no_browser,
            port=options.port,
            further=options.further,
        )
    return 0


def _own_name() -> str:
    """Returns what to type for this command: its path too where PATH has another, or none."""
    found = shutil.which("distlab")
    here = Path(sys.argv[0])
    if here.name != "distlab" or (found and Path(found).resolve() == here.resolve()):
        return "distlab"
    return str(here)


if __name__ == "__main__":
    sys.exit(main())
