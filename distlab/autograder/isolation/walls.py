"""Walls of the kernel around a learner's code: what it can't reach is not there.

    if reason := missing_walls():             # "" where all walls can be built
        ...
    unshare()                                 # in a process that only forks the next one
    build_root(Path.cwd(), writable_bytes=10**8)   # in that one, process 1 of the new namespaces
    restrict(WRITABLE)                        # in the learner's process, for good

Namespaces of users, mounts, processes and the network show a learner's code a file system with
Python, its packages and a folder of its own, no other process, and a network that ends at its own
loopback. Landlock then makes everything but that folder read-only, and no capability is left. No
part of it needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import site
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

import distlab
from distlab.cluster.isolation import enter_user_namespace, raise_loopback

# Nothing else may lie below what an answer writes, so it is in no folder that a system has.
HOME, SHARED_MEMORY = Path("/answer"), Path("/dev/shm")
TEMPORARY = HOME / ".tmp"
WRITABLE = (HOME, SHARED_MEMORY)
_MOST_FILES = 10_000

# Numbers of Linux, the same on all processors.
_NEW_MOUNTS, _NEW_IPC = 0x00020000, 0x08000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_BIND, _MOVE, _RECURSIVE, _PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
_NO_SET_ID, _NO_DEVICES = 2, 4
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PARENT_DEATH_SIGNAL, _SET_FILTER, _NO_NEW_PRIVILEGES = 1, 22, 38
_SET_MOUNT, _HERE, _AND_BELOW, _READ_ONLY = 442, -100, 0x8000, 1

# System calls that know no namespace: keys of the session, memory that belongs to no process (of
# System V, and files without a name), and io_uring, which makes calls that no filter sees. After
# the machine's number in the kernel and that of `socket`, they are: shmget, add_key, request_key,
# keyctl, memfd_create, io_uring_setup and memfd_secret.
_FORBIDDEN = {
    "x86_64": (0xC000003E, 41, (29, 248, 249, 250, 319, 425, 447)),
    "aarch64": (0xC00000B7, 198, (194, 217, 218, 219, 279, 425, 447)),
}
_FAMILIES = (1, 2, 10, 16)  # of sockets: UNIX, both of IP, and netlink; others reach the host
_FIRST_OF_X32 = 0x40000000  # the same calls by other numbers

# Rights of Landlock, by the version that knows them.
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_SIGNALS_AND_ABSTRACT_SOCKETS = 3

# What a clone has in a lesson's folder, and a wheel has not.
_SOURCES = ("lesson.py", "exercise.py", "claims.md", "__pycache__")
_DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom"))
# Of the system: libraries and commands, what the C library looks up, and the list of processors.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/sys/devices/system")
_SETTINGS = (
    *("ld.so.cache", "localtime", "hosts", "host.conf", "nsswitch.conf", "passwd", "group"),
    *("protocols", "services", "mime.types", "alternatives", "ssl/certs"),
)


def missing_walls() -> str:
    """Returns why this system builds no such walls; "" if it does."""
    return _probed() if sys.platform == "linux" else f"{sys.platform} has none"


@functools.cache
def _probed() -> str:
    with tempfile.TemporaryDirectory(prefix="distlab-") as folder:
        probe = subprocess.run(
            [sys.executable, "-m", __name__], cwd=folder, capture_output=True, text=True
        )
    last = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
    return last if probe.returncode else ""


def unshare() -> None:
    """Gives this process, which has one thread, namespaces; its children are in a new one."""
    enter_user_namespace(_NEW_MOUNTS | _NEW_PROCESSES | _NEW_NETWORK | _NEW_IPC)


def end_with_parent() -> None:
    """Asks the kernel to end this process when its parent ends."""
    if sys.platform == "linux":
        _call("prctl", ctypes.c_int(_PARENT_DEATH_SIGNAL), ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def build_root(folder: Path, *, writable_bytes: int) -> None:
    """Makes a new root, of which a learner's code needs all; runs as process 1 of its namespace."""
    if any(path.is_relative_to(HOME) for path in _readable()):
        raise OSError(f"Python or distlab is below {HOME}, where answers write")
    raise_loopback()
    _mount(None, Path("/"), None, _RECURSIVE | _PRIVATE)
    options = f"mode=755,size={writable_bytes},nr_inodes={_MOST_FILES}"
    _mount("tmpfs", folder, "tmpfs", _NO_SET_ID | _NO_DEVICES, options)
    for place in (TEMPORARY, SHARED_MEMORY, Path("/proc")):
        _inside(folder, place).mkdir(parents=True)
    _mount("proc", folder / "proc", "proc", _NO_SET_ID | _NO_DEVICES)
    bound: set[Path] = set()
    for path in (*_readable(), *_DEVICES):
        _bind(path, folder, bound)
    with contextlib.suppress(OSError):  # no namespace of its own gives it capabilities again
        Path(folder, "proc/sys/user/max_user_namespaces").write_text("0")
    _copy_font_cache(_inside(folder, HOME))
    os.chdir(folder)
    _mount(str(folder), Path("/"), None, _MOVE)
    os.chroot(".")
    os.chdir(HOME)


