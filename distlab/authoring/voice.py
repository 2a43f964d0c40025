"""How the text of a lesson or a page sounds, in numbers: for its author, and for no test.

    print(measure_voice(draft_page(page).notebook.cells))

Sentences are those of paragraphs, also of folded ones. Predictions, boxes, lists, tables and code
don't count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distlab.authoring.minutes import count_minutes, count_words, without_fences

if TYPE_CHECKING:
    from nbformat import NotebookNode

SHORT, LONG = 8, 25
# Three sentences in a row that have at most so many words sound like a telegram.
IN_A_RUN = 10

_SUMMARY = re.compile(r"<summary>.*?</summary>", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_ADDRESS = re.compile(r"(?<=\])\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_NO_PARAGRAPH = re.compile(r"[-*] |\d+\. |#|\||>|:::|<!--|\(\w[\w-]*\)=")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[\"')*_\]]*\s+")
_CONTRACTION = re.compile(
    r"\b\w+(?:n['\u2019]t|['\u2019](?:re|ve|ll|d|m))\b"
    r"|\b(?:it|that|there|here|what|who|where|let|he|she)['\u2019]s\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Voice:
    """The figures of one lesson or page.

    Attributes:
        words: All words to read, with folds and predictions.
        sentences: The sentences of its paragraphs; "" is between paragraphs that a list, a table
            or code separates.
    """

    words: int
    sentences: tuple[str, ...]

    @property
    def contractions(self) -> int:
        """The number of contractions."""
        return sum(len(_CONTRACTION.findall(sentence)) for sentence in self.sentences)

    @property
    def mean(self) -> float:
        """The mean number of words in a sentence."""
        lengths = self._lengths
        return sum(lengths) / len(lengths) if lengths else 0.0

    @property
    def short(self) -> float:
        """The part of the sentences that have at most 8 words."""
        return sum(length <= SHORT for length in self._lengths) / max(len(self._lengths), 1)

    @property
    def long(self) -> float:
        """The part of the sentences that have 25 words or more."""
        return sum(length >= LONG for length in self._lengths) / max(len(self._lengths), 1)

    @property
    def runs(self) -> list[str]:
        """The passages in which three or more short sentences follow each other."""
        groups = itertools.groupby(self.sentences, lambda text: 0 < _length(text) <= IN_A_RUN)
        rows = [list(group) for is_short, group in groups if is_short]
        return [" ".join(row) for row in rows if len(row) >= 3]

    @property
    def _lengths(self) -> list[int]:
        return [_length(sentence) for sentence in self.sentences if sentence]


def measure_voice(cells: Sequence[NotebookNode]) -> Voice:
    """Measures the text of a lesson's cells, or of the one cell that is a page."""
    return Voice(words=count_minutes(cells).words, sentences=tuple(_sentences(cells)))


def voice_table(voices: dict[str, Voice]) -> str:
    """Returns a table with a row for each lesson or page."""
    heads = ("words", "mean", f"<= {SHORT}", f">= {LONG}", "runs", "contractions")
    lines = [f"{'text':<28}" + "".join(f"{head:>{len(head) + 4}}" for head in heads)]
    for stem, voice in voices.items():
        figures = (
            f"{voice.words:,}",
            f"{voice.mean:.1f}",
            f"{voice.short:.0%}",
            f"{voice.long:.0%}",
            f"{len(voice.runs)}",
            f"{voice.contractions}",
        )
        cells = (f"{figure:>{len(head) + 4}}" for figure, head in zip(figures, heads, strict=True))
        lines.append(f"{stem:<28}" + "".join(cells))
    lines += [
        "",
        "words: with folds and predictions",
        "mean: words in a sentence; aim at 15 to 18",
        f"<= {SHORT}, >= {LONG}: sentences with so many words; aim at 15 % at most, 10 % at least",
        f"runs: three sentences in a row with at most {IN_A_RUN} words; aim at 0",
    ]
    return "\n".join(lines)


def _length(sentence: str) -> int:
    """Returns the number of words, of which code in a line is one."""
    return count_words(_CODE.sub("code", sentence))


def _sentences(cells: Sequence[NotebookNode]) -> Iterator[str]:
    """Yields each sentence, and "" for whatever else stands between two of them."""
    for cell in cells:
        if cell.cell_type != "markdown":
            yield ""
            continue
        text = _SUMMARY.sub("\n\n", without_fences(cell.source, place="\n\n|\n\n"))
        for paragraph in re.split(r"\n\s*\n", _ADDRESS.sub("", _PICTURE.sub("", text))):
            words = " ".join(re.sub(r"</?details>", "", paragraph).split())
            if not words or _NO_PARAGRAPH.match(words):
                yield ""
                continue
            yield from (part for part in _END_OF_SENTENCE.split(words) if count_words(part))
