"""A check of lesson 09: the TF_CONFIG of every task."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Inputs, Plain
from distlab.course.checks.criteria import Form, Holds, Then
from distlab.course.checks.mistakes import Fault, Observed


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    port = int(draw.integers(2000, 30000))
    hosts = [f"10.0.0.{n}" for n in draw.permutation(np.arange(2, 90))[: 2 + seed % 3]]
    return {"addresses": [f"{host}:{port + n}" for n, host in enumerate(hosts)]}


def _call(tf_configs: Callable[..., Any], inputs: Inputs) -> Plain:
    return tf_configs(list(inputs["addresses"]))


def _read(given: Inputs, outputs: Plain) -> Plain:
    texts = outputs.tolist() if isinstance(outputs, np.ndarray) else outputs
    configs = [_config_in(text) for text in texts] if isinstance(texts, list) else []
    return {
        "returned": outputs,
        "texts": texts,
        "configs": configs,
        "clusters": [_part(config, "cluster", "worker") for config in configs],
        "tasks": [[_part(config, "task", key) for key in ("type", "index")] for config in configs],
    }


def _config_in(text: Plain) -> Any:
    """The dictionary that a text holds; None for one that is no JSON, or holds none."""
    try:
        config = json.loads(text)
    except (TypeError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _part(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _all_workers(addresses: list[str], index: int) -> list[str]:
    return addresses


def _reference(
    given: Inputs,
    *,
    workers: Callable[[list[str], int], list[str]] = _all_workers,
    index: Callable[[int], Any] = lambda n: n,
) -> Plain:
    """What is read in the texts, by the workers and the index that the n-th one names."""
    addresses = given["addresses"]
    texts = [
        json.dumps(
            {
                "cluster": {"worker": workers(addresses, n)},
                "task": {"type": "worker", "index": index(n)},
            }
        )
        for n in range(len(addresses))
    ]
    return _read(given, texts)


def _are_json(given: Inputs, out: Plain) -> bool:
    return len(out["configs"]) == len(given["addresses"]) and None not in out["configs"]


def _no_json(given: Inputs, out: Plain) -> str:
    wrong = [t for t, config in zip(out["texts"], out["configs"], strict=True) if config is None]
    if wrong:
        kind = "text that is no JSON" if isinstance(wrong[0], str) else "no text"
        return f"JSON texts were asked for; in yours is {kind}: {wrong[0]}"[:160]
    workers = len(given["addresses"])
    return f"{workers} texts were asked for, one for each worker; yours are {len(out['texts'])}"


TF_CONFIGS = Check(
    name="tf_configs",
    title="The TF_CONFIG of every task",
    question="Which part of TF_CONFIG is the same on all workers, and which part differs?",
    direction="Compare the TF_CONFIG of two workers in the lesson, key by key.",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("a list of texts", lambda given, out: isinstance(out["texts"], list), key="returned"),
        Holds("a JSON text for each worker", _are_json, _no_json),
        Then(
            Equal("clusters", "every task names the whole cluster, in the same order"),
            Equal("tasks", "each task has its own type and index"),
        ),
    ),
    hint="For each index make a dictionary with the keys `cluster` and `task`, and give it "
    "to json.dumps. Only the index differs.",
    revisit="Who is who: TF_CONFIG",
    mistakes=(
        Observed("not_json", lambda given, out: "'" in "".join(out["texts"])).feedback(
            "Your strings are how Python writes a dictionary, with single quotes. TensorFlow "
            "reads TF_CONFIG as JSON, so it would stop at the first quote. Which function "
            "turns a dictionary into JSON?"
        ),
        Fault("only_itself", workers=lambda addresses, n: [addresses[n]]).feedback(
            "Each of your configs names only its own worker. So each worker would train alone, "
            "and would never meet the others. What must the list under `cluster` have in "
            "common on all workers?"
        ),
        Fault("index_is_text", index=str).feedback(
            "Your index is a string, in quotes. TensorFlow uses it as a position in the list, "
            "so it must be a number. Where does your code turn the index into a string?"
        ),
        Fault(
            "own_address_first",
            workers=lambda addresses, n: [addresses[n], *addresses[:n], *addresses[n + 1 :]],
        )
        .or_with(workers=lambda addresses, n: addresses[n:] + addresses[:n])
        .feedback(
            "Each of your configs has its own worker at the front of the list. So index 1 "
            "means a different worker in each config. What must be true of the list's order on "
            "all workers?"
        ),
        Fault("same_index", index=lambda n: 0).feedback(
            "All your configs have the same index. So every process would take itself for the "
            "same worker, and the others would be missing. From what can you compute each "
            "worker's own index?"
        ),
    ),
)
