"""A real browser for tests: the system's Chromium, and a JupyterLab of `distlab lab` to look at.

    with open_browser() as browser, open_lab(folder) as address: ...

Both listen on loopback, and nothing else is reached. Where there is no Chromium, the test is
skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from tests.support.limits import HANG_SECS
from tests.support.reporting import NO_BROWSER

_NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_MILLISECS = 1000 * HANG_SECS


def chromium() -> str:
    """The path of the system's Chromium; without one the test is skipped."""
    return _installed() or pytest.skip(f"{NO_BROWSER} found")


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def how_to_install() -> str:
    """What this machine's user types to get a Chromium."""
    if sys.platform == "darwin":
        return "brew install chromium"
    if not shutil.which("apt-get"):
        return "install Chromium by your system's package manager"
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install --yes chromium"


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Yields a headless Chromium that calls nobody of its own accord."""
    path = chromium()
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    quiet += ["--disable-component-update", "--no-first-run", "--disable-dev-shm-usage"]
    expect.set_options(timeout=LIMIT_MILLISECS)
    with sync_playwright() as playwright:
        options = {"executable_path": path, "args": quiet, "timeout": LIMIT_MILLISECS}
        browser = playwright.chromium.launch(**options)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[Any]:
    """Yields an empty page, which notes the addresses that it asks for in `page.asked`."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(LIMIT_MILLISECS)
    page.asked, page.failed = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    # Going to the next page aborts what the last one still asks for.
    page.on(
        "requestfailed",
        lambda request: request.failure == "net::ERR_ABORTED" or page.failed.append(request.url),
    )
    yield page
    context.close()


def violations(page: Any, *rules: str) -> list[str]:
    """What axe-core finds wrong on the page: its rules for WCAG 2 A and AA, or only those named."""
    asked = {"runOnly": list(rules) or ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
    broken = Axe().run(page, options=asked).response["violations"]
    parts = [part for rule in broken for part in rule["nodes"]]
    return [f"{page.url}: {part['html']}: {part['failureSummary']}" for part in parts]


@contextlib.contextmanager
def open_lab(folder: Path) -> Iterator[str]:
    """Yields the address, with its token, of a JupyterLab with the course laid into a folder."""
    chromium()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "distlab.cli", "lab", str(folder), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env=_own_settings(folder.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _address(process)
    finally:
        _end(process)


def _own_settings(base: Path) -> dict[str, str]:
    """JupyterLab with no settings but ours: not those of whoever runs the tests."""
    places = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    places += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]
    # All cells stay in the page, so that each can be asked for by its place.
    tracker = base / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / "notebook-extension"
    tracker.mkdir(parents=True)
    (tracker / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    return {**os.environ, **{place: str(base / place) for place in places}}


def _address(process: subprocess.Popen[str]) -> str:
    """Reads what JupyterLab says until it names its address, then keeps its pipe empty."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if address := re.search(r"http://127\.0\.0\.1:\d+/\S*token=\w+", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return address[0]
    raise AssertionError("JupyterLab ended: " + "".join(said))


def _end(process: subprocess.Popen[str]) -> None:
    """Ends JupyterLab kindly, so that it ends its kernels, and then whatever is left."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(timeout=HANG_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = [child for child in started if child.is_running()]
    for child in left:
        child.kill()
    psutil.wait_procs(left, timeout=HANG_SECS)


if __name__ == "__main__" and not _installed():
    skipped = "the tests in a browser will be skipped"
    sys.stdout.write(f"== {NO_BROWSER}: {skipped}. To run them: {how_to_install()}\n")
