"""Reads the names of learners that Blackboard and Gradescope write beside the files.

labels = with_names(labels, files)       # of Gradescope: "Jane Doe", and not "submission_501"
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from distlab.autograder.intake.forms import Label, composed

# Blackboard's text of an attempt begins "Name: Jane Doe (jdoe)"; Gradescope lists all submitters.
_RECEIPT = re.compile(r"[^:\n]+: (?P<learner>[^\n]+) \((?P<user>[^()\n]+)\)\s")
_MOST_TEXT = 10_000_000
_METADATA = "submission_metadata.yml"
_SUBMITTERS = re.compile(
    r"^submission_(\d+):\s*\n  :submitters:\n((?:  ?[ -] .*\n)+)", re.MULTILINE
)
_NAME = re.compile(r":name: (.+)")
_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\x([0-9a-fA-F]{2})")  # which JSON doesn't know


def names_learners(name: str) -> bool:
    """Whether a file is one in which a platform writes learners' names."""
    return name == _METADATA or (name.endswith(".txt") and "_attempt_" in name)


def with_names(labels: Mapping[Path, Label], files: Iterable[Path]) -> dict[Path, Label]:
    """Returns labels with the names that files beside them give."""
    people: dict[tuple[str, ...], tuple[str, str]] = {}
    for path in files:
        label = labels[path]
        # What a learner handed in under such a name doesn't count.
        is_receipt = label.form == "Blackboard" and not label.file
        if not names_learners(path.name) or not (is_receipt or not label.learner):
            continue
        text = ""
        with (
            contextlib.suppress(OSError),
            path.open(encoding="utf-8-sig", errors="replace") as file,
        ):
            text = composed(file.read(_MOST_TEXT))
        if is_receipt and (receipt := _RECEIPT.match(text)):
            key = (label.form, label.assignment, label.user)
            people[key] = receipt["learner"], receipt["user"]
        for submission, submitters in () if is_receipt else _SUBMITTERS.findall(text):
            names = [_scalar(name) for name in _NAME.findall(submitters)]
            people["Gradescope", "", submission] = " & ".join(names), submission
    named = {}
    for path, label in labels.items():
        key = (label.form, label.assignment, label.user)
        learner, user = people.get(key, (label.learner, label.user))
        named[path] = replace(label, learner=learner, user=user)
    return named


def _scalar(text: str) -> str:
    """Returns a text that YAML may have put in quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return composed(text[1:-1].replace("''", "'"))
    if len(text) > 1 and text[0] == text[-1] == '"':
        with contextlib.suppress(ValueError):
            return composed(str(json.loads(_BYTE.sub(r"\1\\u00\2", text))))
    return text
