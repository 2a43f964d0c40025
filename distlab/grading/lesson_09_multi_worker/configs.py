"""A check of lesson 09: the TF_CONFIG of every task."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true


def _configs_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    port = int(draw.integers(2000, 30000))
    hosts = [f"10.0.0.{n}" for n in draw.permutation(np.arange(2, 90))[: 2 + seed % 3]]
    return {"addresses": [f"{host}:{port + n}" for n, host in enumerate(hosts)]}


def _configs_call(tf_configs: Callable[..., Any], inputs: Inputs) -> Plain:
    return tf_configs(list(inputs["addresses"]))


def _read(outputs: Plain) -> list[Any]:
    """What the texts say; None for one that is no JSON, or says no dictionary."""

    def read(text: Plain) -> Any:
        try:
            config = json.loads(text)
        except (TypeError, ValueError):
            return None
        return config if isinstance(config, dict) else None

    return [read(text) for text in outputs]


def _texts(outputs: Plain) -> list[Any] | None:
    texts = outputs.tolist() if isinstance(outputs, np.ndarray) else outputs
    return texts if isinstance(texts, list) else None


def _clusters(outputs: Plain) -> list[Any]:
    return [config["cluster"]["worker"] for config in _read(_texts(outputs) or [])]


def _indexes(outputs: Plain) -> list[Any]:
    return [config["task"]["index"] for config in _read(_texts(outputs) or [])]


def _configs_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    addresses, texts = inputs["addresses"], _texts(outputs)
    if texts is None:
        return Verdict.of(expect_equal("a list of texts", yours=outputs, expected=["{...}", "..."]))
    configs = _read(texts)
    wrong = [text for text, config in zip(texts, configs, strict=True) if config is None]
    message = f"{len(addresses)} texts were asked for, one for each worker; yours are {len(texts)}"
    if wrong:
        what = "text that is no JSON" if isinstance(wrong[0], str) else "no text"
        message = f"JSON texts were asked for; in yours is {what}: {wrong[0]}"[:160]
    are_json = expect_true(
        "a JSON text for each worker",
        len(texts) == len(addresses) and not wrong,
        message=message,
    )
    if not are_json.passed:
        return Verdict.of(are_json)
    return Verdict.of(
        are_json,
        expect_equal(
            "every task names the whole cluster, in the same order",
            yours=[_part(config, "cluster", "worker") for config in configs],
            expected=[addresses] * len(addresses),
        ),
        expect_equal(
            "each task has its own type and index",
            yours=[[_part(c, "task", "type"), _part(c, "task", "index")] for c in configs],
            expected=[["worker", index] for index in range(len(addresses))],
        ),
    )


def _part(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _lacks_itself(inputs: Inputs, outputs: Plain) -> bool:
    addresses, clusters = inputs["addresses"], _clusters(outputs)
    return all(own not in there for own, there in zip(addresses, clusters, strict=True))


def _begins_with_itself(inputs: Inputs, outputs: Plain) -> bool:
    addresses, clusters = inputs["addresses"], _clusters(outputs)
    return all(
        there[0] == own and sorted(there) == sorted(addresses)
        for own, there in zip(addresses, clusters, strict=True)
    )


def _keys_missing(config: Any) -> bool:
    kinds = config["cluster"] if isinstance(config.get("cluster"), dict) else {}
    task = config["task"] if isinstance(config.get("task"), dict) else {}
    return not ({"worker", "chief"} & kinds.keys() and {"type", "index"} <= task.keys())


CONFIG_CHECKS = (
    Check(
        name="tf_configs",
        function="tf_configs",
        title="The TF_CONFIG of every task",
        points=3,
        inputs=_configs_inputs,
        call=_configs_call,
        judge=_configs_judge,
        hint="Make a dictionary with the keys `cluster` and `task` for each index, and give it to "
        "json.dumps. Only the index differs from task to task.",
        revisit="Who is who: TF_CONFIG",
        mistakes=(
            Mistake(
                "not_json",
                "This is how Python writes a dictionary. TF_CONFIG is JSON: json.dumps writes it.",
                when=lambda _, out: all(isinstance(t, str) and "'" in t for t in out),
            ),
            Mistake(
                "no_text",
                "These are dictionaries. An environment holds texts: json.dumps makes one of each.",
                when=lambda _, out: all(isinstance(each, dict) for each in out),
            ),
            Mistake(
                "one_for_all",
                "One text was returned for all. Each worker has a TF_CONFIG of its own: a list of "
                "as many texts as there are workers.",
                when=lambda _, out: isinstance(out, str),
            ),
            Mistake(
                "other_keys",
                "TF_CONFIG has fixed names: `cluster` holds a list under `worker`, and `task` has "
                "a `type` and an `index`.",
                when=lambda _, out: all(map(_keys_missing, _read(_texts(out) or [""]))),
            ),
            Mistake(
                "names_a_chief",
                "Nobody was to be a chief: each address is a worker's. Where there is no chief, "
                "worker 0 does its work.",
                when=lambda _, out: any(
                    _part(config, "task", "type") == "chief" for config in _read(_texts(out) or [])
                ),
            ),
            Mistake(
                "only_itself",
                "Each task names only itself, so each is alone in a cluster. The cluster is the "
                "same text everywhere.",
                when=lambda inputs, out: _clusters(out) == [[own] for own in inputs["addresses"]],
            ),
            Mistake(
                "index_is_text",
                "The index is a number in JSON, not a text in quotes.",
                when=lambda _, out: all(isinstance(index, str) for index in _indexes(out)),
            ),
            Mistake(
                "own_address_missing",
                "Each task names only the others. It must name itself too: the cluster is the "
                "same text everywhere.",
                when=_lacks_itself,
            ),
            Mistake(
                "own_address_first",
                "Each task names itself first. Then each has another idea of who is worker 1.",
                when=_begins_with_itself,
            ),
            Mistake(
                "same_index",
                "All tasks have the same index: each would believe that it is the same worker, "
                "and nobody would be the others.",
                when=lambda _, out: len(set(_indexes(out))) == 1,
            ),
            Mistake(
                "index_from_one",
                "The first task has the index 0.",
                when=lambda _, out: _indexes(out) == list(range(1, len(out) + 1)),
            ),
        ),
    ),
)
