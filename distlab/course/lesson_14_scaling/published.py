"""Published measurements of 2025: one model on 8 to 256 GPUs, and all-reduces of H100s.

    TOKENS_PER_SEC[256]                     # 15,700: tokens a second and GPU
    sending_secs(256), step_secs(256)       # what the lesson's model says of such a step

Sources:

* The Ultra-Scale Playbook (Hugging Face, 2025), the data of its figures `dp_scaling`,
  `benchmarks_interactive` and `pp_comm_bandwidth`: a model of 1.34 billion parameters, 256
  sequences of 4,096 tokens in each step, H100 in servers of eight, plain data parallelism. The bus
  bandwidth is that of an all-reduce of 256 MB by the number of GPUs.
* nccl-tests of AWS (aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests): p5
  servers of eight H100, one server and two.
* stas00/ml-engineering, network: the peaks of one server of eight H200, with a ring and with NVLS.
"""

from __future__ import annotations

import math

PARAMETERS = 1.34e9
TOKENS_PER_STEP = 256 * 4096
# By the number of GPUs: tokens a second that each of them trains on.
TOKENS_PER_SEC = {8: 40_150, 16: 37_610, 32: 35_368, 64: 31_112, 128: 26_446, 256: 15_700}
# By the number of GPUs: what an all-reduce of 256 MB makes of the network, in GB/s.
BUS_GB_PER_SEC = {8: 436.0, 16: 361.7, 32: 160.1, 64: 99.6, 128: 84.7, 256: 64.9, 512: 32.9}
# nanotron adds gradients up in float32 (accumulate_grad_in_fp32 in scripts/scaling_benchmarks.py).
GRADIENT_BYTES = 4 * PARAMETERS
# One server of eight H200: bus bandwidth in GB/s by NCCL's algorithm.
H200_BUS_GB_PER_SEC = {"ring": 367.6, "NVLS": 482.3}
NVLINK_GB_PER_SEC = 450  # of an H100 or H200, in each direction

# All-reduces of eight H100 in one server and of 16 in two: microseconds by MiB.
ONE_SERVER_MICROS = {
    1: 28.6, 2: 43.5, 4: 55.4, 8: 84.3, 16: 124.0, 32: 198.6, 64: 326.6, 128: 592.8, 256: 1121.4,
    512: 2165.3, 1024: 4253.0, 2048: 8463.7, 4096: 15791.0, 8192: 31289.0, 16384: 62239.0,
}  # fmt: skip
TWO_SERVERS_MICROS = {
    16: 298.1, 32: 439.7, 64: 601.5, 128: 870.3, 256: 1468.2, 512: 2559.2, 1024: 4607.6,
    2048: 9074.5, 4096: 17286.0, 8192: 33605.0, 16384: 66132.0,
}  # fmt: skip


def step_secs_measured(gpus: int) -> float:
    """Returns the seconds of a step of the Playbook's run."""
    return TOKENS_PER_STEP / gpus / TOKENS_PER_SEC[gpus]


def sending_secs(gpus: int, *, gradient_bytes: float = GRADIENT_BYTES) -> float:
    """Returns the seconds of an all-reduce of all gradients, by the measured bus bandwidth."""
    return 2 * (gpus - 1) / gpus * gradient_bytes / (1e9 * BUS_GB_PER_SEC[gpus])


def step_secs(gpus: int) -> float:
    """Returns the seconds of a step by the lesson's model, which saw the steps of 8 GPUs only."""
    compute_of_8 = step_secs_measured(8) - sending_secs(8)
    return compute_of_8 * 8 / gpus + sending_secs(gpus)


def bus_gb_per_sec(size_bytes: float, secs: float, gpus: int) -> float:
    """Returns the bus bandwidth of nccl-tests: what each link of a ring would have carried."""
    return 2 * (gpus - 1) / gpus * size_bytes / secs / 1e9


def curve(kind: str) -> dict[int, float]:
    """Returns the tokens a second of a curve that was fitted to all counts but the last.

    Args:
        kind: "line" or "logarithm", of the seconds for a token.
    """
    import numpy as np

    def along(count: int) -> float:
        return math.log2(count) if kind == "logarithm" else float(count)

    *known, _ = TOKENS_PER_SEC
    secs = [1 / TOKENS_PER_SEC[count] for count in known]
    slope, start = np.polyfit([along(count) for count in known], secs, 1)
    return {count: float(1 / (start + slope * along(count))) for count in TOKENS_PER_SEC}
