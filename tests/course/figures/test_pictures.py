"""Each drawing function once: its figure shows something, in the course's colours, and in words."""

import importlib
import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb, to_rgba_array
from matplotlib.lines import Line2D
from matplotlib.text import Text

from distlab.course import palette
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from distlab.course.lesson_13_step_cost.recorded import MeasuredMfu, MeasuredProduct, Recording
from distlab.course.lesson_14_scaling.overlap import StepTimes
from distlab.course.lesson_17_pipelines.schedules import interleaved, one_f_one_b
from distlab.course.lesson_17_pipelines.timetable import play
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import CARD, OTHERWISE
from distlab.course.measure.scaling_runs import MeasuredStep
from distlab.course.measure.step_split import StepSplit
from distlab.course.measure.timeline import Event


def module_of(path):
    """The name by which a file of the course is imported."""
    return ".".join(("distlab.course", *path.relative_to(PLACE).with_suffix("").parts))


PLACE = pathlib.Path(palette.__file__).parent
# Each drawing function, by its lesson's number, or by the module that several lessons share.
FIGURES = {
    f"{path.parent.name[7:9] or path.stem}.{name}": function
    for path in sorted([*PLACE.glob("lesson_*/figures.py"), *PLACE.glob("figures/[a-z]*.py")])
    for name, function in vars(importlib.import_module(module_of(path))).items()
    if name.startswith("draw_")
}
IMAGES = np.linspace(0, 1, 6 * 4).reshape(6, 2, 2, 1)
MASK, OTHER_MASK = np.eye(2, 3), np.ones((2, 3)) - np.eye(2, 3)
PATH = np.cumsum(np.ones((3, 2, 2)), axis=0)  # moves by 2 in each weight
# Powers of two that become 0, are kept, are kept, and are too large in float16.
SIZES = 2.0 ** np.array([-30.5, -20.5, 0.5, 20.5])
ONE = MeasuredStep(1, 64, 400, 0.010, 0.0, 0.002, 0.012, (0.011, 0.014))
FOUR = MeasuredStep(4, 64, 400, 0.020, 0.008, 0.002, 0.030, (0.029, 0.033))
SLOW = StepSplit(real_ms=100.0, compute_ms=10.0, input_ms=98.0)
QUICK = StepSplit(real_ms=12.0, compute_ms=10.0, input_ms=4.0)
EVENTS = [
    Event(start_ms=at, ms=2.0, thread=thread, kind=kind, operation="Mul", name="mul")
    for at, thread, kind in ((0, "a 1", "forward"), (3, "a 1", "backward"), (1, "b 1", "input"))
]


def networks():
    first, second = Network(2), Network(3)
    first.step({(0, 1): np.zeros(2, np.float32)})
    second.step({(0, 1): np.zeros(1, np.float32), (1, 0): np.zeros(3, np.float32)})
    second.step({(2, 1): np.zeros(1, np.float32)})
    return {"one way": first, "both ways": second}


