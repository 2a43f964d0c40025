"""A check of lesson 14: which rows may be used in pretraining, so that a test stays a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Inputs, Plain

_CLASSES = 6


def _inputs(seed: int) -> Inputs:
    """Small images, of which some stand under an old and a new class."""
    draw = np.random.default_rng(seed)
    classes = draw.permutation(_CLASSES)
    old, new = np.sort(classes[:3]), np.sort(classes[3:])
    labels = np.concatenate([np.repeat(np.arange(_CLASSES), 6), draw.choice(old, 3)])
    images = draw.integers(0, 17, (len(labels), 3, 3))
    test = np.sort(np.concatenate([np.flatnonzero(labels == each)[:2] for each in new]))
    images[-3:-1] = images[test[0]]  # a test image stands twice under old classes
    images[-1] = images[test[-1]]
    kept = np.flatnonzero(labels == new[0])[-1]  # an image of a new class that is no test image
    images[np.flatnonzero(labels == old[0])[0]] = images[kept]
    order = draw.permutation(len(labels))
    return {
        "images": images[order],
        "labels": labels[order],
        "new_classes": new,
        "test_rows": np.flatnonzero(np.isin(order, test)),
    }


def _call(pretraining_rows: Callable[..., Any], inputs: Inputs) -> Plain:
    given = [np.array(inputs[key]) for key in ("images", "labels", "new_classes", "test_rows")]
    return {"rows": pretraining_rows(*given)}


def _read(given: Inputs, outputs: Plain) -> Plain:
    rows = outputs["rows"]
    rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
    good = isinstance(rows, list) and all(
        isinstance(row, int) and not isinstance(row, bool) for row in rows
    )
    return {"form": outputs["rows"], "good": good, "rows": sorted(rows) if good else None}


def _reference(given: Inputs, *, classes: str = "out", copies: str = "out") -> Plain:
    images, labels, tests = given["images"], given["labels"], given["test_rows"]
    new = np.isin(labels, given["new_classes"])
    out = np.isin(np.arange(len(labels)), tests)
    if classes == "out":
        out |= new
    flat = images.reshape(len(images), -1)
    for row in {"out": tests, "of all": np.flatnonzero(new), "in": []}[copies]:
        out |= (flat == flat[row]).all(axis=1) & ~new
    return {"form": [], "good": True, "rows": np.flatnonzero(~out).tolist()}


LEAK = Check(
    name="pretraining_rows",
    title="Pretraining that has not seen the test",
    question="In how many ways can a test image, or what it shows, get into the pretraining data?",
    direction=(
        "Ask two questions of each row. Does its label belong to the new task? Is its image the "
        "same, pixel for pixel, as an image of the test?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("a list of row numbers", lambda _, out: out["good"], key="form"),
        Equal("rows", "the rows that may be used in pretraining", points=3),
    ),
    hint="`np.isin(labels, new_classes)` marks the rows of the new classes. For copies, compare "
    "`images[row]` with `images[test]` for each test row, with `np.array_equal`.",
    revisit='"What pretraining must not see" in lesson 14',
    mistakes=(
        Fault("targets_in_pretraining", classes="in")
        .or_with(classes="in", copies="in")
        .feedback(
            "You let the new classes into the pretraining, and only their test rows are left out. "
            "The body then learns from labels that the new task is not supposed to have. What "
            'does "10 labels for each class" mean after that?'
        ),
        Fault("copies_in_pretraining", copies="in").feedback(
            "You left out the new classes, and kept rows whose image is also in the test, under an "
            "old class. The body has seen these test images. What besides a label can tell you "
            "that two rows are one photo?"
        ),
        Fault("too_careful", copies="of all").feedback(
            "You also left out copies of images that are not in the test. They do no harm to the "
            "test, and without them the body has fewer examples. Which images must stay unseen?"
        ),
    ),
)
