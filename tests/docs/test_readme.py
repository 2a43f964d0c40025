"""README and the pages: their code runs, their commands exist, their claims are measured."""

import os
import re
import subprocess

import distlab as dl
from tests.support.repository import ROOT
from tests.zoo.family import Family
from tests.zoo.harness import families
from tools import support_matrix
from tools.measured_pages import read_tables

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def code_of(page):
    (code,) = blocks_of(page)
    return code


def run(page, code, names):
    dl.set_seed(1)
    exec(compile(code, str(page), "exec"), names)
    return names


RUNS = ("shaken", "distributed")


def test_the_script_of_your_own_model_runs_and_learns_and_rounding_is_told_from_a_fault(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "own_model.md"
    names = run(page, code_of(page), {})
    history = names["model"].history.history
    assert history["loss"][-1] < history["loss"][0]
    assert "val_accuracy" in history
    assert names["resume"].folder.is_dir()
    assert "Equal: " in capsys.readouterr().out
    # How to tell rounding from a fault, which goes on from there; the fault: steps 1 % too large.
    page = ROOT / "docs" / "distribute.md"
    run(page, blocks_of(page)[-1], names)
    rounding, replicas = (names["distance"](names["plain"], names[run]) for run in RUNS)
    assert replicas < 100 * rounding
    dl.set_seed(1)
    faulty = dl.distribute(names["build"], names["strategy"])
    faulty.optimizer.learning_rate = 1.01 * faulty.optimizer.learning_rate
    assert names["distance"](names["plain"], names["train_from"](faulty)) > 100 * rounding


def test_the_six_lines_of_the_readme_are_lines_of_that_script():
    def lines_of(page):
        return [line.partition("  #")[0] for line in code_of(page).splitlines() if line]

    six = lines_of(README)
    assert len(six) == 6
    assert set(six) <= set(lines_of(ROOT / "docs" / "own_model.md"))


def test_the_first_screen_has_the_two_commands_and_they_do_what_it_says():
    """The nightly workflow runs them for real, in a fresh clone."""
    above, _, _ = read(README).partition("\n## ")
    assert above.index("which_run.svg") < above.index("```"), "the question comes first"
    _, block, *_ = re.split(r"^```\n", above, flags=re.MULTILINE)
    asked = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert asked == ["make lab", "make test"]
    lab, suite = (dry_run(command) for command in asked)
    assert "distlab lab my-lab" in lab
    of_notebooks = [f"distlab.authoring {command}" for command in ("check", "lint")]
    stages = ["ruff check", "mypy", *of_notebooks, "pytest tests"]
    assert [stage for stage in stages if stage not in suite] == []
    assert not re.search(r"--deselect|--ignore| -[km] ", suite.rpartition("pytest tests")[2])
    zoo = {"make test": "core", "make tests": "all", "make check": "all"}
    trained = {command: re.findall(r"DISTLAB_ZOO=(\w+)", dry_run(command)) for command in zoo}
    assert trained == {command: [families] for command, families in zoo.items()}
    assert "make --no-print-directory test regression docs " in dry_run("make check")
    assert "make check" in read(ROOT / ".ci" / "run")


def test_the_minutes_of_the_suite_are_those_that_were_measured():
    """In CONTRIBUTING's table of processors; no other page says how long it takes."""
    rows = read_tables(read(ROOT / "CONTRIBUTING.md"))[0]
    minutes = [int(row["minutes"]) for row in rows.values()]
    assert len(minutes) >= 2
    text = " ".join(read(README).split())
    assert f"`make test` takes {min(minutes)} to {max(minutes)} minutes on two cores" in text
    typed = r"`?make (?:test|check)\b[^.\n]*\bminutes"
    assert [page.name for page in PAGES if re.search(typed, read(page))] == ["README.md"]


def dry_run(command):
    """What make would run, whatever the arguments of a make that runs these tests."""
    options = ["--dry-run", "--no-print-directory"]
    given = ("MAKE", "MFLAGS", "TEST_ARGS", "ZOO")
    env = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    command = [*command.split(), *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_links_of_the_pages_lead_somewhere():
    broken = []
    for page in PAGES:
        # The first page of the site lies at its top, as README does in the repository.
        home = ROOT if page.name == "index.md" else page.parent
        links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", read(page))
        broken += [f"{page.name}: {link}" for link in links if not (home / link).exists()]
    assert broken == []


def test_the_headings_that_pages_link_to_are_there():
    for page in PAGES:
        for path, anchor in re.findall(r"\]\((?!http)([^)#]*\.md)?#([^)]+)\)", read(page)):
            there = read(page.parent / path) if path else read(page)
            headings = re.findall(r"^#+ +(.+?) *$", there, re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
            known |= set(re.findall(r"^\(([\w-]+)\)=$", there, re.MULTILINE))
            assert anchor in known, f"{page.name} links to {path}#{anchor}"


def test_what_fit_gets_wrong_is_what_was_measured():
    _, section = read(README).split("## What Keras's `fit` gets wrong")
    section, _, _ = section.partition("\n## ")
    wrong = read_tables(section)[0]
    strategies, features = read_tables(read(support_matrix.PAGE))
    rows = {
        "MirroredStrategy and a last batch in unequal shares": features["partial last batch"],
        "MirroredStrategy and your own `train_step`": features["own `train_step`"],
        "two workers": strategies["multi_worker, 2 processes"],
    }
    assert wrong.keys() == rows.keys()
    for name, row in rows.items():
        fit = row.get("Keras 3 `fit`") or row["Keras 3 `fit`, mirrored"]
        ours = row.get("`distribute`") or row["`distribute`, mirrored"]
        assert list(wrong[name].values()) == [fit, ours]


def test_the_readme_counts_the_zoo_as_the_zoo_does():
    page = read(ROOT / "docs/zoo.md")
    counted = re.search(r"of (\d+) models: (\d+) \(.* 0 \(Keras's own", page)
    total, equal = (int(number) for number in counted.groups())
    zoo = families()
    wider = [name for name, one in zoo.items() if one.in_16_bits or one.atol != Family.atol]
    assert (wider, Family.atol) == (["half_the_bits"], 2e-6)
    text = " ".join(read(README).split())
    assert f"compares {total} small model families with one device" in text
    wide = "or to 1e-9 in float64 where a processor rounds differently, and one in bfloat16 is no"
    assert f"{equal - 1} agree with one device to 2e-6, {wide}" in text
    assert f"{equal} of {total} take its steps" in text
    assert f"`fit` is equal for none of the {total}," in text


def read(page):
    return page.read_text(encoding="utf-8")
