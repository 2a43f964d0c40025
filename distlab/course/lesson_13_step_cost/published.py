"""Speeds of training runs that their authors published, for lesson 13.

    for run in PUBLISHED:
        run["name"], run["tokens_per_sec"]

Llama 3 8B on 8 H100 GPUs: torchtitan's benchmarks of December 2024, table 1, whose text says "33 %
to 39 % MFU". Its authors divide by the peak of an H100 SXM, although theirs had a lower limit of
power. Sizes of the model: the Llama 3 paper, table 3.
https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md
https://arxiv.org/abs/2407.21783
"""

from __future__ import annotations

from typing import Any

# FLOP/s of an H100 SXM in bfloat16, without sparsity: https://www.nvidia.com/en-us/data-center/h100/
H100_PEAK = 989e12

LLAMA_3_8B: dict[str, int] = {
    "width": 4096,
    "layers": 32,
    "heads": 32,
    "key_heads": 8,
    "hidden": 14336,
    "vocabulary": 128256,
}
LLAMA_3_8B_PARAMETERS = 8_030_261_248

_RUN: dict[str, Any] = {
    "parameters": LLAMA_3_8B_PARAMETERS,
    "embedding": LLAMA_3_8B["vocabulary"] * LLAMA_3_8B["width"],
    "layers": LLAMA_3_8B["layers"],
    "width": LLAMA_3_8B["width"],
    "length": 8192,
    "peak": H100_PEAK,
}
# `tokens_per_sec` is that of each GPU; `published` is the MFU in percent, as the page has it.
PUBLISHED: tuple[dict[str, Any], ...] = (
    {"name": "Llama 3 8B", **_RUN, "tokens_per_sec": 5762, "published": 33},
    {"name": "Llama 3 8B, torch.compile", **_RUN, "tokens_per_sec": 6667, "published": 39},
)
