"""The checks of lesson 13: right answers pass, each mistake is named; what the lesson claims."""

import functools
from itertools import pairwise

import pytest

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_13_step_cost.published import (
    LLAMA_3_8B,
    LLAMA_3_8B_PARAMETERS,
    PUBLISHED,
)
from distlab.course.lesson_13_step_cost.recorded import recorded_steps
from distlab.course.lesson_13_step_cost.view import explore_flops, shown_flops
from distlab.course.measure.timeline import COMPUTE, busy_ms, overlap_ms
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    edited_solutions,
    load_solution,
)

STEM = "13_step_cost"
CHECKS = {check.name: check for check in checks_of(STEM)}
COST, MFU, COSTLIEST, REMEDY = CHECKS.values()
edited = functools.partial(edited_solution, STEM)


# --- transformer_cost


def cost_by_products(sizes, length, batch):
    """Lists the products of a layer, each as the shapes of its factors."""
    d, tokens = sizes["width"], length * batch
    head = d // sizes["heads"]
    shared = head * sizes["key_heads"]
    layer = [(d, d), (d, shared), (d, shared), (d, d), *[(d, sizes["hidden"])] * 3]
    table = (d, sizes["vocabulary"])
    weights = [*layer * sizes["layers"], table]
    forward = sum(2 * tokens * rows * columns for rows, columns in weights)
    pairs = 2 * batch * sizes["heads"] * length * length * head
    forward += 2 * sizes["layers"] * pairs
    norms = (2 * sizes["layers"] + 1) * d
    counts = sum(rows * columns for rows, columns in [*weights, table])
    return [counts + norms, float(3 * forward)]


def test_costs_are_judged():
    assert_right_answers_pass(COST, cost_by_products)
    wrong = edited_solutions(
        STEM,
        "transformer_cost",
        {
            "forward_only": {"6 * weights + 12": "2 * weights + 4"},
            "macs_for_flops": {"6 * weights + 12": "3 * weights + 6"},
            "attention_forgotten": {" + 12 * layers * d * length": ""},
            "embedding_as_product": {"layers * layer + table  #": "layers * layer + 2 * table  #"},
            "one_text": {"batch * length *": "length *"},
            "six_n": {"6 * weights + 12 * layers * d * length": "6 * parameters"},
            "norms_multiplied": {"= layers * layer + table  #": "= parameters - table  #"},
        },
    )
    assert_mistakes_are_caught(COST, wrong, earned=1.5)
    tables_and_no_pairs = edited(
        "transformer_cost",
        {
            " + 12 * layers * d * length": "",
            "layers * layer + table  #": "layers * layer + 2 * table  #",
        },
    )
    assert_mistakes_are_caught(COST, {"six_n": tables_and_no_pairs}, earned=1.5)
    all_parameters = edited("transformer_cost", {"6 * weights": "6 * parameters"})
    assert_mistakes_are_caught(COST, {"embedding_as_product": all_parameters}, earned=1.5)
    assert_mistakes_are_caught(
        COST,
        {"tied_tables": edited("transformer_cost", {"d + 2 * table": "d + table"})},
        earned=2.5,
    )
    both = edited_solutions(
        STEM,
        "transformer_cost",
        {
            "keys_of_all_heads": {' * sizes["key_heads"] // sizes["heads"]': ""},
            "not_gated": {"3 * d * sizes": "2 * d * sizes"},
        },
    )
    assert_mistakes_are_caught(COST, both, earned=0)
    said = {"two numbers, the parameters": lambda sizes, length, batch: 7}
    assert_feedback_says(COST, said)
    halved = edited("transformer_cost", {"batch * length *": "0.7 * batch * length *"})
    assert_feedback_says(COST, {"key_heads 1; and Llama 3 8B with length 8192": halved}, earned=1.5)


# --- mfu


def mfu_from_seconds(run):
    used = run.keys() - {"name", "published"}
    missing = [key for key in used if run[key] is None]
    if missing:
        raise ValueError(f"missing: {missing}")
    secs_of_a_token = 1 / run["tokens_per_sec"]
    dense = 2 * 3 * (run["parameters"] - run["embedding"])
    pairs = 3 * run["layers"] * (2 + 2) * run["width"] * run["length"]
    return (dense + pairs) / secs_of_a_token / run["peak"]