# A call of each, with sample data. What a reader is to see, `make regression` compares.
SAMPLES = {
    "12.draw_traffic": lambda draw: draw(networks(), vector_bytes=4),
    "12.draw_busiest": lambda draw: draw({"naive": {2: 1.0, 4: 3.0}, "ring": {2: 1.0, 4: 1.5}}),
    "12.draw_seconds": lambda draw: draw(
        {"tree": {1e3: 1e-4, 1e6: 2e-3}, "yours": {1e3: 1e-3}}, ranks=8
    ),
    "02.draw_by_batch": lambda draw: draw(
        {"fixed": {8: [90.0, 94.0], 16: [80.0, 80.0]}}, y="accuracy", y_unit="%"
    ),
    "02.draw_bends": lambda draw: draw({"a model": {10: 100.0, 50: 180.0, 100: 300.0}}),
    "02.draw_steps": lambda draw: draw(
        {
            "linear rule": {8: [400, 440], 16: [200, 240], 32: [np.nan, 90]},
            "best rate": {8: [300, 340], 16: [150, 170], 32: [100, 120]},
        },
        lines_from=["best rate", "linear rule"],
    ),
    "01.draw_all_reduce": lambda draw: draw([[1, 0], [0, 3], [4, 1]], [[5, 4]] * 3),
    "20.draw_compiled_batches": lambda draw: draw(
        {"as they come": [(32, 32, 1), (4, 4, 2)], "padded": [(4, 32, 1)]}
    ),
    "05.draw_epochs": lambda draw: draw(
        {"fresh": [[(n, IMAGES[n]) for n in order] for order in ([0, 1, 2, 3], [2, 0, 1, 3])]},
        batch=2,
    ),
    "03.draw_example_weights": lambda draw: draw(
        [3, 3, 1], {"all": [1 / 7] * 7, "means": [1 / 9] * 6 + [1 / 3]}
    ),
    "00.draw_digits": lambda draw: draw(IMAGES, columns=3),
    "00.draw_shares": lambda draw: draw(IMAGES, [[[0, 1, 2], [3, 4]], [[5], []]]),
    "01.draw_gradients": lambda draw: draw(
        [[0.1, -0.2], [0.3, 0.0]], mean=[0.2, -0.1], one_device=[0.25, -0.1]
    ),
    "01.draw_losses": lambda draw: draw({"one device": [2.0, 1.5], "two replicas": [2.0, 1.4]}),
    "05.draw_step_splits": lambda draw: draw({"slow": SLOW, "quick": QUICK}),
    "05.draw_overlap": lambda draw: draw(read=3, compute=2, steps=4),
    "19.draw_costs": lambda draw: draw(
        {
            "all": {"weights": 9, "sent": 8, "Adam": 18},
            "LoRA": {"weights": 10, "sent": 1, "Adam": 4},
        }
    ),
    "14.draw_promises": lambda draw: draw(),
    "14.draw_bandwidth": lambda draw: draw(),
    "15.draw_peaks": lambda draw: draw(),
    "14.draw_overlap": lambda draw: draw({2: StepTimes(1.0, (2.0, 3.0), (5.0, 6.0))}),
    "07.draw_loss_scale": lambda draw: draw(
        {"float32": [3.0, 2.0, 1.0], "float16": [3.0, 3.0, 2.0]}, [8.0, 4.0, 4.0], skipped=[1]
    ),
    "06.draw_masks": lambda draw: draw({"same": [MASK, MASK], "cured": [MASK, OTHER_MASK]}),
    "16.draw_memory_by_replicas": lambda draw: draw(
        [1, 2],
        {"mirrored": [112, 112], "ZeRO 1": [112, 70]},
        measured={"ZeRO 1": {2: 70}},
        limit_gb=80,
    ),
    "21.draw_map": lambda draw: draw(),
    "17.draw_lanes": lambda draw: draw(
        {
            "interleaved": play(interleaved(2, 4), 4),
            "too short": play(one_f_one_b(2, 4, longer=-1), 4),
        }
    ),
    "11.draw_resumed": lambda draw: draw(
        [5.0, 4.0, 3.0], {"all": [3.0]}, stopped_at=2, killed_in=3
    ),
    "11.draw_interval": lambda draw: draw(
        [60, 120], {"saving": [0.02, 0.01], "lost": [0.005, 0.01]}, best_secs=120
    ),
    "11.draw_waste": lambda draw: draw([1, 10], {"no time": [0.04, 0.11], "a minute": [0.05, 0.2]}),
    "08.draw_move": lambda draw: draw(replicas=2, moved_to=3),
    "08.draw_differences": lambda draw: draw(
        {"a": {"one": 0.0, "two": 0.25}, "b": {"one": None, "two": np.nan}},
        tolerance=1e-6,
        title="weights",
        missing="no training",
    ),
    "06.draw_seeds": lambda draw: draw({"seed 1": [0.25, 0.5], "seed 2": [0.5, 0.625]}),
    "10.draw_roles": lambda draw: draw(workers=4, servers=1),
    "18.draw_doublings": lambda draw: draw({4: 9.0, 8: 8.0, 16: 4.0}, gpus_a_host=8),
    "18.draw_turns": lambda draw: draw({"in order": np.array([[1, 1], [0, 2]])}),
    "18.draw_split_layers": lambda draw: draw(examples=8, inputs=6, hidden=10, outputs=4),
    "10.draw_staleness": lambda draw: draw(
        {"slow": [(0, 5, 2, -0.5), (1, 2, 0, 0.5), (3, 4, 0, 0.25)]}, title="One stale step"
    ),
    "step_costs.draw_step_parts": lambda draw: draw([ONE, FOUR]),
    "step_costs.draw_efficiency": lambda draw: draw(
        {"VGG-16": [1 - power / 40 for power in range(13)]}, published=[("VGG-16", 512, 0.68)]
    ),
    "step_costs.draw_spread": lambda draw: draw({"strong": [ONE, FOUR]}, {"strong": [1.0, 0.1]}),
    "step_memory.draw_memory": lambda draw: draw(
        {"copied": {"weights": 40, "state": 60}, "cut": {"weights": 46, "state": 0}},
        limit_gb=80,
        model="12 billion weights",
    ),
    "21.draw_card": lambda draw: draw(list(CARD.values()), otherwise=OTHERWISE),
    "03.draw_paths": lambda draw: draw(
        {"scale": {"one device": PATH, "wrong": PATH + 1}}, weights=((0, 0), (1, 1))
    ),
    "underflow.draw_underflow": lambda draw: draw(
        {"layer 1": SIZES, "dead": np.zeros(4)}, scales=(1, 2**10)
    ),
    "underflow.draw_training": lambda draw: draw(
        {"float32": [2.0, 1.0], "float16": [2.3, 2.3]}, every_steps=10, level=("guessing", 2.3)
    ),
    "04.draw_drift": lambda draw: draw([[0, 0], [1, -1.5]], [0, 0.25], label="bias"),
    "13.draw_mfu": lambda draw: draw(
        [
            MeasuredMfu(width=width, xla=xla, flops=10**9, step_secs=0.1 / width, product_secs=0.01)
            for width in (2, 4)
            for xla in (False, True)
        ]
    ),
    "13.draw_rows": lambda draw: draw(
        Recording(
            machine="a machine",
            recorded="today",
            mfu=(),
            products=tuple(
                MeasuredProduct(rows=2**power, secs=1e-3 + 1e-5 * 2**power) for power in range(6)
            ),
            tiny_secs=5e-4,
            products_share=0.5,
            timelines={},
        )
    ),
    "13.draw_roofline": lambda draw: draw(peak_tflops=80, bytes_per_sec=2e12, rows=(1, 64)),
    "timeline.draw_timeline": lambda draw: draw({"two threads": EVENTS}, title="A timeline"),
    "workers.draw_readers": lambda draw: draw(
        IMAGES, {"a": [[[0, 1], [3]], [[2, 3], [5]]]}, columns=3
    ),
    "workers.draw_losses": lambda draw: draw(
        [2.0, 1.0], {"worker:0": [2.0, 1.0], "worker:1": [2.0, 1.0]}
    ),
    "workers.draw_lanes": lambda draw: draw(
        {
            "worker:0": [("computes", 2.0), ("waits", 1.0, "waits for worker:1")],
            "worker:1": [("computes", 3.0)],
        },
        limit=3.0,
    ),
}
LOOKS = [palette.replica(number) for number in range(4)]
LOOKS += [palette.ONE_DEVICE, palette.RIGHT, palette.WRONG, *palette.CATEGORIES]
COLOURS = {to_rgb(colour) for look in LOOKS for colour in (look.colour, palette.ink(look.colour))}
COLOURS.add(to_rgb(palette.GRID))


