"""The page "Is your `fit` right?": its questions, its words, and which answers are measured.

It needs no TensorFlow: `tools/fit_check.py` trains what the answers say, and `make map` puts the
words of this file and the cells of docs/zoo.md into docs/_static/fit_check.json and the page.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.measured_pages import Cells, read_tables, table, write_page

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "fit_check.md"
DATA = ROOT / "docs" / "_static" / "fit_check.json"
ZOO = ROOT / "docs" / "zoo.md"

Answers = dict[str, str]  # by question
# What Keras's own `fit` and `distribute` do, in the words of the zoo's cells, by `key`.
Measured = dict[str, list[str]]


@dataclass(frozen=True)
class Answer:
    """One answer to a question.

    Attributes:
        label: Its words below the question.
        named: What it's called without the question, if that's different.
        why: How Keras's own `fit` comes to differ by it, where it does.
        read: The place that explains it.
        cure: The answer that plain Keras can give instead, if any.
        code: The line of plain Keras that does so.
    """

    label: str
    named: str = ""
    why: str = ""
    read: str = ""
    cure: str = ""
    code: str = ""


@dataclass(frozen=True)
class Question:
    """A question with its answers, of which the first is plain.

    Attributes:
        asks: Its words.
        answers: By name. All combinations of answers are measured, except those of `in_pairs`.
        in_pairs: Answers that are measured with at most one other that isn't plain.
    """

    asks: str
    answers: Mapping[str, Answer]
    in_pairs: tuple[str, ...] = ()


_MEAN_OF_MEANS = (
    "Keras takes the mean of the replicas' means. Where their shares are unequal, an example of "
    "the smaller share counts more."
)
_CLIPS = "Each replica clips its own part of the gradient, before the all-reduce makes the whole."
_CLIPPING = "pitfalls.html#clipping-changes-with-the-number-of-replicas"

QUESTIONS = {
    "strategy": Question(
        "Which strategy?",
        {
            "mirrored": Answer("`MirroredStrategy`"),
            "central_storage": Answer(
                "`CentralStorageStrategy`",
                why="A metric has one total there, and each replica's update of it counts again.",
                read="pitfalls.html#centralstorage-logs-a-wrong-loss-or-nan",
            ),
            "multi_worker": Answer("`MultiWorkerMirroredStrategy`"),
            "parameter_server": Answer("`ParameterServerStrategy`"),
        },
        ("central_storage", "multi_worker", "parameter_server"),
    ),
    "batches": Question(
        "How large are your batches?",
        {
            "full": Answer("all full"),
            "partial": Answer(
                "the last one is partial",
                named="partial last batch",
                why=_MEAN_OF_MEANS,
                read="pitfalls.html#empty-shares-the-last-step-is-too-short",
                cure="full",
                code="train = examples.batch(64, drop_remainder=True)",
            ),
            "uneven": Answer(
                "no multiple of the replicas",
                named="batches that are no multiple of the replicas",
                why=_MEAN_OF_MEANS,
                read="support_matrix.html#which-features-of-a-model-and-its-data-work",
                cure="full",
                code="batch_size = 32 * strategy.num_replicas_in_sync",
            ),
        },
        ("uneven",),
    ),
    "clip": Question(
        "Does the optimizer clip?",
        {
            "none": Answer("no"),
            "clipnorm": Answer("`clipnorm`", why=_CLIPS, read=_CLIPPING),
            "global_clipnorm": Answer("`global_clipnorm`", why=_CLIPS, read=_CLIPPING),
            "clipvalue": Answer("`clipvalue`", why=_CLIPS, read=_CLIPPING),
        },
    ),
    "loss": Question(
        "Where does the loss come from?",
        {
            "keras": Answer("a loss of Keras"),
            "values": Answer("my function: a value for each example"),
            "number": Answer(
                "my function: one number",
                why="Keras divides a loss by the number of replicas only where it takes the mean "
                "itself. Your number passes undivided, and the all-reduce adds up too much.",
                read="distribute.html#your-own-code",
                cure="values",
                code="return ops.mean(errors, axis=-1)  # in the loss",
            ),
            "ignores": Answer(
                "a loss with `ignore_class`",
                why="Each replica divides by the examples that count in its own share, and the "
                "shares hold unequal numbers of them.",
                read="pitfalls.html#masked-padding-makes-the-loss-small",
            ),
            "step": Answer(
                "my `train_step`, with `compute_loss`",
                why="`compute_loss` divides a replica's loss by the number of replicas, which is "
                "right for the gradients, and your step logs the divided loss.",
                read="distribute.html#your-own-code",
            ),
            "raw_step": Answer(
                "my `train_step`, with a mean of its own",
                why="The all-reduce adds up the gradients of the replicas' means, and nothing "
                "divides them by the number of replicas.",
                read="../notebooks/03_custom_training_loop.html",
                cure="step",
                code="loss = self.compute_loss(x, y, y_pred)",
            ),
        },
    ),
    "norm": Question(
        "Batch normalization?",
        {
            "none": Answer("none"),
            "plain": Answer(
                "`BatchNormalization()`",
                why="Each replica normalizes by the mean and variance of its own examples.",
                read="distribute.html#your-own-code",
                cure="synchronized",
                code="layers.BatchNormalization(synchronized=True)",
            ),
            "synchronized": Answer(
                "`synchronized=True`",
                named="`BatchNormalization(synchronized=True)`",
                why="The synchronized statistics weigh all replicas alike, whatever their shares.",
                read="distribute.html#your-own-code",
            ),
        },
    ),
    "weights": Question(
        "Do some examples count more?",
        {
            "none": Answer("no"),
            "sample": Answer("`sample_weight`"),
            "class": Answer("`class_weight`"),
        },
        ("sample", "class"),
    ),
    "dropout": Question(
        "Dropout?",
        {
            "no": Answer("no"),
            "yes": Answer(
                "yes",
                named="dropout",
                why="Each replica drops other units than one device. That is another draw and no "
                "mistake, but a comparison with one device can't tell the two apart.",
                read="distribute.html#how-it-works",
            ),
        },
        ("yes",),
    ),
}
PLAIN: Answers = {name: next(iter(question.answers)) for name, question in QUESTIONS.items()}
# The page begins with what most training runs have.
START: Answers = PLAIN | {"batches": "partial"}
# Why Keras's own `fit` stops, by the words of the cell.
CRASHES = {
    "adds up shares of different shapes": "Before it trains, `fit` takes the mean of the replicas' "
    "parts of the first batch, and those must have the same shape.",
    "PerReplica to Tensor": "Outside of `strategy.run`, `fit` takes a distributed batch, a "
    "PerReplica, for a tensor.",
    "wants create_per_worker_dataset": "`fit` reads your data set on the coordinator, and "
    "TensorFlow wants one that each worker makes.",
    "a variable without aggregation": "Both replicas set one variable of the layer, and nothing "
    "says how their values become one.",
}
# Models of the zoo to name as the nearest: what they have. All end with a partial batch, and there
# Keras's own `fit` runs under MirroredStrategy, without dropout, with synchronized statistics.
NEAREST: dict[str, Answers] = {
    "autoencoder": {},
    "residual_net": {"norm": "synchronized"},
    "answers_by_start_and_end": {"clip": "clipnorm"},
    "mobilenet_v2": {"clip": "clipnorm", "norm": "synchronized", "dropout": "yes"},
    "table_by_crosses": {"clip": "global_clipnorm", "norm": "synchronized", "dropout": "yes"},
    "quantiles_of_a_number": {"loss": "values"},
    "dice_loss": {"loss": "number"},
    "translation_by_transformer": {"loss": "ignores", "dropout": "yes"},
    "own_train_step": {"loss": "step"},
    "weighted_steps": {"loss": "step", "weights": "sample"},
    "raw_tensors": {"loss": "raw_step"},
    "regression_with_weights": {"weights": "sample"},
    "text_with_class_weight": {"weights": "class", "dropout": "yes"},
    "convnet": {"dropout": "yes"},
    "data_by_generator": {"batches": "uneven"},
}


def key(answers: Answers) -> str:
    """Returns the answers, in the order of the questions."""
    return " ".join(answers[name] for name in QUESTIONS)


def combinations() -> Iterator[Answers]:
    """Yields the answers that are measured."""
    for given in itertools.product(*(question.answers for question in QUESTIONS.values())):
        answers = dict(zip(QUESTIONS, given, strict=True))
        in_pairs = any(answers[name] in QUESTIONS[name].in_pairs for name in QUESTIONS)
        if not in_pairs or sum(answers[name] != PLAIN[name] for name in QUESTIONS) <= 2:
            yield answers


def page_data(measured: Measured, versions: Mapping[str, str]) -> dict[str, Any]:
    """Returns what docs/_static/fit_check.json holds."""
    zoo, _ = read_tables(ZOO.read_text(encoding="utf-8"))
    questions = {
        name: {
            "asks": question.asks,
            "answers": {
                each: vars(answer) | {"named": answer.named or answer.label}
                for each, answer in question.answers.items()
            },
        }
        for name, question in QUESTIONS.items()
    }
    nearest = {
        name: {"answers": PLAIN | {"batches": "partial"} | has, "cells": list(zoo[name].values())}
        for name, has in NEAREST.items()
    }
    return {
        "versions": dict(versions),
        "start": START,
        "questions": questions,
        "crashes": CRASHES,
        "nearest": nearest,
        "measured": measured,
    }


def page_table(measured: Measured) -> str:
    """Returns the table of what Keras's own `fit` does, with a column for each way to clip."""
    clips, rows = QUESTIONS["clip"].answers, Cells()
    for answers in combinations():
        given = [
            QUESTIONS[name].answers[each]
            for name, each in answers.items()
            if name != "clip" and each != PLAIN[name]
        ]
        words = [answer.named or answer.label for answer in given]
        row = rows.setdefault(", ".join(words) or "all plain", dict.fromkeys(_columns(clips), ""))
        row[_columns(clips)[list(clips).index(answers["clip"])]] = measured[key(answers)][0]
    return table("your answers", rows)


def _columns(clips: Mapping[str, Answer]) -> list[str]:
    return ["no clipping", *(answer.label for answer in list(clips.values())[1:])]


def write(measured: Measured, versions: Mapping[str, str]) -> None:
    """Writes the data of the page, and its table."""
    parts = page_data(measured, versions)
    lines = [f"{json.dumps(name)}: {_in_lines(part)}" for name, part in parts.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    equal = sum(cells[1] == "equal" for cells in measured.values())
    fits = sum(cells[0] == "equal" for cells in measured.values())
    count = f"Equal to one device, of {len(measured)} combinations:"
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines_of_page = {
        "Equal to one device, of ": f"{count} {fits} (Keras's own `fit`), {equal} (`distribute`).",
        "Measured with ": f"Measured with {packages}.",
    }
    write_page(PAGE, [page_table(measured)], lines_of_page)


def _in_lines(part: dict[str, Any]) -> str:
    """Returns JSON with an entry a line, so that a change is seen as one."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in part.items()) + "\n}"


def write_again() -> None:
    """Writes the words as they are now, around what is stored as measured."""
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    write(stored["measured"], stored["versions"])
