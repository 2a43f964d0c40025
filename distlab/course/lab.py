"""Opens JupyterLab in a learner's folder: on this machine only, with its token.

    open_lab("distlab-lab", open_browser=False, port=8899)      # does not return

This JupyterLab calls nobody: no news, no word of newer versions, no catalogue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from distlab.environment import require_modules

# What opens first: the page with the next step, or in a folder without it the first lesson.
FIRST_PAGES = ("course.md", "notebooks/00_start_here.ipynb")
# Where in the learner's folder JupyterLab remembers which notebooks are open.
WORKSPACES = ".jupyter/workspaces"
_SETTINGS = Path(__file__).resolve().parents[1] / "_jupyter"

# What JupyterLab would fetch by itself: news, word of newer versions, the catalogue of extensions.
_QUIET = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)

# An exported notebook shows no code that is folded here: the code of an answer says the answer.
_EXPORT = (
    "--TagRemovePreprocessor.enabled=True",
    "--TagRemovePreprocessor.remove_input_tags=hide-input",
)

# At INFO some 20 lines stand above the address, which JupyterLab prints at any level.
_LOG = "--Application.log_level=WARN"

# The server's part of the panel on the left side; `_jupyter/labextensions` has the browser's part.
_PANEL = ("--ServerApp.jpserver_extensions=distlab.course.course_page=True",)


def lab_command(
    folder: Path,
    *,
    open_browser: bool = True,
    port: int | None = None,
    further: Sequence[str] = (),
    as_root: bool | None = None,
) -> list[str]:
    """Returns the command that starts JupyterLab in the folder."""
    pages = [page for page in FIRST_PAGES if (folder / page).is_file()]
    first = f"/tree/{pages[0]}" if pages else ""
    command = [sys.executable, "-m", "jupyterlab"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder.resolve()}"]
    command += [f"--LabApp.default_url=/lab{first}", *_QUIET, *_PANEL, *_EXPORT, _LOG]
    # Tabs of other work stay out, and each folder of the course remembers its own.
    command.append(f"--LabApp.workspaces_dir={folder.resolve() / WORKSPACES}")
    if not open_browser:
        command.append("--no-browser")
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if as_root if as_root is not None else getattr(os, "geteuid", lambda: 1)() == 0:
        command.append("--allow-root")  # else JupyterLab refuses to start in most containers
    return [*command, *further]


def lab_environ(environ: dict[str, str]) -> dict[str, str]:
    """Returns the environment for JupyterLab: our settings, and the kernel of this very Python.

    Kernels run our start-up file, if you have none of your own (`PYTHONSTARTUP`).
    """
    first = {
        # Searched before the user's own folders, which may have a different `python3` kernel.
        # Then ours, with the panel on the left side.
        "JUPYTER_PATH": [Path(sys.prefix) / "share" / "jupyter", _SETTINGS],
        # Switches off the extension that asks whether to fetch news, and shows Markdown as pages.
        "JUPYTER_CONFIG_PATH": [_SETTINGS],
    }
    changed = {
        name: os.pathsep.join([*map(str, paths), *filter(None, [environ.get(name)])])
        for name, paths in first.items()
    }
    startup = {
        "PYTHONSTARTUP": str(Path(__file__).resolve().parents[1] / "_jupyter" / "startup.py")
    }
    return {**startup, **environ, **changed}


def open_lab(
    folder: Path, *, open_browser: bool = True, port: int | None = None, further: Sequence[str] = ()
) -> NoReturn:
    """Becomes JupyterLab, so that Ctrl-C and the exit code are its own."""
    check_jupyterlab()
    command = lab_command(folder, open_browser=open_browser, port=port, further=further)
    environ = lab_environ(dict(os.environ))
    sys.stdout.flush()
    if os.name == "nt":  # there exec returns to the prompt at once, with both reading the keyboard
        sys.exit(subprocess.run(command, env=environ, check=False).returncode)
    os.execve(command[0], command, environ)


def check_jupyterlab() -> None:
    """Raises where JupyterLab is not installed."""
    require_modules("distlab lab", "jupyterlab")