def test_mfus_are_judged():
    assert_right_answers_pass(MFU, mfu_from_seconds)
    weights, attention = 'run["parameters"] - run["embedding"]', "6 * weights + 12"
    wrong = edited_solutions(
        STEM,
        "mfu",
        {
            "six_n": {
                weights: 'run["parameters"]',
                ' + 12 * run["layers"] * run["width"] * run["length"]': "",
            },
            "causal_half": {attention: "6 * weights + 6"},
            "with_embedding": {weights: 'run["parameters"]'},
            "forward_only": {attention: "2 * weights + 4"},
            "percent_for_part": {'return run["tokens': 'return 100 * run["tokens'},
        },
    )
    assert_mistakes_are_caught(MFU, wrong, earned=1)
    never_asked = edited("mfu", {"if run[name] is None": "if run is None"})
    assert_mistakes_are_caught(MFU, {"none_multiplied": never_asked}, earned=3)
    guessed = edited(
        "mfu",
        {'raise ValueError(f"the page doesn\'t state {name!r}")': "return 0.4"},
    )
    assert_mistakes_are_caught(MFU, {"guessed_for_missing": guessed}, earned=3)
    unnamed = edited("mfu", {"doesn't state {name!r}": "says too little"})
    names = '("parameters", "embedding", "layers", "width", "length", "peak", "tokens_per_sec")'
    all_asked = edited("mfu", {names: "run"})
    assert_mistakes_are_caught(MFU, {"published_asked": all_asked}, earned=0)
    assert_feedback_says(MFU, {"yours returned [None": lambda run: None})
    assert_feedback_says(MFU, {"for a run without": unnamed}, earned=3)


# --- costliest


def costliest_by_ticks(events):
    """Cuts time at each start and end, and asks of each piece what runs in it."""
    cuts = sorted({at for _, _, start, ms in events for at in (start, start + ms)})
    spent = {}
    for start, end in pairwise(cuts):
        running = {name for _, name, at, ms in events if at <= start and end <= at + ms}
        for name in running - {"waits"}:
            spent[name] = spent.get(name, 0) + end - start
    name = max(spent, key=spent.get)
    return [name, spent[name] / (cuts[-1] - cuts[0])]


def costliest_by_spans(events, *, last_end=max):
    """Joins what overlaps into spans."""
    rows = {}
    for _, name, start, ms in sorted(events, key=lambda event: event[2:]):
        spans = rows.setdefault(name, [])
        if spans and start <= spans[-1][1]:
            spans[-1][1] = last_end(spans[-1][1], start + ms)
        else:
            spans.append([start, start + ms])
    ends = [end for spans in rows.values() for _, end in spans]
    first = min(start for spans in rows.values() for start, _ in spans)
    del rows["waits"]
    busy = {name: sum(end - start for start, end in spans) for name, spans in rows.items()}
    name = max(busy, key=busy.get)
    return name, busy[name] / (max(ends) - first)


def test_costliest_operations_are_judged():
    assert_right_answers_pass(COSTLIEST, costliest_by_ticks)
    assert_right_answers_pass(COSTLIEST, costliest_by_spans)
    spans = functools.partial(costliest_by_spans, last_end=lambda _, end: end)
    assert_mistakes_are_caught(COSTLIEST, {"nested_ends": lambda events: spans(events)}, earned=0)
    sweep = edited("costliest", {"until = max(until, end)": "until = end"})
    assert_mistakes_are_caught(COSTLIEST, {"nested_ends": sweep}, earned=2)
    wrong = edited_solutions(
        STEM,
        "costliest",
        {
            "overlaps_added": {"max(0, end - max(start, until))": "end - start"},
            "waiting_as_work": {'    spans.pop("waits", None)\n': ""},
        },
    )
    assert_mistakes_are_caught(COSTLIEST, wrong, earned=0)
    counted = edited("costliest", {"covered(spans[operation]))": "len(spans[operation]))"})
    assert_mistakes_are_caught(COSTLIEST, {"counted_not_timed": counted}, earned=0)
    busy = edited(
        "costliest",
        {"/ (last - first)": "/ covered(span for each in spans.values() for span in each)"},
    )
    assert_mistakes_are_caught(COSTLIEST, {"share_of_the_busy_time": busy}, earned=2)


# --- remedy


def remedy_by_pairs(waits, products, others):
    ranked = [
        (waits, "prefetch"),
        (others, "XLA"),
        (100 - waits - products - others, "larger batch"),
    ]
    loss, word = sorted(ranked)[-1]
    return word if products <= 2 * loss else "nothing"


def test_remedies_are_judged():
    assert_right_answers_pass(REMEDY, remedy_by_pairs)
    swapped = {
        "xla_for_idle": {
            '"XLA": others, "larger batch": idle': '"XLA": idle, "larger batch": others'
        },
        "prefetch_for_idle": {
            '"prefetch": waits': '"prefetch": idle',
            '"larger batch": idle': '"larger batch": waits',
        },
        "never_nothing": {'"nothing" if products > 2 * losses[cure] else cure': "cure"},
    }
    assert_mistakes_are_caught(REMEDY, edited_solutions(STEM, "remedy", swapped), earned=0)
    said = {"one of prefetch, XLA": lambda waits, products, others: "GPU"}
    assert_feedback_says(REMEDY, said)


