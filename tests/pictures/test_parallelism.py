"""The field's map divides each kind as its name says, and asks its question."""

from itertools import pairwise

import pytest

from distlab.pictures.parallelism import FIELD, draw_map

KINDS = {kind.name.split(" (")[0]: kind for kind in FIELD}


def covered(pieces):
    """What pieces between 0 and 1 cover together, each part counted once."""
    cuts = sorted({edge for piece in pieces for edge in piece})
    return sum(
        end - start
        for start, end in pairwise(cuts)
        if any(piece[0] <= start and end <= piece[1] for piece in pieces)
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_devices_together_have_the_whole_batch_and_the_whole_model(name):
    parts = KINDS[name].parts
    assert covered([part.batch for part in parts if part.batch]) == 1
    for layer in range(3):
        assert covered([part.layers[layer] for part in parts if part.layers[layer]]) == 1


def test_only_data_parallelism_copies_the_whole_model_to_each_device():
    whole = [
        name
        for name, kind in KINDS.items()
        if all(part.layers == ((0.0, 1.0),) * 3 for part in kind.parts)
    ]
    assert whole == ["data parallelism"]


def test_each_kind_has_a_row_with_its_question():
    figure = draw_map()
    words = " ".join(" ".join(text.get_text().split()) for text in figure.axes[0].texts)
    for kind in FIELD:
        assert kind.question in words
        assert kind.question in figure.alt


def test_the_alternative_text_says_what_each_device_has():
    alt = draw_map().alt
    assert "data parallelism: device 0 has half of the batch and all of each layer" in alt
    assert (
        "device 1 has no examples and no part of layer 1, no part of layer 2, all of layer 3" in alt
    )


def test_sharded_data_parallelism_keeps_a_half_and_fetches_the_other_one():
    kind = KINDS["sharded data parallelism"]
    assert all(part.fetches for part in kind.parts)
    hatched = [patch for patch in draw_map([kind]).axes[0].patches if patch.get_hatch()]
    assert len(hatched) == 2 * 3
    said = "half of the batch and half of each layer, and fetches the other half while it computes"
    assert said in draw_map([kind]).alt


def test_a_worker_of_parameter_servers_keeps_nothing_and_fetches_all_of_each_layer():
    kind = KINDS["parameter servers"]
    keeping = [k for k in FIELD if any(part.fetches for part in k.parts)]
    assert keeping == [KINDS["sharded data parallelism"], kind]
    hatched = [patch for patch in draw_map([kind]).axes[0].patches if patch.get_hatch()]
    assert len(hatched) == 2 * 3
    said = "whole batch and no part of each layer, and fetches the whole while it computes the"
    assert draw_map([kind]).alt.count(said) == 2
