"""The memory calculator draws what `held_bytes` and `sent_bytes` return."""

import pytest

from distlab.measure.step_bytes import held_bytes, sent_bytes
from distlab.views.memory import explore_memory


@pytest.fixture(scope="module")
def view():
    return explore_memory()


def test_it_starts_with_the_model_of_the_lesson(view):
    alt = view.draw_now().alt
    assert "mirrored, 8 replicas, sends 24.5 GB a step: 112 GB, which is too large." in alt
    assert "ZeRO 1, 8 replicas, sends 24.5 GB a step: 38.5 GB, which fits." in alt


def test_each_slider_reaches_the_figure(view):
    chosen = {
        "parameters": 13e9,
        "precision": "bfloat16",
        "optimizer": "SGD with momentum",
        "replicas": 64,
        "sharding": "ZeRO 3, FSDP",
    }
    figure = view.draw_now(**chosen)
    how = {name: chosen[name] for name in ("precision", "replicas", "sharding")}
    held = held_bytes(13_000_000_000, optimizer="SGD with momentum", **how)
    bars = [bar.get_width() for bar in figure.axes[0].patches]
    assert bars[1::2] == pytest.approx([size / 1e9 for size in held.values()])
    assert bars[::2] == pytest.approx([26, 26, 26])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    sent = sent_bytes(13_000_000_000, **how) / 1e9
    assert labels[1] == f"ZeRO 3, FSDP, 64 replicas,\nsends {sent:.1f} GB a step"


def test_numbers_of_parameters_are_said_in_words(view):
    sizes = view.choices["parameters"]
    said = [sizes.say(value) for value in sizes.values]
    assert said[:3] == ["125 million", "350 million", "1.5 billion"]
    assert said[-1] == "405 billion"
