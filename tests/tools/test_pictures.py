"""The pictures of README and the first page: what they show is what a new run gives."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tools import pictures
from tools.write_tables import WITH_MAP


def test_one_run_takes_the_steps_of_one_device_and_the_stored_curves_are_its_and_the_others():
    stored = json.loads(pictures.DATA.read_text(encoding="utf-8"))
    runs = pictures.measure(epochs=1)
    assert [letter for letter in stored if stored[letter]["right"]] == [pictures.RIGHT]
    ends = {letter: run.distances[-1] for letter, run in runs.items()}
    # Rounding differs between processors, and an epoch lets it grow a little.
    assert ends.pop(pictures.RIGHT) < 1e-5
    partial = ends.pop(pictures.MEAN_OF_MEANS)  # wrong in the last step of an epoch only
    assert 1e-4 < partial < min(ends.values()) / 3
    assert max(runs[pictures.MEAN_OF_MEANS].distances[:-1]) < 1e-5
    for letter, run in runs.items():
        np.testing.assert_allclose(stored[letter]["losses"][:23], run.losses, atol=0.02)
        # To a factor of 2, where it's more than rounding.
        powers = np.array(stored[letter]["distances"][:23])
        seen = powers > -4
        np.testing.assert_allclose(powers[seen], pictures.log10(run.distances)[seen], atol=0.3)


def test_pages_and_picture_say_what_is_stored():
    assert pictures.DATA.stat().st_size <= 5000
    stored = json.loads(pictures.DATA.read_text(encoding="utf-8"))
    assert pictures.RUNS.read_text(encoding="utf-8") == pictures.draw_runs(stored)
    for page in WITH_MAP:
        assert pictures.in_words(stored) in page.read_text(encoding="utf-8")


def test_the_moving_all_reduce_shows_what_the_network_carries():
    text = pictures.RING.read_text(encoding="utf-8")
    assert len(text) < 40_000 and "<script" not in text
    moves, network = pictures.carry()
    shown, cells = [], {}
    for group in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}g"):
        box, number = group
        kind, *classes = group.get("class").split()
        if kind == "move":
            step, source = (int(name[4:]) for name in classes)
            shown.append((step, source, float(number.text)))
        else:
            place = box.get("x"), box.get("y")
            cells.setdefault(place, []).append((float(number.text), box.get("class")))
    assert shown == [(move.step, move.source, move.value) for move in moves]
    carried = [(message.step, message.source) for message in network.messages]
    assert [move[:2] for move in shown] == carried and len(cells) == 16
    # Each cell darkens, and the last state of all four devices is the sum, in the darkest colour.
    for states in cells.values():
        colours = [colour for _, colour in states]
        assert colours == sorted(colours) and colours[-1] == "of4"
    assert sorted(states[-1][0] for states in cells.values()) == sorted(
        4 * list(pictures.GRADIENTS.sum(axis=0))
    )
    assert "sent 1.5 times its gradient" in text
    assert network.bytes_sent / pictures.GRADIENTS[0].nbytes == pytest.approx(1.5)
