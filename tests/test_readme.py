import re
from pathlib import Path

import distlab as dl

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_code_of_the_readme_runs_and_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    dl.set_seed(1)
    exec(compile(code, str(README), "exec"), names)
    history = names["model"].history.history
    assert history["loss"][-1] < history["loss"][0]
    assert "val_accuracy" in history
    assert names["resume"].folder.is_dir()
    assert "Equal: " in capsys.readouterr().out


def test_the_targets_of_the_readme_are_in_the_makefile():
    asked = set(re.findall(r"\bmake ([a-z-]+)", README.read_text(encoding="utf-8")))
    there = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    assert {"lab", "test"} <= asked <= there


def test_the_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