# --- what the lesson says and does not show


def test_the_published_mfus_are_reproduced():
    solution = load_solution(STEM)
    found = [100 * solution["mfu"](run) for run in PUBLISHED]
    assert found == pytest.approx([33.7, 39.0], abs=0.05)
    assert [int(percent) for percent in found] == [run["published"] for run in PUBLISHED]
    cost = solution["transformer_cost"]
    assert cost(LLAMA_3_8B, 8192, 2)[0] == LLAMA_3_8B_PARAMETERS
    half = LLAMA_3_8B["width"] * LLAMA_3_8B["layers"] * 12 * 28_600
    assert half == pytest.approx(cost(LLAMA_3_8B, 28_600, 1)[1] / 28_600 / 2, rel=0.01)
    hours = 6 * 405e9 * 15.6e12 / (0.4 * 989e12) / 3600
    assert hours == pytest.approx(30.84e6, rel=0.15)


def test_the_recording_says_what_the_lesson_says():
    recording = recorded_steps()
    plain = {row.width: row.mfu for row in recording.mfu if not row.xla}
    for narrow, wide in pairwise((32, 64, 128, 256)):
        assert plain[wide] > 1.2 * plain[narrow]
    gains = [row.mfu / plain[row.width] for row in recording.mfu if row.xla]
    assert gains[0] == max(gains) > 1.1
    steps = {row.width: row for row in recording.mfu if not row.xla}
    assert steps[256].flops / steps[64].flops == pytest.approx(13.6, abs=0.05)
    assert 4 < steps[256].step_secs / steps[64].step_secs < 5.5
    secs = {product.rows: product.secs for product in recording.products}
    assert secs[32] < 1.8 * secs[1]
    assert 0.01 < (secs[32] - secs[1]) / 31 / secs[1] < 0.03
    assert recording.tiny_secs < 0.8 * secs[1]
    share, flops = recording.products_share, 0.97
    assert share < 0.5
    assert (1 - share) / (1 - flops) > 24 * share / flops
    beside = {
        name: overlap_ms(events, "input", COMPUTE) / busy_ms(events, "input")
        for name, events in recording.timelines.items()
    }
    assert beside["without prefetch"] < 0.1
    assert beside["with prefetch"] > 0.5
    computes = [busy_ms(events, *COMPUTE) for events in recording.timelines.values()]
    assert computes == pytest.approx(computes[::-1], rel=0.15)
    threads = {
        name: {event.thread for event in events if event.kind == "input"}
        for name, events in recording.timelines.items()
    }
    ahead = threads["with prefetch"] - threads["without prefetch"]
    assert ahead == {"tf_data_iterator_resource 1"}


def products_and_others(length):
    """The FLOPs of the lesson's step: by hand, the profiler's products, and what else it counts."""
    from distlab.course.lesson_13_step_cost.runs import TrainingStep
    from distlab.course.measure.flops import (
        flops_of,
        profiler_others,
        profiler_products,
        xla_products,
    )

    step = TrainingStep(64, length=length, rows=8)
    profiled = profiler_products(step.gradients, *step.batch)
    right = {each.name: each.flops for each in xla_products(step.gradients, *step.batch)}
    wrong = {each.kind for each in profiled if each.flops != right[each.name]}
    others = profiler_others(step.gradients, *step.batch)
    return sum(right.values()), flops_of(profiled), others, wrong


def test_the_products_are_nearly_all_flops():
    by_hand, profiled, others, wrong = products_and_others(length=128)
    assert by_hand == 3 * 8 * 128 * (2 * (2 * 12 * 64**2 + 64 * 128) + 2 * 4 * 128 * 64)
    assert by_hand > 1.25 * profiled
    assert 0.95 < by_hand / (by_hand + others) < 0.98
    assert wrong == {"Einsum", "BatchMatMulV2"}


def test_at_a_length_of_the_width_only_the_first_mistake_shows():
    *_, wrong = products_and_others(length=64)
    assert wrong == {"Einsum"}


def test_the_view_has_the_flops_of_the_lesson():
    view = explore_flops()
    figure = view.draw_now(width=64, length=1024, batch=8, layers=2)
    per_token = 6 * (2 * 12 * 64**2 + 64 * 128) + 12 * 2 * 64 * 1024
    assert figure.get_suptitle() == (
        f"{shown_flops(8 * 1024 * per_token)} in a step: width 64, 1,024 tokens"
    )
    assert [shown_flops(flops) for flops in (12, 855_638_016, 4.2e15, 3e18)] == [
        "12 FLOP",
        "856 MFLOP",
        "4.2 PFLOP",
        "3 EFLOP",
    ]
