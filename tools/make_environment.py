"""Makes `.venv` with distlab in it, once; run again it does nothing.

    python3 tools/make_environment.py --extras lab

uv does the work if it is on PATH, else venv and pip. Standard library only, and in the syntax of
Python 3.6, so that an old Python can still say that it is too old.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUPPORTED = ("3.13", "3.12", "3.11")  # as in pyproject.toml, held by a test
STAMP = ".distlab-environment.json"  # in .venv, once all is installed


def version_of(python):
    """Returns "3.11.7", or None if this Python does not run, as a version manager's stub."""
    code = "import sys; print(*sys.version_info[:3], sep='.')"
    try:
        printed = subprocess.check_output([str(python), "-c", code], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return printed.decode().strip()


def pick_python(asked=None):
    """Returns the path of a supported Python: `python3`, else the newest one on PATH."""
    found = []
    for name in [asked] if asked else ["python3", "python", *("python" + v for v in SUPPORTED)]:
        path = shutil.which(name)
        version = version_of(path) if path else None
        if version and version.rpartition(".")[0] in SUPPORTED:
            return path
        if path:
            found.append(name + " is " + version if version else path + " does not run")
    return stop(
        "make .venv with " + (asked or "a Python on PATH"),
        ", ".join(found) or "no Python of that name",
        f"install one of Python {', '.join(SUPPORTED)}, which TensorFlow supports (python.org, your"
        " package manager, or `uv python install 3.12`), and name it: make PYTHON=python3.12 ...",
    )


def stop(asked, found, do):
    """Ends the script with an error in the form of distlab's own."""
    sys.exit(f"\n{asked}\n  found: {found}\n  to do: {do}")


def run(what, *command):
    """Runs a command under one line with its seconds; what it printed is shown if it fails."""
    began = time.time()
    print(f"== {what}", end="", flush=True)
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        while process.poll() is None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if sys.stdout.isatty():
                    print(f"\r== {what}: {time.time() - began:.0f} s", end="", flush=True)
        code = process.returncode
        again = f"\r== {what}" if sys.stdout.isatty() else ""
        print(f"{again}: {'failed after' if code else 'done in'} {time.time() - began:.0f} s")
        if code:
            printed.seek(0)
            print("$ " + " ".join(command) + "\n" + printed.read())
    if code:
        stop(
            "install distlab and what it needs",
            f"{command[0]} ended with {code}; the lines above say why",
            "free 5 GB of disk if it is full; check the network, and set HTTPS_PROXY behind a proxy"
            " or PIP_INDEX_URL (uv: UV_INDEX_URL) for an index of your own; where venv or ensurepip"
            " is missing, sudo apt install python3-venv; then run the same command again",
        )


def has_pip(python):
    """Whether a Python can install packages by pip."""
    return subprocess.call([python, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0


def make_environment(root, extras, asked=None, use_uv=True):
    """Brings `.venv` to what the extras ask for."""
    venv = root / ".venv"
    own, stamp = venv / "bin" / "python", venv / STAMP
    made = json.loads(stamp.read_text()) if stamp.exists() else {}
    if made and made["root"] != str(root):  # its programs hold the path that the clone had
        print(f"{venv} moved with its clone: making it anew")
        shutil.rmtree(str(venv))
        made = {}
    if asked and own.exists() and version_of(own) != version_of(pick_python(asked)):
        stop(
            "make .venv with " + asked,
            f"{venv} has Python {version_of(own)}",
            f"remove it (rm -rf {venv}), then run the same command again",
        )
    files = (root / "pyproject.toml", root / "constraints.txt")
    wanted = {
        "root": str(root),
        "extras": sorted({*extras, *made.get("extras", [])}),
        "fingerprint": hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest(),
    }
    if made == wanted and own.exists():
        return
    uv = shutil.which("uv") if use_uv else None
    if not own.exists() or not (
        uv or has_pip(str(own))
    ):  # uv, or a making that was cut off, leaves none
        python = pick_python(asked)
        by_uv = [uv, "venv", "--quiet", "--allow-existing", "--seed", "--python", python, str(venv)]
        by_venv = [python, "-m", "venv", str(venv)]
        run(f"making .venv with Python {version_of(python)}", *(by_uv if uv else by_venv))
    pip = [uv, "pip", "install", "--python", str(own)] if uv else [str(own), "-m", "pip", "install"]
    names = ",".join(wanted["extras"])
    installing = f"installing distlab[{names}] and what it needs into .venv"
    run(installing, *pip, "-c", str(files[1]), "-e", f"{root}[{names}]")
    stamp.write_text(json.dumps(wanted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make .venv with distlab in it.")
    parser.add_argument("--extras", default="lab", help="extras of pyproject.toml, with commas")
    parser.add_argument("--python", help="the Python to use; else the best one on PATH")
    parser.add_argument("--no-uv", action="store_true", help="use venv and pip even if uv is there")
    options = parser.parse_args()
    clone = Path(__file__).resolve().parent.parent
    make_environment(clone, options.extras.split(","), options.python, not options.no_uv)
