"""Scaling efficiencies that were published for clusters of GPUs, and a cost model of each.

    for run in PUBLISHED:
        predicted_efficiency(run, hidden=0.5, latency_secs=10e-6), run.efficiency

`PUBLISHED` has what the papers state, and what we assume beyond that. The sources are:

* Horovod (Sergeev and Del Balso, 2018, arXiv:1802.05799) and its pages: 90 % for Inception V3 and
  ResNet-101 and 68 % for VGG-16 on 512 GPUs, and 79 % for VGG-16 on 128. Four Pascal GPUs a server,
  one link of 25 Gbit/s (RDMA) a server. Scripts of tf_cnn_benchmarks with a batch of 64.
* ImageNet in one hour (Goyal et al., 2017, arXiv:1706.02677): about 90 % for ResNet-50 on 256 GPUs,
  compared with 8. Eight P100 a server, one link of 50 Gbit/s a server, a batch of 32 on each GPU.
  One server took 29 hours (developer.nvidia.com/blog/facebook-trains-imagenet-in-1-hour) for
  90 epochs of 1.28 million images: 138 images a second on each GPU.
* One P100 with the other networks: TensorFlow's benchmarks of May 2017
  (tensorflow.org/performance/benchmarks), synthetic data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from distlab.course.measure.cost_model import CostModel

_FLOAT32_BYTES = 4
_BITS = 8


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One published efficiency.

    Attributes:
        network: The name of the network.
        gpus: How many GPUs trained.
        efficiency: What was published, as a part of 1.
        parameters: Weights of the network, as `keras.applications` counts them.
        examples_per_sec: Images a second of one P100 that waits for no other server.
        per_gpu_batch: Images on each GPU in a step.
        link_bits_per_sec: The link of a server. The ring enters and leaves a server once, so its
            GPUs do not share the link's bandwidth.
        source: Where the efficiency was published.
        assumed: What we assume beyond the sources.
    """

    network: str
    gpus: int
    efficiency: float
    parameters: int
    examples_per_sec: float
    per_gpu_batch: int
    link_bits_per_sec: float
    source: str
    assumed: str

    @property
    def sizes(self) -> dict[str, float]:
        """The sizes that `CostModel.step` asks for."""
        gradient_bytes = _FLOAT32_BYTES * self.parameters
        return {"per_replica_batch": self.per_gpu_batch, "gradient_bytes": gradient_bytes}


_HOROVOD = "https://github.com/horovod/horovod/blob/master/docs/benchmarks.rst"
_HOROVOD_128 = "README of Horovod in 2017, 32 servers of 4 GPUs"
_IN_ONE_HOUR = "https://arxiv.org/abs/1706.02677"
_PASCAL = "the Pascal GPUs were as fast as the P100 of TensorFlow's benchmarks"
# 3.8, 7.6 and 11.3 billion operations for ResNet-50, -101 and -152 (He et al., 2015, table 1).
# 219 and 91.8 images a second are TensorFlow's benchmarks of ResNet-50 and -152.
_RESNET_101_PER_SEC = 1 / (1 / 219 + (7.6 - 3.8) / (11.3 - 3.8) * (1 / 91.8 - 1 / 219))

_on_horovod = functools.partial(
    PublishedRun, per_gpu_batch=64, link_bits_per_sec=25e9, source=_HOROVOD, assumed=_PASCAL
)

RESNET_101 = _on_horovod(
    network="ResNet-101",
    gpus=512,
    efficiency=0.90,
    parameters=44_707_176,
    examples_per_sec=_RESNET_101_PER_SEC,
    assumed=f"{_PASCAL}; its speed lies between ResNet-50 and ResNet-152 as its operations do",
)
INCEPTION_V3 = _on_horovod(
    network="Inception V3",
    gpus=512,
    efficiency=0.90,
    parameters=23_851_784,
    examples_per_sec=142,
)
VGG_16 = _on_horovod(
    network="VGG-16",
    gpus=512,
    efficiency=0.68,
    parameters=138_357_544,
    examples_per_sec=154,
)
VGG_16_ON_128 = replace(VGG_16, gpus=128, efficiency=0.79, source=_HOROVOD_128)
RESNET_50 = PublishedRun(
    network="ResNet-50",
    gpus=256,
    efficiency=0.90,
    parameters=25_636_712,
    examples_per_sec=90 * 1_281_167 / (29 * 3600 * 8),
    per_gpu_batch=32,
    link_bits_per_sec=50e9,
    source=_IN_ONE_HOUR,
    assumed="a ring of all GPUs, where the run compared 256 with 8, and used halving and doubling "
    "between its servers",
)
PUBLISHED = (RESNET_101, INCEPTION_V3, VGG_16, VGG_16_ON_128, RESNET_50)


def model_of(run: PublishedRun, *, hidden: float, latency_secs: float) -> CostModel:
    """Returns the cost model of a published run."""
    return CostModel(
        secs_per_example=1 / run.examples_per_sec,
        latency_secs=latency_secs,
        bytes_per_sec=run.link_bits_per_sec / _BITS,
        hidden=hidden,
    )


def predicted_efficiency(run: PublishedRun, *, hidden: float, latency_secs: float) -> float:
    """Returns the efficiency that the cost model predicts for a published run, as a part of 1."""
    return model_of(run, hidden=hidden, latency_secs=latency_secs).efficiency(run.gpus, **run.sizes)


def hidden_share(run: PublishedRun, *, latency_secs: float) -> float:
    """Returns the share of communication that must be hidden to give the published efficiency."""
    model = model_of(run, hidden=0.0, latency_secs=latency_secs)
    alone = model.step(1, **run.sizes).secs
    lost = alone / run.efficiency - alone
    return 1 - lost / model.all_reduce_secs(run.gpus, run.sizes["gradient_bytes"])
