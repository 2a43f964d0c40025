"""Lays the course, notebooks and exercises, into a learner's folder, and never over their work.

Notebooks are laid without outputs, which would answer what a lesson asks before it is run.

    report = lay_course("distlab-lab")
    print(*report.lines(), sep=os.linesep)

A manifest in the folder remembers each file as it was laid. So a later run can tell a file that
the learner changed (kept, whatever the course has by now) from one that may be brought up to date.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from distlab.atomic_write import write_atomically
from distlab.errors import InvalidArgument, UnsupportedEnvironment, did_you_mean
from distlab.shipped import MANIFEST, shipped_root

FOLDERS = ("notebooks", "exercises")
# What notebooks link to or show, so that a learner's folder has it at the same place.
PAGES = (
    "docs/glossary.md",
    "docs/pitfalls.md",
    "docs/decision_card.md",
    "docs/leaving.md",
    "docs/_static/all_reduce.svg",
)


@dataclass(frozen=True)
class LaidFiles:
    """The outcome of laying the course, with each file by its path inside the folder.

    Attributes:
        folder: The learner's folder.
        added: Files that were not there.
        updated: Files the learner had not changed, brought up to date.
        kept: Files the learner changed; nothing was done to them.
        outdated: Those of `kept` of which the course has another version by now.
        beside: Fresh copies that were asked for, by the names they got.
    """

    folder: Path
    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    def lines(self, *, command: str = "distlab") -> list[str]:
        """Returns the report as lines to print, a line for each file that was kept."""
        lines = [f"{self.folder}: {len(self.added)} new, {len(self.updated)} brought up to date"]
        for name in self.kept:
            more = ""
            if name in self.outdated:
                stem = PurePosixPath(name).with_suffix("")
                lay = shlex.join([command, "lab", str(self.folder), "--fresh", str(stem)])
                more = f"; the course has another version: {lay}"
            lines.append(f"kept {name}: you changed it{more}")
        lines += [f"laid a fresh copy beside yours: {name}" for name in self.beside]
        return lines


def course_files(course: Path | None = None) -> dict[str, Path]:
    """Returns the files of the course, by their path inside a learner's folder."""
    root = course or shipped_root()
    files = {
        path.relative_to(root).as_posix(): path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    }
    files |= {page: root / page for page in PAGES if (root / page).is_file()}
    if not any(name.endswith(".ipynb") for name in files):
        raise UnsupportedEnvironment(
            asked="the lessons of distlab",
            found=f"no notebooks in {root}",
            do="pip install --force-reinstall --no-deps distlab; in a clone: make notebooks",
        )
    return files


def lay_course(
    folder: str | os.PathLike[str], *, fresh: list[str] | None = None, course: Path | None = None
) -> LaidFiles:
    """Lays the course into a folder; what the learner changed is never touched.

    A file that the learner deleted is laid again: that is how one starts a lesson again.
    """
    files = course_files(course)
    target = Path(folder)
    wanted = _fresh_names(fresh or [], files)
    _check_folder(target, course or shipped_root())
    laid = _read_manifest(target)
    report = LaidFiles(target)
    for name, source in files.items():
        new = source.read_bytes()
        if source.suffix == ".ipynb":
            new = without_outputs(new)
        _lay_one(target, name, new, laid, report)
        if name in wanted and _digest_of(target / name) != _digest(new):
            beside = _free_name(target / name)
            write_atomically(beside, new)
            report.beside.append(beside.relative_to(target).as_posix())
            # The learner has this version now: it need not be announced again.
            laid[name] = _digest(new)
    _write_manifest(target, laid)
    return report


def lay_page(folder: str | os.PathLike[str], name: str, text: str) -> LaidFiles:
    """Lays a page that was written for this learner; one that they changed is never touched."""
    target = Path(folder)
    laid, report = _read_manifest(target), LaidFiles(target)
    _lay_one(target, name, text.encode(), laid, report)
    report.outdated.clear()  # a page has no fresh copy to ask for
    _write_manifest(target, laid)
    return report


def without_outputs(notebook: bytes) -> bytes:
    """Returns a notebook as if it had never been run; what is no notebook as it is."""
    try:
        content = json.loads(notebook)
        content["metadata"].pop("widgets", None)
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
                _unfold_outputs(cell["metadata"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return notebook
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True)
    return f"{text}\n".encode()


def _unfold_outputs(metadata: dict[str, Any]) -> None:
    folded = metadata.pop("jupyter", {})
    if left := {key: value for key, value in folded.items() if key != "outputs_hidden"}:
        metadata["jupyter"] = left


def _lay_one(target: Path, name: str, new: bytes, laid: dict[str, str], report: LaidFiles) -> None:
    path = target / name
    if not path.exists():
        write_atomically(path, new)
        report.added.append(name)
    elif (digest := _digest_of(path)) == _digest(new):
        pass
    elif digest is not None and digest == laid.get(name):
        write_atomically(path, new)
        report.updated.append(name)
    else:
        report.kept.append(name)
        if laid.get(name) != _digest(new):
            report.outdated.append(name)
        return
    laid[name] = _digest(new)


def _fresh_names(asked: list[str], files: dict[str, Path]) -> set[str]:
    names = set()
    for word in asked:
        stem = word.removesuffix(".ipynb")
        named = [name for name in files if str(PurePosixPath(name).with_suffix("")).endswith(stem)]
        exact = [name for name in named if name.removesuffix(".ipynb").split("/", 1)[1] == stem]
        whole = [name for name in named if name.removesuffix(".ipynb") == stem]
        if not (whole or exact):
            raise InvalidArgument(
                asked=f"a fresh copy of {word!r}",
                found=f"nothing in the course is named {word!r}",
                do=did_you_mean(stem, sorted({PurePosixPath(name).stem for name in files})),
            )
        names.update(whole or exact)
    return names


def _check_folder(target: Path, course: Path) -> None:
    place = target.resolve()
    asked = f"lay the course into {target}"
    elsewhere = "name another folder: distlab lab my-lab"
    for folder in FOLDERS:
        source = (course / folder).resolve()
        # Laying over the course itself would make its own files the learner's.
        if source in (place, *place.parents) or (place / folder).resolve() == source:
            raise InvalidArgument(asked=asked, found="that is the course itself", do=elsewhere)
    for path in (target, *(target / folder for folder in FOLDERS)):
        if path.exists() and not path.is_dir():
            raise InvalidArgument(
                asked=asked, found=f"{path} is a file, not a folder", do=elsewhere
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / ".distlab-probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InvalidArgument(
                asked=asked,
                found=f"{path} cannot be written: {error.strerror}",
                do=elsewhere,
            ) from error


def _read_manifest(target: Path) -> dict[str, str]:
    """Without a readable manifest every file that is there counts as the learner's."""
    try:
        files = json.loads((target / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_manifest(target: Path, laid: dict[str, str]) -> None:
    manifest = {"about": "what distlab laid here, to know your changes by", "files": laid}
    write_atomically(target / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def _free_name(path: Path) -> Path:
    number, beside = 1, path.with_suffix(f".fresh{path.suffix}")
    while beside.exists():
        number += 1
        beside = path.with_suffix(f".fresh-{number}{path.suffix}")
    return beside


def _digest_of(path: Path) -> str | None:
    """None stands for what cannot be read, as a folder of that name: it is the learner's too."""
    try:
        return _digest(path.read_bytes())
    except OSError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
