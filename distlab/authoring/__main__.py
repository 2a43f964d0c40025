"""`python -m distlab.authoring build|check|lint`, as the Makefile calls it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from distlab.authoring.build import build_pages, find_drift
from distlab.authoring.lint.lint import lint_tree
from distlab.authoring.source import find_pages
from distlab.errors import DistlabError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "build":
            return _build(options)
        return _check(options.root) if options.command == "check" else _lint(options.root)
    except DistlabError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _build(options: argparse.Namespace) -> int:
    start = time.monotonic()
    pages = find_pages(options.root, options.stems)
    results = build_pages(pages, force=options.force, jobs=options.jobs, say=_say)
    for result in results:
        if result.error:
            _say(f"\n{result.error}")
    counts = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("built", "current", "failed")
    }
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    _say(f"{listed} in {time.monotonic() - start:.1f} s")
    return 1 if counts["failed"] else 0


def _check(root: Path) -> int:
    differences = find_drift(root)
    for line in differences:
        _say(line)
    if differences:
        _say("to do: run 'make notebooks', look at what changed, and commit it")
        return 1
    _say(f"all {len(find_pages(root))} notebooks are what their sources build")
    return 0


def _lint(root: Path) -> int:
    report = lint_tree(root)
    for finding in report.findings:
        _say(str(finding))
    _say(report.summary)
    return 1 if report.findings else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m distlab.authoring")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--root", type=Path, default=Path.cwd(), help="the root of a clone of distlab (default: .)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", parents=[where], help="run and store what changed")
    build.add_argument("stems", nargs="*", metavar="STEM", help="lessons, as 00_start_here")
    build.add_argument("--force", action="store_true", help="also what is current")
    build.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    commands.add_parser("check", parents=[where], help="are all what their sources build?")
    commands.add_parser("lint", parents=[where], help="form, links, outputs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
