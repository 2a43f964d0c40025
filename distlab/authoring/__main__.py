"""`python -m distlab.authoring build|check|lint|minutes|voice`, as the Makefile calls it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nbformat import v4

from distlab.authoring.build import build_pages, find_drift
from distlab.authoring.lint.lint import lint_tree
from distlab.authoring.minutes import MOST_CORE_HOURS, core_hours, minutes_table
from distlab.authoring.source import Draft, Page, draft_page, find_pages, lesson_stems
from distlab.authoring.voice import Voice, measure_voice, voice_table
from distlab.course.course_map import read_map
from distlab.errors import DistlabError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
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


def _check(options: argparse.Namespace) -> int:
    differences = find_drift(options.root)
    for line in differences:
        _say(line)
    if differences:
        _say("to do: run 'make notebooks', look at what changed, and commit it")
        return 1
    _say(f"all {len(find_pages(options.root))} notebooks are what their sources build")
    return 0


def _lint(options: argparse.Namespace) -> int:
    report = lint_tree(options.root)
    for finding in report.findings:
        _say(str(finding))
    _say(report.summary)
    return 1 if report.findings else 0


def _minutes(options: argparse.Namespace) -> int:
    entries = {entry.stem: entry for entry in read_map(options.root)}
    lessons = [
        (entries[page.stem], draft.counted)
        for page, draft in _lessons(options)
        if draft.counted is not None
    ]
    _say(minutes_table(lessons))
    hours = core_hours([counted for _, counted in lessons])
    verdict = "too long" if hours > MOST_CORE_HOURS else "good"
    _say("")
    _say(f"core path: {hours:.1f} hours with all folds open, {MOST_CORE_HOURS} at most: {verdict}")
    return int(hours > MOST_CORE_HOURS)


def _voice(options: argparse.Namespace) -> int:
    is_all = not options.stems
    pages = {file.stem: file for file in _site_pages(options.root)}
    chosen = [name for name in pages if is_all or name in options.stems]
    options.stems = [name for name in options.stems if name not in pages]
    voices: dict[str, Voice] = {}
    if options.stems or is_all:
        for page, draft in _lessons(options):
            voices[page.stem] = measure_voice(draft.notebook.cells)
    for name in chosen:
        text = pages[name].read_text(encoding="utf-8")
        voices[name] = measure_voice([v4.new_markdown_cell(text)])  # type: ignore[no-untyped-call]
    _say(voice_table(voices))
    if not is_all:
        for passage in (passage for voice in voices.values() for passage in voice.runs):
            _say(f"\n- {passage}")
    return 0


def _site_pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def _lessons(options: argparse.Namespace) -> Iterator[tuple[Page, Draft]]:
    """Yields the lessons that are named, by stem or number, or all of them, from their sources."""
    known = lesson_stems(options.root)
    stems = [stem for name in options.stems for stem in _named(name, known)]
    for page in find_pages(options.root, stems):
        if page.edition == "lesson":
            yield page, draft_page(page)


def _named(name: str, known: list[str]) -> list[str]:
    return [stem for stem in known if stem.startswith(f"{name}_")] or [name]


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
    build.set_defaults(run=_build)
    build.add_argument("stems", nargs="*", metavar="STEM", help="lessons, as 00_start_here")
    build.add_argument("--force", action="store_true", help="also what is current")
    build.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    check = commands.add_parser("check", parents=[where], help="are all what their sources build?")
    check.set_defaults(run=_check)
    lint = commands.add_parser("lint", parents=[where], help="form, links, outputs")
    lint.set_defaults(run=_lint)
    minutes = commands.add_parser("minutes", parents=[where], help="how long the lessons take")
    minutes.set_defaults(run=_minutes)
    minutes.add_argument("stems", nargs="*", metavar="NN", help="lessons, as 00 or 00_start_here")
    voice = commands.add_parser("voice", parents=[where], help="how the sentences sound")
    voice.set_defaults(run=_voice)
    voice.add_argument(
        "stems", nargs="*", metavar="NAME", help="lessons, as 00, and pages, as README or install"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
