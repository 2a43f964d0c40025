"""Published training runs of dense language models, as docs/_static/scaling_runs.csv has them.

runs, left_out = read_runs()
runs.tokens                 # measured, tokens a second and device
left_out                    # how many runs of the file are none that we can compare, by reason
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

CSV = Path(__file__).resolve().parent.parent / "docs" / "_static" / "scaling_runs.csv"
LONGEST = 8192  # tokens in a sequence; beyond it, attention decides

# Products in bf16 and fp8 (TFLOP/s, measured), memory (TB/s), links between near devices (GB/s).
DEVICES = {
    "A100": (271.2, 271.2, 2.0, 300),
    "H100": (794.5, 1402.6, 3.35, 450),
    "H100-96GB-500W": (794.5, 1402.6, 2.4, 450),
    "H200": (794.5, 1453.4, 4.8, 450),
    "B200": (1745, 3432.5, 8.0, 900),
    "B300": (1769, 3353.3, 8.0, 900),
    "GB200": (1822, 3615.6, 8.0, 900),
    "GB300": (1822, 3615.6, 8.0, 900),
    "TPU-v4": (275, 275, 1.2, 270),
    "TPU-v5e": (197, 197, 0.81, 180),
    "TPU-v5p": (459, 459, 2.8, 540),
    "TPU-v6e": (918, 918, 1.6, 360),
    "TPU-v7x": (1913, 3826, 7.37, 600),
}
VOCABULARY = {"llama3": 128256, "mpt": 50368, "nanotron": 131072}  # by how a model's name begins
TEAMS = {
    "nemo": "megatron",
    "megatron": "megatron",
    "mlperf": "megatron",
    "aws": "torchtitan",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "tpu": "maxtext",
    "jax": "maxtext",
}  # whose software ran, by how a source is named
ONE_EMBEDDING = ("mpt", "gpt", "gemma", "nanotron-1B", "nanotron-3B")  # input and output share it


@dataclass(frozen=True)
class Runs:
    """Published runs, an array for each property; `tokens` is the measured speed of a device."""

    id: np.ndarray
    team: np.ndarray
    curve: np.ndarray
    tokens: np.ndarray
    params: np.ndarray
    used: np.ndarray  # parameters that take part in products
    layers: np.ndarray
    hidden: np.ndarray
    length: np.ndarray
    devices: np.ndarray
    dp: np.ndarray
    tp: np.ndarray
    pp: np.ndarray
    vp: np.ndarray
    cp: np.ndarray
    zero: np.ndarray
    shard: np.ndarray
    batch: np.ndarray
    micro_batches: np.ndarray
    recompute: np.ndarray
    product_speed: np.ndarray
    bf16_speed: np.ndarray
    memory_speed: np.ndarray
    near: np.ndarray  # how many devices share fast links, and bytes a second of a link
    near_speed: np.ndarray
    far_speed: np.ndarray
    efa: np.ndarray

    def pick(self, rows: np.ndarray) -> Runs:
        """Returns some of the runs."""
        return replace(self, **{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def read_runs(path: Path = CSV) -> tuple[Runs, Counter[str]]:
    """Returns the runs that have all numbers, and how many others there are, by reason."""
    rows, left_out = [], Counter[str]()
    with path.open(encoding="utf-8", newline="") as file:
        for run in csv.DictReader(file):
            reason = _missing(run)
            if reason:
                left_out[reason] += 1
            else:
                rows.append(_read(run))
    columns = {each.name: np.array([row[each.name] for row in rows]) for each in fields(Runs)}
    return Runs(**columns), left_out


def _device(run: Mapping[str, str]) -> str:
    """The name of a run's device in `DEVICES`; "" if it isn't there."""
    return max((name for name in DEVICES if run["hardware"].startswith(name)), key=len, default="")


def _missing(run: Mapping[str, str]) -> str:
    """Why a run can't be compared; "" if it can."""
    if run["unit"].partition("/")[0] in ("images", "samples"):
        return "counts images or samples, not tokens"
    if not (run["params"] and run["layers"] and run["hidden"] and run["seq_len"]):
        return "a dimension of the model isn't published"
    if run["ep"]:
        return "a mixture of experts"
    if float(run["seq_len"]) > LONGEST:
        return f"sequences of more than {LONGEST:,} tokens"
    if run["precision"] == "nvfp4":
        return "products in 4 bits, whose speed nobody measured for us"
    if run["source"].startswith("colossal"):
        return "its table contradicts itself"
    return "" if _device(run) else "a device whose product speed isn't in our table"


def _read(run: Mapping[str, str]) -> dict[str, object]:
    """The properties of a run, with what its publisher left out filled in."""

    def number(name: str, otherwise: float = 1.0) -> float:
        return float(run[name] or otherwise)

    params, layers, hidden, length = map(number, ("params", "layers", "hidden", "seq_len"))
    product, product_fp8, memory, near_speed = DEVICES[_device(run)]
    fp8 = "fp8" in run["precision"]
    vocabulary = VOCABULARY.get(run["model"].split("-")[0], 32000)
    second = 0 if run["model"].startswith(ONE_EMBEDDING) else vocabulary * hidden
    batch = number("global_batch", number("micro_batch") * number("dp"))
    operations = 6 * params + 12 * layers * hidden * length  # of a token, as TFLOP/s count them
    scale = 1.0 if run["unit"].startswith("tokens") else 1e12 / operations
    return {
        "id": run["id"],
        "team": TEAMS.get(run["source"].split("-")[0], run["source"]),
        "curve": run["curve"],
        "tokens": number("value") * scale,
        "params": params,
        "used": params - second,
        "layers": layers,
        "hidden": hidden,
        "length": length,
        **{
            name: number(name)
            for name in ("devices", "dp", "tp", "pp", "vp", "cp", "zero", "shard")
        },
        "batch": batch,
        "micro_batches": max(1.0, batch / number("dp") / number("micro_batch")),
        "recompute": float(run["recompute"] == "full"),
        "product_speed": (product_fp8 if fp8 else product) * 1e12,
        "bf16_speed": product * 1e12,
        "memory_speed": memory * 1e12,
        "near": number("fast_domain", 8),
        "near_speed": near_speed * 1e9,
        "far_speed": number("node_link_gb_s", 400) * 1e9 / number("devices_per_node", 8),
        "efa": "EFA" in run["interconnect"],
    }
