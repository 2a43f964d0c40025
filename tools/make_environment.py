"""Makes `.venv` with distlab in it, once; run again it does nothing.

    python3 tools/make_environment.py --extras lab

uv does the work where it is on PATH, else venv and pip. Standard library only, and written in
the syntax of Python 3.6, so that an old Python can still say that it is too old.
"""

import argparse
import collections
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

OLDEST, NEWEST = (
    (3, 11),
    (3, 13),
)  # as in pyproject.toml, held by a test
GIGABYTE = 1024**3
FRESH_BYTES = 5 * GIGABYTE  # TensorFlow, JupyterLab and the downloads beside them
UPDATE_BYTES = 1 * GIGABYTE
STAMP = ".distlab-environment.json"  # in .venv: says that it is ours, and whether it is whole

# What uv and pip say of every package: a few hundred lines that nobody reads.
SILENT = (" + ", "Requirement already satisfied")

# What pip and uv write when they cannot reach their index, in lower case.
UNREACHABLE = (
    "connection refused",
    "(from versions: none)",
    "failed to establish a new connection",
    "name or service not known",
    "name resolution",
    "dns error",
    "network is unreachable",
    "no route to host",
    "timed out",
    "proxyerror",
    "cannot connect to proxy",
    "error sending request",
    "failed to fetch",
    "tcp connect error",
    "certificate verify failed",
    "invalid peer certificate",
)


class TroubleError(Exception):
    """What stops the making: asked, found and to do, as in distlab's own errors."""

    def __init__(self, asked, found, do):
        super().__init__(f"{asked}\n  found: {found}\n  to do: {do}")


