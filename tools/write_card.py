"""Writes the decision card into its page: `python tools/write_card.py`."""

from __future__ import annotations

import re
from pathlib import Path

from distlab.course.lesson_16_choosing_a_strategy.strategy_card import card_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "decision_card.md"
BEGIN, END = "<!-- the card -->", "<!-- end of the card -->"


def with_card(text: str) -> str:
    """Returns the page's text with the card as it is now."""
    part = f"{BEGIN}\n\n{card_table()}\n\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: part, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_card(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
