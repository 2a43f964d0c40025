"""Writes what the page "Break it yourself" trains on: the digits, and weights to begin with.

    python tools/break_it.py         # ten seconds; writes docs/_static/break_it.json

`docs/_static/digits_network.js` takes the same steps in a browser as `pictures.by_hand` does in
TensorFlow, and `tests/docs/test_break_it.py` compares the two after every step.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from tools import pictures

DATA = pictures.STATIC / "break_it.json"
# A pixel is a letter, from a for 0 to q for 16: text that a server compresses to a third.
LETTERS = np.array(list("abcdefghijklmnopq"))


def page_data() -> dict[str, Any]:
    """Returns the settings, the digits, and the initial weights of as many seeds as replicas."""
    train, test = pictures.digits()
    seeds = range(1, 1 + pictures.REPLICAS)
    return {
        "replicas": pictures.REPLICAS,
        "batch": pictures.BATCH,
        "epochs": pictures.EPOCHS,
        "rate": pictures.RATE,
        "momentum": pictures.MOMENTUM,
        "l2": pictures.L2,
        "weights": [in_base64(pictures.flat(pictures.build(seed))) for seed in seeds],
        "train": in_letters(*train),
        "test": in_letters(*test),
    }


def in_base64(weights: Any) -> str:
    return base64.b64encode(weights.astype("<f4").tobytes()).decode()


def in_letters(images: Any, labels: Any) -> dict[str, str]:
    pixels = np.round(images.ravel() * 16).astype(int)
    return {"pixels": "".join(LETTERS[pixels]), "labels": "".join(map(str, labels))}


if __name__ == "__main__":
    DATA.write_text(json.dumps(page_data(), separators=(",", ":")) + "\n", encoding="utf-8")