class Machine:
    """All that is asked of the machine, in one place that a test can replace."""

    def which(self, name):
        """Returns the path of a program, or None."""
        return shutil.which(name)

    def free_bytes(self, folder):
        """Returns the free bytes of the disk that holds the folder."""
        return shutil.disk_usage(str(folder)).free

    def version_of(self, python):
        """Returns (major, minor, micro), or None where this Python does not run.

        A name on PATH proves little: a version manager may leave a stub there that only complains.
        """
        found = self._ask(python, "import sys; print(*sys.version_info[:3])")
        return None if found is None else tuple(int(part) for part in found.split())

    def imports(self, python, modules):
        """Returns whether this Python can import the modules."""
        return self._ask(python, "import " + modules) is not None

    def run(self, command):
        """Runs a command, shows what it writes, and returns its exit code and its last lines."""
        say("$ " + " ".join(command))
        last = collections.deque(maxlen=12)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
        )
        for line in process.stdout:
            if not line.startswith(SILENT):
                print("  " + line.rstrip(), flush=True)
            last.append(line.rstrip())
        return process.wait(), list(last)

    @staticmethod
    def _ask(python, code):
        try:
            answer = subprocess.run(
                [python, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                universal_newlines=True,
            )
        except OSError:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None


def say(text):
    """Prints one line at once."""
    print(text, flush=True)


def dotted(version):
    """Returns (3, 11, 7) as '3.11.7'."""
    return ".".join(str(part) for part in version)


def is_supported(version):
    """Returns whether TensorFlow has builds for this Python."""
    return OLDEST <= tuple(version[:2]) <= NEWEST


def pick_python(machine, asked=None):
    """Returns the path and version of the Python to use.

    Args:
        machine: The `Machine`.
        asked: The Python that was named; without it `python3`, else the newest supported on PATH.
    """
    newest_first = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    seen = []
    for name in [asked] if asked else ["python3", "python", *newest_first]:
        path = machine.which(name)
        version = machine.version_of(path) if path else None
        if version and is_supported(version):
            return path, version
        if version:
            seen.append(f"{name} is {dotted(version)}")
        elif path and (asked or name in ("python3", "python")):
            seen.append(f"{path} does not run")
    span = f"{dotted(OLDEST)} to {dotted(NEWEST)}"
    raise TroubleError(
        "make .venv with " + (asked or "a Python on PATH"),
        ", ".join(seen) or "no Python of that name",
        "TensorFlow supports Python {0}: install one (python.org, your package manager, or"
        " `uv python install {1}`), then name it: make PYTHON=python{1} ...".format(
            span, dotted((NEWEST[0], NEWEST[1] - 1))
        ),
    )


def check_disk(machine, folder, needed_bytes):
    """Raises where less than this is free."""
    free = machine.free_bytes(folder)
    if free < needed_bytes:
        raise TroubleError(
            f"install into {folder}",
            f"{free / GIGABYTE:.1f} GB of free disk",
            f"free {needed_bytes / GIGABYTE:.0f} GB: TensorFlow and JupyterLab take 3,"
            " the downloads the rest",
        )


def check_venv_module(machine, python, version):
    """Raises where this Python cannot make an environment (Debian packs that part separately)."""
    if not machine.imports(python, "venv, ensurepip"):
        raise TroubleError(
            "make .venv with " + python,
            "its venv module is incomplete: venv or ensurepip cannot be imported",
            f"sudo apt install python{dotted(version[:2])}-venv (Debian, Ubuntu), or put uv on"
            " PATH; then run the same command again",
        )


def fingerprint(root):
    """Returns a hash of all that decides what is installed."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def read_stamp(venv):
    """Returns what the stamp says; {} where there is none that can be read."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(venv, **stamp):
    """Writes the stamp in one step, so that it is never half there."""
    half = venv / (STAMP + ".new")
    half.write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n")
    half.replace(venv / STAMP)


def python_in(venv):
    """Returns the environment's Python."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_whole(root, venv):
    """Returns whether an earlier run came to its end, and all still lies where it was."""
    stamp = read_stamp(venv)
    # An environment holds absolute paths: after a move of the clone its programs are another's.
    moved = stamp.get("root") != str(root) or not python_in(venv).exists()
    return stamp.get("state") == "ready" and not moved


def is_ready(root, venv, extras):
    """Returns whether nothing has to be done. Starts no process, so it takes no time."""
    stamp = read_stamp(venv)
    return (
        is_whole(root, venv)
        and stamp.get("fingerprint") == fingerprint(root)
        and set(extras) <= set(stamp.get("extras", []))
    )


def check_ours(machine, venv, asked):
    """Raises where a `.venv` stands that this script did not make, or made with another Python."""
    stamp = read_stamp(venv)
    away = f"move it away or remove it (rm -rf {venv}), then run the same command again"
    if venv.is_symlink() or (venv.exists() and not venv.is_dir()):
        raise TroubleError("make .venv", f"{venv} is no folder", away)
    if venv.exists() and any(venv.iterdir()) and not stamp:
        raise TroubleError(
            "make .venv",
            f"{venv} is there, and this script did not make it",
            away + "; or let it install there: make env ENV_ARGS=--adopt",
        )
    if asked and stamp.get("python"):
        wanted = pick_python(machine, asked)[1]
        if dotted(wanted) != stamp["python"]:
            raise TroubleError(
                f"make .venv with {asked} ({dotted(wanted)})",
                "{} was made with Python {}".format(venv, stamp["python"]),
                away,
            )


def explain_failure(tool, lines):
    """Returns the trouble behind a failed install, from the tool's last lines."""
    shown = "\n    ".join([tool + " failed; its last lines:", *lines])
    text = "\n".join(lines).lower()
    if any(sign in text for sign in UNREACHABLE):
        setting = "UV_INDEX_URL" if tool == "uv" else "PIP_INDEX_URL"
        do = (
            "the package index cannot be reached. Check the network; behind a proxy set"
            f" HTTPS_PROXY; with an index of your own set {setting}"
        )
        if tool == "uv":
            do += "; if only pip is set up for it (uv does not read pip.conf): ENV_ARGS=--no-uv"
    elif "no space left" in text:
        do = "the disk is full: free 5 GB, then run the same command again"
    else:
        do = "read the lines above; if a version is missing there, the index may be out of date"
    return TroubleError("install distlab and what it needs", shown, do)


def make_empty(machine, venv, python, version, uv):
    """Makes the environment with nothing in it."""
    say(f"making {venv} with Python {dotted(version)} ({python})")
    if uv:
        command = [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(venv)]
    else:
        check_venv_module(machine, python, version)
        command = [python, "-m", "venv", str(venv)]
    # The stamp comes first: whatever interrupts the rest, the folder is known to be ours.
    venv.mkdir(exist_ok=True)
    write_stamp(venv, state="installing")
    code, lines = machine.run(command)
    if code:
        raise explain_failure("uv" if uv else "venv", lines)


def install(machine, root, venv, extras, uv):
    """Installs distlab, editable, with its extras, at the versions of constraints.txt."""
    python = str(python_in(venv))
    if uv:
        command = [uv, "pip", "install", "--python", python]
    else:
        if not machine.imports(python, "pip"):  # uv made it, and is gone now
            machine.run([python, "-m", "ensurepip", "--upgrade"])
        command = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    what = "{}[{}]".format(root, ",".join(extras))
    code, lines = machine.run([*command, "-c", str(root / "constraints.txt"), "-e", what])
    if code:
        raise explain_failure("uv" if uv else "pip", lines)


def make_environment(machine, root, extras, asked=None, use_uv=True, adopt=False):
    """Brings `.venv` to what the extras ask for.

    Args:
        machine: The `Machine`.
        root: The clone.
        extras: Names of extras in pyproject.toml. Those installed earlier stay.
        asked: The Python that was named, or None.
        use_uv: Whether uv may be used where it is found.
        adopt: Whether to install into a `.venv` that this script did not make.

    Returns:
        Whether there was anything to do.
    """
    venv = root / ".venv"
    if not adopt:
        check_ours(machine, venv, asked)
    if is_ready(root, venv, extras):
        return False
    uv = machine.which("uv") if use_uv else None
    stamp = read_stamp(venv)
    if stamp and not is_whole(root, venv):
        say(f"{venv} is unfinished, or the clone or its Python moved: making it anew")
        shutil.rmtree(str(venv))
    fresh = not python_in(venv).exists()
    check_disk(machine, root, FRESH_BYTES if fresh else UPDATE_BYTES)
    if fresh:
        python, version = pick_python(machine, asked)
        make_empty(machine, venv, python, version, uv)
    else:
        version = machine.version_of(str(python_in(venv)))
        if not version or not is_supported(version):
            pick_python(machine, str(python_in(venv)))
    extras = sorted(set(extras) | set(stamp.get("extras", [])))
    write_stamp(venv, state="installing", extras=extras, python=dotted(version))
    say("installing distlab[{}] (about 3 GB, once)".format(",".join(extras)))
    install(machine, root, venv, extras, uv)
    write_stamp(
        venv,
        state="ready",
        root=str(root),
        extras=extras,
        python=dotted(version),
        fingerprint=fingerprint(root),
    )
    return True


class OneAtATime:
    """Holds a lock on the clone, so that two `make` do not install into each other."""

    def __init__(self, root):
        self._root = root

    def __enter__(self):
        """Waits for the other, if there is one."""
        try:
            import fcntl
        except ImportError:  # Windows has none; there nobody runs two makes
            return
        # The folder itself is locked: no lock file that could be left behind.
        self._handle = os.open(str(self._root), os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another command is making .venv: waiting for it")
            fcntl.flock(self._handle, fcntl.LOCK_EX)

    def __exit__(self, *_):
        """Lets the next one in."""
        if hasattr(self, "_handle"):
            os.close(self._handle)


def main(argv=None, machine=None):
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Make .venv with distlab in it.")
    parser.add_argument("--extras", default="lab", help="extras of pyproject.toml, with commas")
    parser.add_argument("--python", help="the Python to use; else the best one on PATH")
    parser.add_argument("--no-uv", action="store_true", help="use venv and pip also where uv is")
    parser.add_argument("--adopt", action="store_true", help="install into a .venv made elsewhere")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(argv)
    extras = [name for name in options.extras.split(",") if name]
    start = time.time()
    try:
        with OneAtATime(options.root):
            made = make_environment(
                machine or Machine(),
                options.root.resolve(),
                extras,
                asked=options.python,
                use_uv=not options.no_uv,
                adopt=options.adopt,
            )
    except TroubleError as trouble:
        print(f"\n{trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the next run starts .venv anew", file=sys.stderr)
        return 130
    if made:
        say(f".venv is ready ({time.time() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
