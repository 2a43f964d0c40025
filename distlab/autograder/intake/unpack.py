"""Lists the files that a teacher gave, in folders and zips, and follows nothing out of them.

top, entries = list_entries(Path("class.zip"), unpacked)
entries[0].path, entries[0].shown    # where its bytes are, and where the teacher finds it

A zip is unpacked into a temporary folder, as is a zip inside of it. Of a zip come the notebooks and
the zips; other files are there with their names alone, and so take no room.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from distlab.autograder.intake.names_beside import names_learners
from distlab.course.checks.registry import stems
from distlab.errors import InvalidArgument

MOST_FILES = 200_000
MOST_UNPACKED = 1_000_000_000  # bytes of one zip
EMPTY = "an empty folder"
HIDDEN = "a folder with files of systems only, such as .ipynb_checkpoints"
_MOST_MEMBERS = 50_000  # files of one zip
_MOST_NESTED = 2
_MOST_DEEP = 100
_LONGEST_NAME = 1_000  # letters, of a file with its folders in a zip
_CHUNK = 2**20
# Of bytes that are not deflated, zipfile unpacks all at once: 40 may be a block of bzip2 of 900 kB.
_CHUNK_OF_OTHERS = 2**12
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError)
_TOO_NESTED = "a zip inside a zip inside a zip"
_LESSONS, _EXERCISES = "notebooks", "exercises"  # the folders of a course that was laid
# Checkpoints of Jupyter, marks of systems, and what nbgrader writes beside each notebook.
_NOBODYS = (".", "__MACOSX", "timestamp.txt")
_ENVIRONMENT = "pyvenv.cfg"
_NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json")  # as some browsers name what they save


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file, or a folder in which nothing is graded, and why."""

    path: Path
    shown: Path
    problem: str = ""
    is_folder: bool = False


@dataclass
class Room:
    """The bytes that a zip may still take, with all zips inside of it."""

    left: int


def is_notebook(path: Path | PurePosixPath) -> bool:
    """Whether a file's name is a notebook's."""
    return path.name.lower().endswith(_NOTEBOOKS)


def is_zip(path: Path | PurePosixPath) -> bool:
    """Whether a file's name is a zip's."""
    return path.suffix.lower() == ".zip"


def list_entries(given: Path, unpacked: Path) -> tuple[Entry, list[Entry]]:
    """Returns the folder of the class and all files in it, in a fixed order.

    Where the only thing in a folder or zip is another that holds learners, the class is in there.
    """
    top, entries, nested = Entry(path=given, shown=given), [], 0
    only: Path | None = given
    while only is not None:
        shown = top.shown / only.name if only != given else given
        if only.is_file():
            if nested == _MOST_NESTED:
                raise _refusal(shown, _TOO_NESTED)
            folder = Path(tempfile.mkdtemp(dir=unpacked))
            left_out = unpack(only, folder, Room(MOST_UNPACKED), shown=shown)
            if only != given and not (_is_class(folder) or _only_in(folder)):
                break  # a learner's own
            nested += 1
            entries += left_out
            only = folder
        top = Entry(path=only, shown=shown)
        only = _only_in(only)
    walked = _walk(top, unpacked, min(nested, 1))  # zips around the class don't count
    entries += itertools.islice(walked, MOST_FILES + 1)
    if len(entries) > MOST_FILES:
        raise InvalidArgument(
            asked=f"grade {given}",
            found=f"more than {MOST_FILES:,} files",
            do="choose the folder that holds the submissions alone",
        )
    return top, entries


def unpack(archive: Path, to: Path, room: Room, *, shown: Path) -> list[Entry]:
    """Unpacks a zip, and returns what was left out of it."""
    left_out = []
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > _MOST_MEMBERS:
                raise _refusal(shown, f"a zip of more than {_MOST_MEMBERS:,} files")
            for member in members:
                name = PurePosixPath(member.filename.replace("\\", "/"))
                if hidden := _hidden_part(name):
                    with contextlib.suppress(ValueError, OSError):
                        _check_member(member, name)
                        (to / hidden).mkdir(parents=True, exist_ok=True)  # and nothing in it
                    continue
                try:
                    _check_member(member, name)
                    _unpack_member(opened, member, to / name, room)
                except (ValueError, OSError, *_DAMAGE) as problem:
                    is_plain = not name.is_absolute() and ".." not in name.parts
                    is_plain = is_plain and len(str(name)) < _LONGEST_NAME
                    place = shown / (name if is_plain else name.name[-_LONGEST_NAME:])
                    left_out.append(Entry(path=place, shown=place, problem=_says(problem)))
                if room.left < 0:
                    shutil.rmtree(to)
                    size = f"{MOST_UNPACKED:,}"
                    raise _refusal(shown, f"a zip with more than {size} bytes of notebooks")
    except (OSError, *_DAMAGE) as problem:
        raise _refusal(shown, f"a zip that cannot be read ({_says(problem)})") from problem
    return left_out


def _says(problem: Exception) -> str:
    return (problem.strerror or "") if isinstance(problem, OSError) else str(problem)


