"""Published speeds of two ways to cut a model, in tokens a second on each GPU (H100).

Tensor parallelism: The Ultra-Scale Playbook, data of its figure "Throughput Scaling with TP/SP", a
model of 3 billion parameters, texts of 4,096 tokens. Context parallelism: torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md, table 2, Llama 3.1 8B on eight GPUs.
"""

GPUS_A_HOST = 8
BY_TENSOR_GPUS = {2: 13923.18, 4: 12420.76, 8: 10903.32, 16: 6245.6, 32: 2146.44}

LLAMA_8B = {"parameters": 8_029_995_008, "layers": 32, "width": 4096}
# By the length of the text: over how many of the eight GPUs each text is cut, and the speed.
BY_TEXT_LENGTH = {
    32_768: (1, 3890),
    65_536: (2, 2540),
    131_072: (4, 1071),
    262_144: (8, 548),
}
