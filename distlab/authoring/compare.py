"""Compares a cell's stored outputs with fresh ones where nbval does not look.

nbval compares texts, as sets by kind. This adds the rest: that each output is there, of the same
kind and in the same order, that figures show the same picture, and how far a number may move.

    for difference in differences(stored, fresh):
        print(difference)                     # "image/png 0: mean difference 3.1 of 255"

Another processor takes other kernels, which add up in another order, so the last digits of what was
trained differ. A cell whose output shows such digits says by a tag how far its numbers may move:

    numbers-within-0.02    each number by at most 0.02
    numbers-within-5%      each number by at most 5 % of the stored one
    numbers-vary           by anything: rounding decides how the run ends

Its words are compared exactly, whatever the tag says. A picture of such numbers may differ by more
than others do, or by anything where numbers vary.
"""

from __future__ import annotations

import base64
import binascii
import copy
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from nbformat import NotebookNode
from PIL import Image, UnidentifiedImageError

# Pictures drawn by the same packages on two processors differ in a few pixels, by little; where the
# numbers differ, a line or a few marks are elsewhere. Of 255, over all pixels.
PICTURE_LIMIT, MOVED_PICTURE_LIMIT = 0.5, 2.0

_IMAGES = ("image/png", "image/jpeg")
_NUMBER = re.compile(r" *[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")  # with what lines it up in a column
_TAG = re.compile(r"numbers-(?:vary|within-(\d+(?:\.\d+)?)(%?))")


@dataclass(frozen=True)
class Tolerance:
    """How far the numbers of a cell's output may be from the stored ones."""

    absolute: float = 0
    relative: float = 0

    @classmethod
    def of_tags(cls, tags: Iterable[str]) -> Tolerance:
        """Returns what the tags of a cell allow; nothing if none of them speaks of numbers."""
        for match in map(_TAG.fullmatch, tags):
            if match and match[1] is None:
                return cls(absolute=math.inf)
            if match:
                return cls(relative=float(match[1]) / 100) if match[2] else cls(float(match[1]))
        return cls()

    @property
    def picture_limit(self) -> float:
        """How far a picture may be from the stored one, as the mean over its pixels, of 255."""
        if self == Tolerance():
            return PICTURE_LIMIT
        return math.inf if self.absolute == math.inf else MOVED_PICTURE_LIMIT

    def allows(self, stored: str, fresh: str) -> bool:
        """Whether two texts have the same words, and numbers that are close enough."""
        if _NUMBER.sub(" 0", stored) != _NUMBER.sub(" 0", fresh):
            return False
        pairs = zip(_NUMBER.findall(stored), _NUMBER.findall(fresh), strict=True)
        return all(
            math.isclose(float(old), float(new), rel_tol=0, abs_tol=self._limit(float(old)))
            for old, new in pairs
        )

    def _limit(self, stored: float) -> float:
        # Printed digits are rounded: 0.72 and 0.70 are 0.02 apart, and not a bit more.
        return (self.absolute + self.relative * abs(stored)) * (1 + 1e-9)


def is_tolerance(tag: str) -> bool:
    """Whether a tag says how far numbers may move."""
    return _TAG.fullmatch(tag) is not None


def with_stored_numbers(
    stored: Sequence[NotebookNode], fresh: Sequence[NotebookNode], tolerance: Tolerance
) -> list[NotebookNode]:
    """Returns the fresh outputs, with the stored text for each text that the tolerance allows."""
    replaced = copy.deepcopy(list(fresh))
    if tolerance == Tolerance() or len(stored) != len(fresh):
        return replaced
    for old, new in zip(stored, replaced, strict=True):
        texts = new if "text" in new else new.get("data", {})
        old_texts = old if "text" in old else old.get("data", {})
        for kind in texts.keys() & old_texts.keys():
            if (kind == "text" or kind.startswith("text/")) and tolerance.allows(
                old_texts[kind], texts[kind]
            ):
                texts[kind] = old_texts[kind]
    return replaced


def differences(
    stored: Sequence[NotebookNode],
    fresh: Sequence[NotebookNode],
    *,
    picture_limit: float = PICTURE_LIMIT,
) -> Iterator[str]:
    """Yields what differs in which outputs there are, and in their pictures.

    The streams are left out of the order: when they are flushed is up to the kernel.
    """
    kinds = [_kinds(outputs) for outputs in (stored, fresh)]
    if kinds[0] != kinds[1]:
        yield f"stored outputs are {_listed(kinds[0])}, fresh ones {_listed(kinds[1])}"
        return
    for mime in _IMAGES if picture_limit < math.inf else ():
        pairs = zip(_images(stored, mime), _images(fresh, mime), strict=True)
        for number, (old, new) in enumerate(pairs):
            if difference := _image_difference(old, new, picture_limit):
                yield f"{mime} {number}: {difference}"


def render(outputs: Sequence[NotebookNode]) -> list[str]:
    """Returns outputs as lines of text, pictures by their sizes."""
    lines: list[str] = []
    for output in outputs:
        if output.output_type == "stream":
            lines += [f"[{output.name}]", *output.text.splitlines()]
        elif output.output_type == "error":
            lines += ["[error]", f"{output.ename}: {output.evalue}"]
        else:
            for mime, data in sorted(output.data.items()):
                lines.append(f"[{output.output_type} {mime}]")
                lines += [_described(data)] if mime in _IMAGES else str(data).splitlines()
    return lines or ["(no output)"]


def _kinds(outputs: Sequence[NotebookNode]) -> list[str]:
    return [
        " ".join([output.output_type, *sorted(output.get("data", ()))])
        for output in outputs
        if output.output_type != "stream" and output.get("data") != {}  # shown, and taken back
    ]


def _listed(kinds: list[str]) -> str:
    return ", ".join(kinds) or "none"


def _images(outputs: Sequence[NotebookNode], mime: str) -> list[str]:
    return [output.data[mime] for output in outputs if mime in output.get("data", ())]


def _decode(data: str) -> Image.Image | None:
    try:
        image = Image.open(io.BytesIO(base64.b64decode("".join(data), validate=False)))
        return image.convert("RGBA")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, binascii.Error):
        return None


def _image_difference(stored: str, fresh: str, limit: float) -> str | None:
    old, new = _decode(stored), _decode(fresh)
    if old is None or new is None:
        return f"the {'stored' if old is None else 'fresh'} one is no picture"
    if old.size != new.size:
        return f"stored {_size(old)}, fresh {_size(new)}"
    mean = float(np.abs(np.asarray(old, np.int16) - np.asarray(new, np.int16)).mean())
    return f"mean difference {mean:.2g} of 255" if mean > limit else None


def _size(image: Image.Image) -> str:
    return f"{image.width}x{image.height}"


def _described(data: str) -> str:
    image = _decode(data)
    return "not a picture" if image is None else f"a picture of {_size(image)}"
