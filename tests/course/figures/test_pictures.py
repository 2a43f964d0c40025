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
from distlab.course.lesson_16_choosing_a_strategy.figures import Layout
from distlab.course.lesson_16_choosing_a_strategy.strategy_card import CARD, OTHERWISE
from distlab.course.lesson_17_beyond_data_parallelism.pipeline_schedule import pipeline_schedule
from distlab.course.measure.bandwidth import AllReduceTime
from distlab.course.measure.cost_model import CostModel
from distlab.course.measure.scaling_runs import MeasuredStep
from distlab.course.measure.step_split import StepSplit


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
MODEL = CostModel(secs_per_example=1e-4, latency_secs=1e-4, bytes_per_sec=1e8)
ONE = MeasuredStep(1, 64, 400, 0.010, 0.0, 0.002, 0.012, (0.011, 0.014))
FOUR = MeasuredStep(4, 64, 400, 0.020, 0.008, 0.002, 0.030, (0.029, 0.033))
SLOW = StepSplit(real_ms=100.0, compute_ms=10.0, input_ms=98.0)
QUICK = StepSplit(real_ms=12.0, compute_ms=10.0, input_ms=4.0)
ALL_REDUCES = [AllReduceTime(2, size, secs) for size, secs in ((4, 2e-4), (2**20, 1e-2))]
MIRRORED = Layout(
    "mirrored", ("first", "second"), (0, 1), (0, 1), ((1, 0, "gradients"), (0, 1, "their sum"))
)


def networks():
    first, second = Network(2), Network(3)
    first.step({(0, 1): np.zeros(2, np.float32)})
    second.step({(0, 1): np.zeros(1, np.float32), (1, 0): np.zeros(3, np.float32)})
    second.step({(2, 1): np.zeros(1, np.float32)})
    return {"one way": first, "both ways": second}


