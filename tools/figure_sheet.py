"""Writes build/figures.html: every figure of the committed notebooks as a page shows it.

.venv/bin/python tools/figure_sheet.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
SHEET = ROOT / "build" / "figures.html"
STYLE = "body {font: 14px sans-serif; columns: 800px} figure {margin: 0 0 2em; break-inside: avoid}"


def figures() -> list[str]:
    """Returns each figure in HTML, with the cell that shows it and its alternative text."""
    parts = []
    for path in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]):
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            for output in cell.get("outputs", ()):
                if png := output.get("data", {}).get("image/png"):
                    about = output.metadata["image/png"]
                    parts.append(
                        f"<figure><figcaption>{path.parent.name}/{path.stem}, cell {number}, "
                        f"{len(png) * 3 // 4096} KB</figcaption><img width={about['width']} "
                        f'src="data:image/png;base64,{png}"><p>{escape(about["alt"])}</figure>'
                    )
    return parts


if __name__ == "__main__":
    SHEET.parent.mkdir(exist_ok=True)
    shown = "\n".join(figures())
    SHEET.write_text(f"<!doctype html><title>Figures</title><style>{STYLE}</style>\n{shown}")
    print(f"wrote {SHEET}")
