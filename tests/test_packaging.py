"""The sdist and the wheel: what is in them, and that `distlab lab` works from the wheel alone."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import distlab
from distlab.course.learner_folder import PAGES, without_outputs
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: hatchling is installed here, so nothing is fetched.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_the_wheel_carries_the_course_and_nothing_else(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
    pages = [page for page in PAGES if (ROOT / page).is_file()]
    notebooks = [
        f"{folder}/{path.name}"
        for folder in ("notebooks", "exercises")
        for path in (ROOT / folder).glob("*.ipynb")
    ]
    assert "docs/glossary.md" in pages and len(notebooks) > 20
    course = {name for name in names if name.startswith("distlab/_course/")}
    assert {f"distlab/_course/{name}" for name in [*pages, *notebooks]} == course
    panel = "distlab/_jupyter/labextensions/distlab-course"
    settings = "distlab/_jupyter/labconfig"
    assert {
        "distlab/py.typed",
        f"{settings}/page_config.json",
        f"{settings}/default_setting_overrides.json",
        f"{panel}/package.json",
        f"{panel}/static/remoteEntry.js",
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    information = f"distlab-{distlab.__version__}.dist-info/"
    files = r"distlab/.*\.(py|ipynb|json|typed|tfrecord|npz|csv|css|js|md|svg|txt|otf|j2)"
    sources = r"/(lesson|exercise)\.py$|/claims\.md$"
    never = rf"solution|{sources}|/tests?/|__pycache__|\.ipynb_checkpoints|\.part$"
    code = {name for name in names if not name.startswith(information)}
    assert [name for name in code if not re.fullmatch(files, name)] == []
    assert [name for name in names if re.search(never, name)] == []


def test_the_sdist_carries_the_sources_and_nothing_made(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = [name.split("/", 1)[1] for name in sdist.getnames() if "/" in name]
    tops = {name.split("/")[0] for name in names}
    assert {"distlab", "notebooks", "exercises", "tests", "pyproject.toml"} <= tops
    assert not tops & {".venv", "my-lab", "build", "dist", ".git"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_wheel_says_its_version_and_lays_the_course(built, tmp_path):
    """In a new environment that holds the wheel and nothing of the clone.

    What distlab needs comes from the running environment, behind the new one's own packages: its
    editable distlab is a .pth file, and those count only in an environment's own folder.
    """
    home = tmp_path / "installed"
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(site)
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Isolated (-I): neither this folder nor PYTHONPATH may bring the clone's distlab in.
    code = (
        "import distlab; from distlab.cli import main\n"
        "print(distlab.__file__, distlab.__version__)\n"
        "raise SystemExit(main(['lab', 'mine', '--lay-only']))"
    )
    done = subprocess.run(
        [home / "bin" / "python", "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.split("\n")[0].split()
    assert where.startswith(str(home)) and version == distlab.__version__
    for folder in ("notebooks", "exercises"):
        laid = {path.name: path.read_bytes() for path in (tmp_path / "mine" / folder).iterdir()}
        course = {path.name: path.read_bytes() for path in (ROOT / folder).glob("*.ipynb")}
        assert laid == {name: without_outputs(content) for name, content in course.items()}


def test_the_site_is_made_without_solutions():
    done = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " notebooks exercises " in done.stdout
    assert "solutions" not in done.stdout


def test_the_constraints_pin_every_package_that_the_project_names():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = re.compile(r"[a-z0-9._-]+==[A-Za-z0-9.+!]+( ; [A-Za-z0-9_ .'<>=!*()]+)?")
    assert len(lines) > 100 and [line for line in lines if not pinned.fullmatch(line)] == []
    project = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r'^    "([A-Za-z0-9_-]+)[><=]=', project, flags=re.MULTILINE))
    assert "jupyterlab" in named
    names = {name.lower().replace("_", "-") for name in named}
    assert names <= {line.split("==")[0] for line in lines}


def test_no_file_that_installs_names_the_host_of_a_registry():
    # Which index is asked is the user's setting; a name here would bind everybody to it.
    hosts = re.compile(r"pypi\.org|pythonhosted|--index-url|--extra-index|find-links")
    places = ["constraints.txt", "pyproject.toml", "Makefile", "README.md"]
    files = [ROOT / place for place in [*places, ".pre-commit-config.yaml"]]
    for folder in (".ci", ".github", "tools", "docs", "distlab"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix not in {".pyc", ".png"}]
    read = {path: path.read_text(errors="replace") for path in files if path.is_file()}
    assert len(read) > 20
    assert [str(path) for path, text in read.items() if hosts.search(text)] == []