# How each is drawn, and what is to be read in it or in its alternative text, whose numbers are
# computed from what is drawn.
CONTACTS = {
    "12.draw_traffic": (
        lambda draw: draw(networks(), vector_bytes=4),
        "one way: 1 step | both ways: 2 steps | sent | received | both ways, 2 steps: sent "
        "1, 3, 1, received 3, 2, 0",
    ),
    "12.draw_busiest": (
        lambda draw: draw({"naive": {2: 1.0, 4: 3.0}, "ring": {2: 1.0, 4: 1.5}}),
        "naive | ring | ring: 1 with 2, 1.5 with 4",
    ),
    "12.draw_seconds": (
        lambda draw: draw({"tree": {1e3: 1e-4, 1e6: 2e-3}, "yours": {1e3: 1e-3}}, ranks=8),
        "size of the vector, 8 ranks | tree takes 1 KB in 0.1 ms, 1 MB in 2 ms",
    ),
    "02.draw_by_batch": (
        lambda draw: draw({"fixed": {8: [90.0, 94.0], 16: [80.0, 80.0]}}, y="accuracy", y_unit="%"),
        "accuracy (%) | fixed | 92 % at 8, 80 % at 16",
    ),
    "02.draw_steps": (
        lambda draw: draw(
            {
                "linear rule": {8: [400, 440], 16: [200, 240], 32: [np.nan, 90]},
                "best rate": {8: [300, 340], 16: [150, 170], 32: [100, 120]},
            },
            lines_from=["best rate", "linear rule"],
        ),
        "linear rule | best rate | not all seeds arrive at 32 | from 320 at 8 to 80 at 32, "
        "and from 420 at 8 to 105 at 32",
    ),
    "01.draw_all_reduce": (
        lambda draw: draw([[1, 0], [0, 3], [4, 1]], [[5, 4]] * 3),
        "0 | 3 | 4 | 5 | replica 1 gives 0, 3 | sum is 5, 4 | every replica receives 5, 4.",
    ),
    "15.draw_compiled_batches": (
        lambda draw: draw({"as they come": [(32, 32, 1), (4, 4, 2)], "padded": [(4, 32, 1)]}),
        "as they come: 2 programs | padded: 1 program | program 2 | padding | padded: 1 "
        "batches of 32 rows, 28 of them padding, run by programs 1.",
    ),
    "05.draw_epochs": (
        lambda draw: draw(
            {"fresh": [[(n, IMAGES[n]) for n in order] for order in ([0, 1, 2, 3], [2, 0, 1, 3])]},
            batch=2,
        ),
        "0 | 1 | 2 | 3 | fresh: 2 epochs of 4 images. Different orders: 2. Different "
        "batches: 4. Versions of one image: at most 1.",
    ),
    "03.draw_example_weights": (
        lambda draw: draw([3, 3, 1], {"all": [1 / 7] * 7, "means": [1 / 9] * 6 + [1 / 3]}),
        "all | means | means: on replica 0 each example weighs 0.111 | on replica 2 each "
        "example weighs 0.333",
    ),
    "00.draw_digits": (
        lambda draw: draw(IMAGES, columns=3),
        "0 | 5 | 6 small grey images",
    ),
    "00.draw_shares": (
        lambda draw: draw(IMAGES, [[[0, 1, 2], [3, 4]], [[5], []]]),
        "batch 1: 5 examples | batch 2: 1 examples | replica 0 | replica 1 | = 3 | = 2 | = 1 | = 0",
    ),
    "01.draw_gradients": (
        lambda draw: draw([[0.1, -0.2], [0.3, 0.0]], mean=[0.2, -0.1], one_device=[0.25, -0.1]),
        "replica 0 | replica 1 | mean of the replicas | one device",
    ),
    "01.draw_losses": (
        lambda draw: draw({"one device": [2.0, 1.5], "two replicas": [2.0, 1.4]}),
        "one device | two replicas",
    ),
    "05.draw_step_splits": (
        lambda draw: draw({"slow": SLOW, "quick": QUICK}),
        "100 ms | 98 ms | 4 ms | slow | quick | slow: 100 ms, of which the computation takes "
        "10 ms; the input alone takes 98 ms.",
    ),
    "05.draw_overlap": (
        lambda draw: draw(read=3, compute=2, steps=4),
        "nothing is read ahead: 20 units of time | one batch is read ahead: 14 units of time "
        "| one batch is read ahead, the last step ends after 14",
    ),
    "14.draw_label_curve": (
        lambda draw: draw({"scratch": {1: [0.2, 0.4], 10: [0.5, 0.7]}}, ("scratch",)),
        "labels a class | test accuracy | scratch | scratch: 30% with 1, 60% with 10.",
    ),
    "07.draw_loss_scale": (
        lambda draw: draw(
            {"float32": [3.0, 2.0, 1.0], "float16": [3.0, 3.0, 2.0]}, [8.0, 4.0, 4.0], skipped=[1]
        ),
        "skipped | float32 | float16",
    ),
    "06.draw_masks": (
        lambda draw: draw({"same": [MASK, MASK], "cured": [MASK, OTHER_MASK]}),
        "same | cured | units\ndiffer in no cell | units\ndiffer in 6 of 6 cells | same: the "
        "replicas differ in no cell. cured: the replicas differ in 6",
    ),
    "17.draw_memory_by_replicas": (
        lambda draw: draw([1, 2], {"mirrored": [112, 112], "ZeRO 1": [112, 70]}, limit_gb=80),
        "mirrored | ZeRO 1 | with a line at 80 GB | mirrored: 112 GB with 1 and 112 GB with "
        "2; it never fits. | ZeRO 1: 112 GB with 1 and 70 GB with 2; it fits from 2 "
        "replicas.",
    ),
    "16.draw_map": (
        lambda draw: draw(),
        "data parallelism | data parallelism: device 0 has half of the batch and all of each "
        "layer | device 1 has no examples and no part of layer 1, no part of layer 2, all of "
        "layer 3 | half of the batch and half of each layer, and fetches the other half "
        "while it | whole batch and no part of each layer, and fetches the whole while it "
        "computes the",
    ),
    "17.draw_pipeline": (
        lambda draw: draw({f"m = {m}": pipeline_schedule(3, micro_batches=m) for m in (1, 4)}),
        "m = 1: 67 % idle | m = 4: 33 % idle | forward | backward | idle | m = 4: 3 stages, "
        "33 % idle, a batch takes 3 units of time.",
    ),
    "11.draw_resumed": (
        lambda draw: draw([5.0, 4.0, 3.0], {"all": [3.0]}, stopped_at=2, killed_in=3),
        "undisturbed | all | resumes here | killed",
    ),
    "11.draw_interval": (
        lambda draw: draw(
            [60, 120], {"saving": [0.02, 0.01], "lost": [0.005, 0.01]}, best_secs=120
        ),
        "saving | lost | together | 2 min",
    ),
    "11.draw_waste": (
        lambda draw: draw([1, 10], {"no time": [0.04, 0.11], "a minute": [0.05, 0.2]}),
        "no time | a minute | a minute: 5 % on 1, 20 % on 10.",
    ),
    "08.draw_move": (
        lambda draw: draw(replicas=2, moved_to=3),
        "replica 0 | replica 1 | replica 2",
    ),
    "08.draw_differences": (
        lambda draw: draw(
            {"a": {"one": 0.0, "two": 0.25}, "b": {"one": None, "two": np.nan}},
            tolerance=1e-6,
            title="weights",
            missing="no training",
        ),
        "a | b | one | two | weights | equal | 0.25 apart | no training | nan apart | a: "
        "equal, 0.25 apart.",
    ),
    "06.draw_seeds": (
        lambda draw: draw({"seed 1": [0.25, 0.5], "seed 2": [0.5, 0.625]}),
        "seed 1 | seed 2 | training accuracy (%) | 25 percentage points apart | between 50 "
        "and 62 %",
    ),
    "10.draw_roles": (
        lambda draw: draw(workers=4, servers=1),
        "4 workers in the middle, 1 parameter server on the right",
    ),
    "17.draw_split_layers": (
        lambda draw: draw(examples=8, inputs=6, hidden=10, outputs=4),
        "first kernel\n[6, 10] | second kernel\n[10, 4] | each device has [6, 5] and "
        "computes 5 of the 10 hidden units",
    ),
    "10.draw_staleness": (
        lambda draw: draw({"slow": [(0, 5, 2, -0.5), (1, 2, 0, 0.5), (3, 4, 0, 0.25)]}),
        "slow | 0 | 2 | slow: 2 with staleness 0, 1 with staleness 2",
    ),
    "step_costs.draw_step_parts": (
        lambda draw: draw([ONE, FOUR]),
        "12 ms | 30 ms | 1 replica, 64 examples each: compute 10 ms, communication 0 ms, "
        "input 2 ms. | 4 replicas, 16 examples each: compute 20 ms, communication 8 ms",
    ),
    "step_costs.draw_all_reduce_times": (
        lambda draw: draw(ALL_REDUCES[:1], model=MODEL, unseen=ALL_REDUCES[1:]),
        "2 replicas: 200 µs for 4 bytes, 10000 µs for 1048576 bytes.",
    ),
    "step_costs.draw_scaling": (
        lambda draw: draw(
            {"small": (MODEL, {"per_replica_batch": 10, "gradient_bytes": 1e5})},
            published=[("small", 512, 0.4)],
        ),
        "small | Published for small: 40 % on 512.",
    ),
    "step_costs.draw_spread": (
        lambda draw: draw({"strong": [ONE, FOUR]}, {"strong": [1.0, 0.1]}),
        "efficiency 10 %, middle half 29.00 to 33.00 ms | middle half 29.00 to 33.00 ms, "
        "efficiency 10 %.",
    ),
    "step_memory.draw_memory": (
        lambda draw: draw(
            {"copied": {"weights": 40, "state": 60}, "cut": {"weights": 46, "state": 0}},
            limit_gb=80,
        ),
        "100 GB, too large | 46 GB, fits | copied: 100 GB, which is too large. cut: 46 GB, "
        "which fits.",
    ),
    "16.draw_layouts": (
        lambda draw: draw([MIRRORED]),
        "mirrored | first | second | gradients | their sum | variables | a replica | "
        "mirrored: replicas on first and second, variables on first and second | second "
        "sends first gradients; first sends second their sum",
    ),
    "16.draw_card": (
        lambda draw: draw(list(CARD.values()), otherwise=OTHERWISE),
        "mirrored",
    ),
    "03.draw_paths": (
        lambda draw: draw(
            {"scale": {"one device": PATH, "wrong": PATH + 1}}, weights=((0, 0), (1, 1))
        ),
        "scale | one device | start | wrong | The path of wrong ends 0.5 times as far from "
        "the end of one device",
    ),
    "underflow.draw_underflow": (
        lambda draw: draw({"layer 1": SIZES, "dead": np.zeros(4)}, scales=(1, 2**10)),
        "scale 1 | scale $2^{10}$ | layer 1 | 50% lost | all kept | becomes 0",
    ),
    "underflow.draw_training": (
        lambda draw: draw(
            {"float32": [2.0, 1.0], "float16": [2.3, 2.3]}, every_steps=10, level=("guessing", 2.3)
        ),
        "float32 | float16 | guessing",
    ),
    "04.draw_drift": (
        lambda draw: draw([[0, 0], [1, -1.5]], [0, 0.25], label="bias"),
        "step | bias | one device | replica 0 | replica 1 | The bias over 1 steps. The "
        "copies of the 2 replicas are at most 2.50 apart and end at 1.00, -1.50; one device "
        "ends at 0.25.",
    ),
    "workers.draw_readers": (
        lambda draw: draw(IMAGES, {"a": [[[0, 1], [3]], [[2, 3], [5]]]}, columns=3),
        "a: 5 of 6 trained | worker:0 | worker:1 | no worker | 2, 1 | 1 are trained by no "
        "worker and 1 more than once | worker:0 trains on [0, 1]; worker:1 trains on [2, 3]",
    ),
    "workers.draw_losses": (
        lambda draw: draw([2.0, 1.0], {"worker:0": [2.0, 1.0], "worker:1": [2.0, 1.0]}),
        "one device | worker:0 | worker:1",
    ),
    "workers.draw_lanes": (
        lambda draw: draw(
            {
                "worker:0": [("computes", 2.0), ("waits", 1.0, "waits for worker:1")],
                "worker:1": [("computes", 3.0)],
            },
            limit=3.0,
        ),
        "waits for worker:1 | worker:0 computes | waits | worker:1 computes | worker:0: "
        "computes for 2; then waits for worker:1 for 1.",
    ),
}
LOOKS = [palette.replica(number) for number in range(4)]
LOOKS += [palette.ONE_DEVICE, palette.RIGHT, palette.WRONG, *palette.CATEGORIES]
COLOURS = {to_rgb(look.colour) for look in LOOKS}


def test_each_drawing_function_is_among_them():
    assert set(CONTACTS) == set(FIGURES)


def words_of(figure):
    """All texts that are seen in a figure."""
    return {text.get_text().strip() for text in figure.findobj(Text) if text.get_visible()}


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


@pytest.mark.parametrize("name", CONTACTS)
def test_a_figure_is_drawn(name):
    draw, expected = CONTACTS[name]
    before = plt.get_fignums()
    figure = draw(FIGURES[name])
    assert plt.get_fignums() == before, "a notebook would show it twice"
    figure.set_dpi(40)
    figure.set_layout_engine("none")  # half of the time, and no place is looked at
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    assert (pixels < 250).any(axis=-1).mean() > 0.005, "it is blank"
    words = words_of(figure)
    assert any(words) and len(figure.alt) > 20
    lacking = [
        text for text in expected.split(" | ") if text not in words and text not in figure.alt
    ]
    assert lacking == [], (sorted(words), figure.alt)
    assert colours_of(figure) <= COLOURS
