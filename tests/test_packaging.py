"""The sdist and the wheel: what is in them, and what works where only the wheel is."""

from __future__ import annotations

import email
import email.policy
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import distlab
from distlab.course.learner_folder import PAGES, without_outputs
from tests.support.repository import ROOT
from tests.support.stranger import Stranger, make_stranger


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
    examples = [path for path in (ROOT / "examples").rglob("*") if path.is_file()]
    pages += ["docs/tpu.md", *(str(path.relative_to(ROOT)) for path in examples)]
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
        f"{panel}/static/course.css",
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    information = f"distlab-{distlab.__version__}.dist-info/"
    files = r"distlab/.*\.(py|ipynb|json|typed|tfrecord|npz|csv|css|js|md|svg|txt|otf|j2"
    files += r"|sh|sbatch|yaml)"
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
    assert {"distlab", "notebooks", "exercises", "tests", "benchmarks", "pyproject.toml"} <= tops
    assert not tops & {".venv", "my-lab", "build", "dist", ".git"}
    assert not [name for name in names if "__pycache__" in name]


@pytest.fixture(scope="module")
def stranger(built, tmp_path_factory) -> Stranger:
    (wheel,) = built.glob("*.whl")
    return make_stranger(wheel, tmp_path_factory.mktemp("stranger"))


def test_a_stranger_has_what_the_base_declares_and_nothing_else(stranger):
    optional = ["cloudpickle", "filelock", "IPython", "jinja2", "jupyterlab", "jupytext", "zmq"]
    optional += ["matplotlib", "pytest", "sklearn", "tensorflow_datasets"]
    done = stranger.python(
        "import importlib.util, distlab, tensorflow, keras\n"
        "print(distlab.__file__, distlab.__version__)\n"
        f"print([name for name in {optional} if importlib.util.find_spec(name)])"
    )
    assert done.returncode == 0, done.stderr
    where, version, others = done.stdout.split(maxsplit=2)
    assert where.startswith(str(stranger.python_path.parents[1]))
    assert (version, others) == (distlab.__version__, "[]\n")


MODEL = """
import keras, numpy as np, tensorflow as tf

def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def data(batch_size):
    x = np.ones((64, 2), "float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch_size)
"""
LAB, TEST = ('  to do: pip install "distlab[lab]"\n', '  to do: pip install "distlab[test]"\n')
# What is typed, one after another: the exit code, a part of what is printed, and the files that
# are new, where no pattern stands for none.
COMMANDS = [
    ("--version", 0, f"distlab {distlab.__version__}", None),
    ("doctor", 0, 'pip install "distlab[lab]"', None),
    ("lab mine", 2, LAB, None),
    (
        "lab mine --lay-only",
        0,
        "mine: ",
        r"mine/(notebooks|exercises|docs|course\.md|AGENTS|\.distlab)",
    ),
    ("progress mine", 0, "tasks passed", None),
    ("grade mine --out graded", 2, LAB, None),
    ("exercise new 20_own", 0, "new  20_own.py", r"\w*20_own\.py"),
    ("exercise build 20_own.py --out handout", 2, TEST, None),
    ("exercise build 20_own.py --out handout --execute", 2, TEST, None),
    ("launch --workers 2 said.py", 0, "worker:1 | said", None),
    ("bench own.py --replicas 1 --plot steps.png", 2, LAB, None),
    ("bench own.py --replicas 1 --batch 4 --blocks 2", 0, "strong scaling", None),
    ("example", 0, "examples/slurm/train.sbatch", None),
    ("example train kubernetes", 0, "new      examples/train.py", r"examples/"),
    ("example train", 0, "current  examples/train.py", None),
    ("example trian", 2, "did you mean 'train'?", None),
]