def test_each_drawing_function_has_sample_data():
    assert FIGURES.keys() - SAMPLES.keys() == set(), "give SAMPLES a call of each"
    assert SAMPLES.keys() - FIGURES.keys() == set(), "no function of these names is left"


def colours_of(figure):
    """The colours in which something is drawn, but for images, greys, and what is see-through."""
    drawn = []
    for artist in figure.findobj():
        names = ("get_color", "get_facecolor", "get_edgecolor")
        if isinstance(artist, Line2D) and artist.get_linestyle() == "None":
            names = ("get_markeredgecolor",)
        for name in names:
            if artist.get_visible() and hasattr(artist, name):
                drawn.extend(to_rgba_array(getattr(artist, name)()))
    opaque = {tuple(colour[:3]) for colour in drawn if colour[3] > 0}
    return {colour for colour in opaque if len(set(colour)) > 1}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_figure_is_drawn(name):
    before = plt.get_fignums()
    figure = SAMPLES[name](FIGURES[name])
    assert plt.get_fignums() == before, "a notebook would show it twice"
    figure.set_dpi(40)
    figure.set_layout_engine("none")  # half of the time, and no place is looked at
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    assert (pixels < 250).any(axis=-1).mean() > 0.005, "it is blank"
    assert any(text.get_text().strip() for text in figure.findobj(Text) if text.get_visible())
    assert len(figure.alt) > 20
    assert figure.get_figwidth() in (palette.NARROW, palette.MIDDLE, palette.WIDE)
    assert colours_of(figure) <= COLOURS
