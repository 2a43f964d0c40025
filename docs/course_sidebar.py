"""A Sphinx extension: gives the templates the course, with minutes, and the other pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distlab.course.course_map import in_minutes, read_map

ROOT = Path(__file__).resolve().parent.parent

# The sections of the site's left side below the course, and their pages with short titles.
SECTIONS = {
    "Try it here": {
        "docs/break_it": "Break it yourself",
        "docs/one_step": "One step in slow motion",
    },
    "Look up": {
        "docs/glossary": "Glossary",
        "docs/pitfalls": "Pitfalls",
        "docs/decision_card": "Decision card",
        "docs/reference": "Reference",
    },
    "Your own model": {
        "docs/own_model": "Six lines, explained",
        "docs/fit_check": "Is your fit right?",
        "docs/questions": "Your question, our answer",
        "docs/distribute": "What distribute promises",
        "docs/support_matrix": "Support matrix",
        "docs/zoo": "The zoo",
        "docs/two_machines": "To two machines",
        "docs/engines": "Beyond one machine",
        "docs/leaving": "When to leave",
        "docs/benchmarks": "Benchmarks",
        "docs/training_cost": "Published runs, predicted",
    },
    "Set up and teach": {
        "docs/install": "Install",
        "docs/tpu": "TPU",
        "docs/teaching": "For teachers",
    },
    "The project": {
        "CONTRIBUTING": "Contributing",
        "ARCHITECTURE": "Architecture",
        "CHANGELOG": "Changelog",
    },
}
# The links in the bar at the top.
DOORS = {
    "index": "Course",
    "docs/own_model": "Your own model",
    "docs/glossary": "Glossary",
    "docs/reference": "Reference",
    "docs/teaching": "Teach",
}


def _add(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    parts: dict[str, list[Any]] = {}
    for entry in read_map(ROOT):
        parts.setdefault(entry.part, []).append(entry)
    there = app.env.found_docs
    context["course_parts"] = parts
    context["in_minutes"] = in_minutes
    context["site_sections"] = {
        name: {page: title for page, title in pages.items() if page in there}
        for name, pages in SECTIONS.items()
    }
    context["site_doors"] = DOORS


def setup(app: Any) -> dict[str, bool]:
    """Adds to the context of every page."""
    app.connect("html-page-context", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
