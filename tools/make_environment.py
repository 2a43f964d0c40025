"""Makes `.venv` with distlab in it, once; run again it does nothing.

    python3 tools/make_environment.py --extras lab

uv does the work where it is on PATH, else venv and pip. Standard library only, and written in
the syntax of Python 3.6, so that an old Python can still say that it is too old.
"""

import argparse
import collections
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.13", "3.12", "3.11")  # as in pyproject.toml, held by a test
STAMP = ".distlab-environment.json"  # in .venv: says that it is ours, and whether it is whole

# What uv, pip and venv write when they fail, and what helps.
ADVICE = {
    r"no space left": "free 5 GB of disk, then run the same command again",
    r"ensurepip|no module named '?(venv|pip)": "sudo apt install python3-venv (Debian, Ubuntu), or"
    " put uv on PATH; then run the same command again",
    r"from versions: none|connection|connect (to|error)|name resolution|name or service|dns error"
    r"|unreachable|no route|timed out|sending request|failed to fetch|certificate": "the package"
    " index cannot be reached: check the network; behind a proxy set HTTPS_PROXY; for an index of"
    " your own set PIP_INDEX_URL (uv: UV_INDEX_URL, or ENV_ARGS=--no-uv)",
    "": "read the lines above; if a version is missing there, the index may be out of date",
}


class Trouble(Exception):
    """What stops the making, in the form of distlab's own errors."""

    def __init__(self, asked, found, do):
        super().__init__(f"{asked}\n  found: {found}\n  to do: {do}")


def version_of(python):
    """Returns "3.11.7", or None where this Python does not run, as a version manager's stub."""
    code = "import sys; print(*sys.version_info[:3], sep='.')"
    try:
        printed = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return printed.decode().strip()


def pick_python(asked=None):
    """Returns the path and version of a supported Python: `python3`, else the newest on PATH."""
    found = []
    for name in [asked] if asked else ["python3", "python", *("python" + v for v in SUPPORTED)]:
        path = shutil.which(name)
        version = version_of(path) if path else None
        if version and version.rpartition(".")[0] in SUPPORTED:
            return path, version
        if path:
            found.append(name + " is " + version if version else path + " does not run")
    raise Trouble(
        "make .venv with " + (asked or "a Python on PATH"),
        ", ".join(found) or "no Python of that name",
        f"install one of Python {', '.join(SUPPORTED)}, which TensorFlow supports (python.org, your"
        " package manager, or `uv python install 3.12`), and name it: make PYTHON=python3.12 ...",
    )


def read_stamp(venv):
    """Returns what the stamp says; {} where there is none that can be read."""
    try:
        return json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}


def run(*command):
    """Runs a command and shows what it writes; a failure is raised with its last lines."""
    print("$ " + " ".join(command), flush=True)
    last = collections.deque(maxlen=12)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )
    for line in process.stdout:
        print("  " + line.rstrip(), flush=True)
        last.append(line.rstrip())
    if process.wait():
        text = "\n".join(last).lower()
        raise Trouble(
            "install distlab and what it needs",
            "\n    ".join([command[0] + " failed; its last lines:", *last]),
            next(advice for sign, advice in ADVICE.items() if re.search(sign, text)),
        )


def make_environment(root, extras, asked=None, use_uv=True, adopt=False):
    """Brings `.venv` to what the extras ask for, and returns whether there was anything to do."""
    venv = root / ".venv"
    own, stamp = venv / "bin" / "python", read_stamp(venv)
    away = f"remove it (rm -rf {venv}), then run the same command again"
    if venv.exists() and not stamp and not adopt and (venv.is_file() or any(venv.iterdir())):
        raise Trouble(
            "make .venv",
            f"{venv} is there, and this script did not make it",
            away + "; or let it install there: make env ENV_ARGS=--adopt",
        )
    # An environment holds absolute paths: after a move of the clone its programs are another's.
    whole = stamp.get("state") == "ready" and stamp["root"] == str(root) and own.exists()
    if whole and asked and pick_python(asked)[1] != stamp["python"]:
        raise Trouble(
            "make .venv with " + asked,
            f"{venv} was made with Python {stamp['python']}",
            away,
        )
    files = (root / "pyproject.toml", root / "constraints.txt")
    fingerprint = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    if whole and stamp["fingerprint"] == fingerprint and set(extras) <= set(stamp["extras"]):
        return False
    if stamp and not whole:
        print(f"{venv} is unfinished, or it moved: making it anew")
        shutil.rmtree(str(venv))
    is_new = not own.exists()
    python, version = pick_python(asked if is_new else str(own))
    uv = shutil.which("uv") if use_uv else None
    stamp = {
        "state": "installing",
        "root": str(root),
        "extras": sorted({*extras, *stamp.get("extras", [])}),
        "python": version,
        "fingerprint": fingerprint,
    }
    # The stamp comes first: whatever interrupts the rest, the folder is known to be ours.
    venv.mkdir(exist_ok=True)
    (venv / STAMP).write_text(json.dumps(stamp))
    if is_new and uv:
        run(uv, "venv", "--quiet", "--allow-existing", "--seed", "--python", python, str(venv))
    elif is_new:
        run(python, "-m", "venv", str(venv))
    pip = [uv, "pip", "install", "--python", str(own)] if uv else [str(own), "-m", "pip", "install"]
    what = f"{root}[{','.join(stamp['extras'])}]"
    run(*pip, "-c", str(root / "constraints.txt"), "-e", what)
    (venv / STAMP).write_text(json.dumps(dict(stamp, state="ready")))
    return True


def main(argv=None):
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Make .venv with distlab in it.")
    parser.add_argument("--extras", default="lab", help="extras of pyproject.toml, with commas")
    parser.add_argument("--python", help="the Python to use; else the best one on PATH")
    parser.add_argument("--no-uv", action="store_true", help="use venv and pip also where uv is")
    parser.add_argument("--adopt", action="store_true", help="install into a .venv made elsewhere")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(argv)
    root, extras = options.root.resolve(), options.extras.split(",")
    try:
        if make_environment(root, extras, options.python, not options.no_uv, options.adopt):
            print(".venv is ready")
    except Trouble as trouble:
        print(f"\n{trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the next run starts .venv anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