def _refusal(shown: Path, found: str) -> InvalidArgument:
    return InvalidArgument(
        asked=f"unpack {shown}", found=found, do="unpack it yourself, and grade the folder"
    )


def _check_member(member: zipfile.ZipInfo, name: PurePosixPath) -> None:
    """Raises for a file of a zip that may lead out of it, or is locked."""
    if name.is_absolute() or ".." in name.parts or str(name)[1:2] == ":":
        raise ValueError(f"a name that leads out of the zip: {name}")
    if len(str(name)) >= _LONGEST_NAME:
        raise ValueError(f"a name of {len(str(name)):,} letters")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError("a link, which may lead anywhere")
    if member.flag_bits & 1:
        raise ValueError("locked with a password")


def _hidden_part(name: PurePosixPath) -> PurePosixPath | None:
    """Returns a path as far as its first part that is nobody's; None if it has no such part."""
    for path in reversed((name, *name.parents)):
        if path.name != ".." and path.name.startswith(_NOBODYS):
            return path
    return None


def _unpack_member(opened: zipfile.ZipFile, member: zipfile.ZipInfo, to: Path, room: Room) -> None:
    """Writes a file of a zip, as far as there is room."""
    if member.is_dir():
        to.mkdir(parents=True, exist_ok=True)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    if not (is_notebook(to) or is_zip(to) or names_learners(to.name)):
        to.touch()
        return
    try:
        with to.open("wb") as file, opened.open(member) as packed:
            is_deflated = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            size = _CHUNK if is_deflated else _CHUNK_OF_OTHERS
            while room.left >= 0 and (chunk := packed.read(size)):
                room.left -= file.write(chunk)
    except BaseException:
        to.unlink(missing_ok=True)
        raise


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """Returns what is in a folder, files first."""
    with os.scandir(folder) as listed:
        entries = [entry for entry in listed if not entry.name.startswith(_NOBODYS)]
    return sorted(entries, key=lambda entry: (entry.is_dir(), entry.name))


def _only_in(folder: Path) -> Path | None:
    """Returns the only zip in a folder, or the only folder if it holds learners."""
    with contextlib.suppress(OSError):
        entries = _listed(folder)
        if len(entries) == 1 and not entries[0].is_symlink():
            only = Path(entries[0].path)
            if _is_class(only) if only.is_dir() else is_zip(only):
                return only
    return None


def _is_class(folder: Path) -> bool:
    """Whether a folder holds learners, so that it is no learner's own."""
    paths = [Path(entry.path) for entry in _listed(folder)]
    notebooks = [path for path in paths if is_notebook(path)]
    if notebooks:  # of a class each has a learner's name, of a learner each has an exercise's
        names = [path.name.rpartition(" - ")[0] or path.name for path in notebooks]
        return len(names) > 1 and not any(stem in name for stem in stems() for name in names)
    learners = [path for path in paths if path.is_dir() or is_zip(path)]
    return len(learners) > 1 and _EXERCISES not in {path.name for path in learners}


def _walk(top: Entry, unpacked: Path, nested: int, room: Room | None = None) -> Iterator[Entry]:
    """Yields regular files; links are named, and not followed."""

    def folder(path: Path, shown: Path, problem: str) -> Entry:
        return Entry(path=path, shown=shown, problem=problem, is_folder=True)

    try:
        entries = _listed(top.path)
    except OSError as problem:
        yield folder(top.path, top.shown, f"cannot be read ({problem.strerror})")
        return
    names = {entry.name for entry in entries}
    if not entries:
        yield folder(top.path, top.shown, HIDDEN if any(os.scandir(top.path)) else EMPTY)
    if _ENVIRONMENT in names:
        yield folder(top.path, top.shown, "an environment of Python")
        return
    for entry in entries:
        path, shown = Path(entry.path), top.shown / entry.name
        if entry.is_symlink():
            yield Entry(path=path, shown=shown, problem="a link, which may lead anywhere")
        elif {_LESSONS, _EXERCISES} <= names and entry.name == _LESSONS:
            yield folder(path, shown, "the lessons, in which nothing is graded")
        elif len(shown.parts) > _MOST_DEEP:
            yield folder(path, shown, f"more than {_MOST_DEEP} folders deep")
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(Entry(path=path, shown=shown), unpacked, nested, room)
        elif not entry.is_file(follow_symlinks=False):
            yield Entry(path=path, shown=shown, problem="neither a file nor a folder")
        elif not is_zip(path):
            yield Entry(path=path, shown=shown)
        elif nested == _MOST_NESTED:
            yield folder(path, shown, _TOO_NESTED)
        else:
            inside = Path(tempfile.mkdtemp(dir=unpacked))
            own = room or Room(MOST_UNPACKED)
            try:
                yield from unpack(path, inside, own, shown=shown)
            except InvalidArgument as problem:
                yield folder(path, shown, problem.found)
            else:
                yield from _walk(Entry(path=inside, shown=shown), unpacked, nested + 1, own)