def test_each_command_works_on_the_base_install_or_names_the_extra_first(stranger):
    (stranger.folder / "own.py").write_text(MODEL)
    (stranger.folder / "said.py").write_text("print('said')")
    for line, code, text, new in COMMANDS:
        before = stranger.files()
        done = stranger.distlab(line)
        said = done.stdout + done.stderr
        assert (done.returncode, text in said, "Traceback" in said) == (code, True, False), said
        made = [str(path.relative_to(stranger.folder)) for path in stranger.files() - before]
        assert bool(made) == bool(new), line
        assert [name for name in made if not re.match(new, name)] == [], line
    for folder in ("notebooks", "exercises"):
        laid = {
            path.name: path.read_bytes() for path in (stranger.folder / "mine" / folder).iterdir()
        }
        course = {path.name: path.read_bytes() for path in (ROOT / folder).glob("*.ipynb")}
        assert laid == {name: without_outputs(content) for name, content in course.items()}


def test_no_command_is_missing_from_that_table_and_each_has_a_help(stranger):
    done = stranger.distlab("--help")
    commands = re.findall(r"^    (\w+) ", done.stdout, re.MULTILINE)
    assert set(commands) == {line.split()[0] for line, *_ in COMMANDS} - {"--version"}
    for command in [*commands, "exercise new", "exercise build"]:
        done = stranger.distlab(f"{command} --help")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.startswith("usage: distlab " + command), command


# What a script or a notebook calls: the first line of the error, and the last of it.
CALLS = {
    "distlab.load_dataset('digits')": ("distlab.load_dataset", 'pip install "distlab[data]"'),
    "distlab.LocalCluster(2)": ("run functions in other processes", 'pip install "distlab[lab]"'),
}


def test_what_needs_an_extra_names_it_and_an_error_the_page_that_explains_it(stranger):
    for call, (asked, cure) in CALLS.items():
        done = stranger.python(f"import distlab\n{call}")
        (error,) = re.findall(r"^distlab\.errors\.UnsupportedEnvironment: (.*)$", done.stderr, re.M)
        assert error == asked and done.stderr.endswith(f"  to do: {cure}\n"), done.stderr
    code = (
        "import pathlib, distlab.errors as errors, sys\n"
        "error = errors.InvalidArgument(asked='a', found='b', do='c', pitfall='Out of memory')\n"
        "page = pathlib.Path(str(error).split('see: ')[1].removesuffix(\", 'Out of memory'\"))\n"
        "print(page, '### Out of memory' in page.read_text().splitlines())"
    )
    below = stranger.folder / "mine" / "notebooks"
    elsewhere = stranger.python(code, folder=stranger.home).stdout.split()
    assert elsewhere[1] == "True" and elsewhere[0].endswith("distlab/_course/docs/pitfalls.md")
    for folder, page in {below: "../docs/pitfalls.md", below.parent: "docs/pitfalls.md"}.items():
        stranger.distlab("lab mine --lay-only")
        assert stranger.python(code, folder=folder).stdout == f"{page} True\n"


def test_the_long_description_leads_into_the_repository_and_to_what_is_there(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name), policy=email.policy.default)
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    repository = urls["Repository"]
    assert repository.startswith("https://") and {"Documentation", "Changelog", "Issues"} <= set(
        urls
    )
    text = metadata.get_content()
    links = re.findall(r"(!?)\[[^][]*\]\(([^()\s]+)\)", text)
    readme = re.findall(r"\]\((?!http)", (ROOT / "README.md").read_text(encoding="utf-8"))
    ours = {(kind, link) for kind, link in links if link.startswith(repository)}
    assert sum(link.startswith(repository) for _, link in links) == len(readme) > 50
    assert [link for _, link in links if not link.startswith("https://")] == []
    assert not re.search(r"<(?:img|a)\b", text)
    for kind, link in ours | {("", url) for url in urls.values()}:
        view, _, place = link.removeprefix(repository).lstrip("/").partition("/HEAD/")
        assert (ROOT / place.partition("#")[0]).exists(), link
        assert view == "raw" if kind else view in ("", "blob", "tree", "issues"), link


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
