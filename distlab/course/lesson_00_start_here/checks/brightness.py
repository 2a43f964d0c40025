"""A check of lesson 00: a loop in which the replicas do not share the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Inputs,
    Plain,
    Raises,
    Then,
)
from distlab.course.lesson_00_start_here.checks.data_sets import places_of, sizes
from distlab.course.runs.replicas import mirrored


def _inputs(seed: int) -> Inputs:
    draw, numbers = sizes(seed)
    # Whole numbers, so that the order in which they are added does not matter.
    pixels = draw.integers(1, 17, size=(numbers["examples"], 2, 2)).astype(np.float32)
    return {**numbers, "pixels": pixels}


def _call(brightness: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["pixels"]).batch(inputs["batch"])
    return brightness(mirrored(inputs["replicas"]), dataset)


def _reference(given: Inputs, *, each_sees_all: bool = False, total: str = "of all") -> Plain:
    """The images of each replica, and the total of all pixels or what is taken for it."""
    places, replicas, pixels = places_of(given), given["replicas"], given["pixels"]
    shares = [len(place) for place in places]
    all_pixels = float(pixels.sum())
    return {
        "images": [given["examples"]] * replicas if each_sees_all else shares,
        "total": {
            "of all": all_pixels,
            "once for each replica": all_pixels * replicas,
            "the mean of the parts": all_pixels / replicas,
            "replica 0's part": float(pixels[places[0]].sum()),
        }[total],
    }


def _is_dictionary(given: Inputs, out: Plain) -> bool:
    return isinstance(out, dict) and {"images", "total"} <= out.keys()


BRIGHTNESS = Check(
    name="brightness",
    title="Find the bug: the replicas do not share the work",
    question="Which examples does each replica see in your loop?",
    direction=(
        "Compare what `strategy.run` passes on for an ordinary tensor and for a batch of a "
        "distributed data set."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form('it returns a dictionary with "images" and "total"', _is_dictionary),
        Equal("images", "the images that each replica worked on", points=1.5),
        Then(Close("total", "the total", atol=1e-3, points=0.5)),
    ),
    hint="Give the loop `strategy.experimental_distribute_dataset(dataset)` in place of `dataset`.",
    revisit="Count ten digits together",
    mistakes=(
        Raises("batch_distributed", "_variant_tensor").feedback(
            "You gave one batch to `experimental_distribute_dataset`, which takes a whole "
            "data set. It stopped with an error. Where does the data set appear in your "
            "function, before the loop takes it apart?"
        ),
        Fault("whole_batch_to_run", each_sees_all=True, total="once for each replica").feedback(
            "You gave each batch to `run` as an ordinary tensor, so every replica worked on "
            "all images. Each pixel was counted once for every replica. What does `run` do "
            "with a tensor that has not been cut into shares?"
        ),
        Fault("mean_hides_it", sees=("images", "total"), each_sees_all=True).feedback(
            "Your total is right, but every replica still worked on all images. A mean, a "
            "division or the result of one replica hides that. Which step of your function "
            "gives each replica images of its own?"
        ),
        Fault("one_replica_only", total="replica 0's part").feedback(
            "The replicas share the images now, but your total holds the part of replica 0 "
            "alone. The pixels of the others are missing. Which call combines the values of "
            "all replicas?"
        ),
        Fault("mean_for_sum", total="the mean of the parts").feedback(
            "The replicas share the images now, and you averaged their totals. The result is "
            "too small by the number of replicas. What do you do with parts to get the whole?"
        ),
    ),
)