def restrict(writable: Iterable[Path]) -> None:
    """Takes from this process and all that it starts what a learner's code doesn't need.

    Landlock knows no folders to hide: names of files can be listed, and only the rest is closed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _call("prctl", ctypes.c_int(_NO_NEW_PRIVILEGES), ctypes.c_ulong(1), 0, 0, 0)
    _drop_capabilities()
    _forbid_calls()
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        raise _last_error("Landlock")
    rights = sum(bits for since, bits in _RIGHTS.items() if since <= version)
    scope = _SIGNALS_AND_ABSTRACT_SOCKETS if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(_CREATE_RULESET, struct.pack("QQQ", rights, 0, scope), size, 0)
    if rules < 0:
        raise _last_error("Landlock")
    look = _EXECUTE | _READ_FILE | _READ_FOLDER
    given = [(Path("/"), _READ_FOLDER)]
    given += [(path, look) for path in (*_readable(), Path("/proc"))]
    given += [(path, _WRITE_FILE | _READ_FILE) for path in _DEVICES]
    given += [(path, rights) for path in writable]
    for path, wanted in given:
        if not path.exists():
            continue
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = wanted if path.is_dir() else wanted & _OF_FILES & rights
        if libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, fd), 0):
            raise _last_error(f"Landlock for {path}")
        os.close(fd)
    if libc.syscall(_RESTRICT_SELF, rules, 0):
        raise _last_error("Landlock")
    os.close(rules)


@functools.cache
def _readable() -> tuple[Path, ...]:
    """Returns what a learner's code may read, beside its own folder: Python, and distlab."""
    packages = [path for path in map(Path, sys.path) if path.name.endswith("-packages")]
    python = (sys.base_prefix, sys.prefix, sysconfig.get_path("stdlib"), sys.executable)
    paths = [*map(Path, (*_SYSTEM, *python)), *packages, Path(site.getusersitepackages())]
    paths += [Path("/etc", name) for name in _SETTINGS]
    paths += _package()
    return tuple(path for path in paths if os.path.exists(path))  # noqa: PTH110 - False for what may not be seen


def _package() -> list[Path]:
    """Returns distlab in parts, but not the sources of lessons: an exercise's has its answers."""
    package = Path(str(distlab.__file__)).resolve().parent
    lessons = [*(package / "course").glob("lesson_*")]
    opened = {package, package / "course", *lessons}
    parts = {part for folder in opened for part in folder.iterdir()} - opened
    sources = {lesson / name for lesson in lessons for name in _SOURCES}
    return sorted(parts - sources)


def _bind(path: Path, root: Path, bound: set[Path]) -> None:
    """Makes a path be at the same place in a new root, and its symbolic links as links."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            link, target = _inside(root, part), part.readlink()
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target)
            whole = os.path.normpath(part.parent / target / path.relative_to(part))
            return _bind(Path(whole), root, bound)
    if bound.isdisjoint((path, *path.parents)) and path.exists():
        place = _inside(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(exist_ok=True) if path.is_dir() else place.touch()
        _mount(str(path), place, None, _BIND | _RECURSIVE)
        _make_read_only(place)
        bound.add(path)
    return None


def _make_read_only(place: Path) -> None:
    """Makes a mount read-only: Landlock knows no rights to a file's mode, times and attributes."""
    wanted = struct.pack("4Q", _READ_ONLY, 0, 0, 0)
    arguments = (_HERE, os.fsencode(place), _AND_BELOW, wanted, len(wanted))
    if ctypes.CDLL(None, use_errno=True).syscall(_SET_MOUNT, *arguments):
        raise _last_error(f"read-only {place}")


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _copy_font_cache(home: Path) -> None:
    """Copies the cache of fonts: without it, each import of Keras looks for them for seconds."""
    to = home / ".cache" / "matplotlib"
    to.mkdir(parents=True)
    with contextlib.suppress(OSError, RuntimeError):  # no home, or that of another user
        for cache in (Path.home() / ".cache" / "matplotlib").glob("fontlist*.json"):
            shutil.copy(cache, to)


def _drop_capabilities() -> None:
    header = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
    _call("capset", header, struct.pack("6I", *[0] * 6))


def _forbid_calls() -> None:
    """Refuses system calls that know no namespace, from now on and in all that is started."""
    if (known := _FORBIDDEN.get(os.uname().machine)) is None:
        return
    kernel, socket_call, forbidden = known

    def load(offset: int) -> bytes:
        return struct.pack("HBBI", 0x20, 0, 0, offset)

    def unless(value: int, test: int = 0x15) -> bytes:  # equal to it: the next one is left out
        return struct.pack("HBBI", test, 1, 0, value)

    def when(value: int, test: int = 0x15) -> bytes:  # equal to it; 0x35: or above
        return struct.pack("HBBI", test, 0, 1, value)

    allow, refuse = (struct.pack("HBBI", 6, 0, 0, code) for code in (0x7FFF0000, 0x50001))
    parts = [load(4), unless(kernel), refuse, load(0), when(_FIRST_OF_X32, 0x35), refuse]
    parts += [part for number in forbidden for part in (when(number), refuse)]
    parts += [unless(socket_call), allow, load(16)]  # its first argument
    parts += [part for family in _FAMILIES for part in (when(family), allow)]
    parts.append(refuse)
    program = ctypes.create_string_buffer(b"".join(parts))
    described = struct.pack("HP", len(parts), ctypes.addressof(program))
    _call("prctl", ctypes.c_int(_SET_FILTER), ctypes.c_ulong(2), described, 0, 0)


def _mount(
    source: str | None, target: Path, kind: str | None, flags: int, options: str = ""
) -> None:
    names = (os.fsencode(name) if name else None for name in (source, target, kind))
    _call("mount", *names, ctypes.c_ulong(flags), os.fsencode(options), about=f"mount {target}")


def _call(name: str, *arguments: object, about: str = "") -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise _last_error(about or name)


def _last_error(about: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{about}: {os.strerror(number)}")


def _probe() -> None:
    """Builds the walls around a child of this process; raises where it can't."""
    unshare()
    child = os.fork()
    if not child:
        build_root(Path.cwd(), writable_bytes=10**6)
        restrict(WRITABLE)
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    _probe()
