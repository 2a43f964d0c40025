"""`make help` lists what there is, and the pages name only that."""

import re
import subprocess

from tests.support.repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PHONY = set(re.search(r"^\.PHONY:((?:.*\\\n)*.*)", MAKEFILE, re.M)[1].replace("\\", " ").split())
RULES = dict(re.findall(r"^([a-z][a-z0-9-]*):([^=\n].*)?$", MAKEFILE, re.M))


def used_by_other_rules():
    """Targets that a rule needs first or calls by `$(MAKE)`."""
    needed = {name for rest in RULES.values() for name in rest.partition("##")[0].split()}
    calls = re.findall(r"\$\(MAKE\)((?:[^&|;\n\\]|\\\n)*)", MAKEFILE)
    return needed | {word for call in calls for word in call.split()}


def test_every_target_has_a_line_of_help_or_serves_another():
    assert RULES.keys() == PHONY
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    helped = set(re.findall(r"^make (\S+) +\S", listed.stdout, re.M))
    assert helped
    assert sorted(PHONY - helped - used_by_other_rules()) == []


def test_every_command_on_a_page_is_a_target():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/workflows/*.yml")]
    pages.remove(ROOT / "CHANGELOG.md")  # of earlier states, too
    commands = re.compile(r"(?:`|^|run: +)make ((?:[a-z][a-z0-9-]* ?)+)", re.M)
    named = [
        (page.name, target)
        for page in pages
        for words in commands.findall(page.read_text(encoding="utf-8"))
        for target in words.split()
    ]
    assert len(named) > 20
    assert [f"{page}: make {target}" for page, target in named if target not in PHONY] == []
