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
from distlab.course import PAGES, without_outputs
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: hatchling is installed here, so nothing is fetched.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return out


@pytest.fixture(scope="module")
def wheel_names(built: Path) -> list[str]:
    with zipfile.ZipFile(_only(built, "*.whl")) as wheel:
        return sorted(wheel.namelist())


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel and nothing of the clone.

    What distlab needs comes from the running environment, behind the new one's own packages: its
    editable distlab is a .pth file, and those count only in an environment's own folder.
    """
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    paths = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    with zipfile.ZipFile(_only(built, "*.whl")) as wheel:
        wheel.extractall(site)
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_carries_the_lessons_as_the_clone_has_them(wheel_names: list[str]):
    for folder in ("notebooks", "exercises"):
        there = {path.name for path in (ROOT / folder).glob("*.ipynb")}
        carried = {
            Path(name).name for name in wheel_names if name.startswith(f"distlab/_course/{folder}/")
        }
        assert there, f"no notebooks in {folder}: nothing is tested"
        assert carried == there


def test_the_wheel_carries_the_pages_that_lessons_link_to(wheel_names: list[str]):
    there = [page for page in PAGES if (ROOT / page).is_file()]
    assert "docs/glossary.md" in there
    assert {f"distlab/_course/{page}" for page in there} <= set(wheel_names)


def test_the_wheel_carries_types_and_settings(wheel_names: list[str]):
    assert "distlab/py.typed" in wheel_names
    settings = "distlab/_jupyter/labconfig"
    assert f"{settings}/page_config.json" in wheel_names
    assert f"{settings}/default_setting_overrides.json" in wheel_names
    panel = "distlab/_jupyter/labextensions/distlab-course"
    assert {f"{panel}/package.json", f"{panel}/static/remoteEntry.js"} <= set(wheel_names)
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)


def test_the_wheel_carries_nothing_else(wheel_names: list[str]):
    information = f"distlab-{distlab.__version__}.dist-info/"
    for name in wheel_names:
        assert name.startswith(("distlab/", information)), name
        assert not re.search(r"solution|/tests?/|__pycache__|\.ipynb_checkpoints|\.part$", name), (
            name
        )
        assert re.search(r"\.(py|ipynb|json|typed|tfrecord|npz|csv|css|js|md)$", name) or (
            name.startswith(information)
        ), name


def test_the_site_is_made_without_solutions():
    done = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " notebooks exercises " in done.stdout
    assert "solutions" not in done.stdout


def test_the_sdist_carries_the_sources_and_nothing_made(built: Path):
    with tarfile.open(_only(built, "*.tar.gz")) as sdist:
        names = [name.split("/", 1)[1] for name in sdist.getnames() if "/" in name]
    tops = {name.split("/")[0] for name in names}
    assert {"distlab", "lessons", "notebooks", "exercises", "tests", "pyproject.toml"} <= tops
    assert not tops & {".venv", "my-lab", "build", "dist", ".git"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_wheel_lays_the_course(installed: Path, tmp_path: Path):
    code = "import distlab; print(distlab.__file__)"
    place = _run(installed, "-c", code, folder=tmp_path).stdout
    assert place.startswith(str(installed.parent.parent))
    done = _run(installed, "-m", "distlab.cli", "lab", "mine", "--lay-only", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for folder in ("notebooks", "exercises"):
        laid = {path.name: path.read_bytes() for path in (tmp_path / "mine" / folder).iterdir()}
        course = {path.name: path.read_bytes() for path in (ROOT / folder).glob("*.ipynb")}
        assert laid == {name: without_outputs(content) for name, content in course.items()}


def test_the_installed_wheel_says_its_version(installed: Path, tmp_path: Path):
    done = _run(installed, "-m", "distlab.cli", "--version", folder=tmp_path)
    assert done.stdout == f"distlab {distlab.__version__}\n"


def test_the_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(lines) > 100
    for line in lines:
        assert re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.+!]+( ; [A-Za-z0-9_ .'<>=!*()]+)?", line), (
            line
        )


def test_the_constraints_hold_every_package_that_the_project_names():
    text = (ROOT / "pyproject.toml").read_text()
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    named = set(re.findall(r'^    "([A-Za-z0-9_-]+)[><=]=', text, flags=re.MULTILINE))
    assert "jupyterlab" in named
    assert {name.lower().replace("_", "-") for name in named} <= pinned


def test_no_file_that_installs_names_the_host_of_a_registry():
    # Which index is asked is the user's setting; a name here would bind everybody to it.
    hosts = re.compile(r"pypi\.org|pythonhosted|--index-url|--extra-index|find-links")
    places = [
        "constraints.txt",
        "pyproject.toml",
        "Makefile",
        "README.md",
        ".pre-commit-config.yaml",
    ]
    files = [ROOT / place for place in places]
    for folder in (".ci", ".github", "tools", "docs", "distlab"):
        files += [
            path for path in (ROOT / folder).rglob("*") if path.suffix not in {".pyc", ".png"}
        ]
    read = {path: path.read_text(errors="replace") for path in files if path.is_file()}
    assert len(read) > 20
    assert [str(path) for path, text in read.items() if hosts.search(text)] == []


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def _run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # Isolated (-I): neither this folder nor PYTHONPATH may bring the clone's distlab in.
    return subprocess.run(
        [str(python), "-I", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
