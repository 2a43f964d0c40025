"""One check of lesson 16: choose a strategy for six cases, each with a reason.

Its feedback asks about the case and never says the answer: there are few to guess from.
"""

from __future__ import annotations

from distlab.course.checks import Check, Cost, Fault, Inputs, Observed, Plain
from distlab.course.checks.shared_checks import PairsByCase

STRATEGIES = (
    "none",
    "default",
    "one_device",
    "mirrored",
    "central_storage",
    "multi_worker",
    "parameter_server",
    "tpu",
)
REASONS = (
    "batch_too_small",
    "copies_in_one_host",
    "hosts_step_together",
    "no_waiting",
    "copies_too_large",
    "replica_too_large",
    "always_faster",
    "less_memory_each",
)
CASES = PairsByCase(
    {
        "A": (
            "one_device",
            "batch_too_small",
            "how many of the 4 examples would each of eight GPUs get?",
        ),
        "B": (
            "mirrored",
            "copies_in_one_host",
            "what must fit on each GPU, does it, and in which host are the four?",
        ),
        "C": (
            "multi_worker",
            "hosts_step_together",
            "which strategy reaches a second host, and still takes the steps of one device?",
        ),
        "D": (
            "parameter_server",
            "no_waiting",
            "what does your choice do while one host is slow, or gone?",
        ),
        "E": (
            "central_storage",
            "copies_too_large",
            "add up what one GPU holds under your choice. What must be there, and what need not?",
        ),
        "F": (
            "none",
            "replica_too_large",
            "what must one replica hold at the same time, under each of these strategies?",
        ),
    },
    strategy=STRATEGIES,
    reason=REASONS,
)
# What several devices share a batch under.
_SHARING = ("mirrored", "central_storage", "multi_worker", "parameter_server", "tpu")
_always_faster, _less_memory_each = map(CASES.any_is, ("always_faster", "less_memory_each"))


def _read(given: Inputs, outputs: Plain) -> Plain:
    """As for every pair; in case A the default strategy is as right as one_device."""
    words = CASES.read(given, outputs)
    return words | {"A": "one_device"} if words["A"] == "default" else words


CHOOSE = Check(
    name="choose_and_defend",
    function="choose",
    title="A strategy and a reason for each of six cases",
    question="Which fact of each case rules out the most strategies?",
    direction="Take one case at a time, and ask the card's questions in their order.",
    cost=Cost.PURE,
    inputs=CASES.inputs,
    call=CASES.call,
    read=_read,
    reference=CASES.reference,
    criteria=CASES.criteria,
    hint="Answer the card's questions for one case at a time, and stop at the first yes. For E and "
    "F add up the gigabytes on one GPU: under Mirrored weights, gradients, activations and Adam's "
    "state; under CentralStorage all of these except Adam's state.",
    revisit="The card",
    mistakes=(
        Observed(
            "more_devices_always",
            lambda given, out: (
                out["A"] in _SHARING or out["F"] in _SHARING or _always_faster(given, out)
            ),
        ).feedback(
            "You gave more devices to a case that they cannot help. They help only if each gets "
            "enough examples, and if one replica fits on one device. Otherwise they wait, or "
            "cannot hold the model. Which of your cases fails one of these two conditions?"
        ),
        Fault("mirrored_across_hosts", C="mirrored")
        .or_with(D="mirrored")
        .feedback(
            "You chose MirroredStrategy for several hosts. It ends at the edge of its host, so "
            "each host would train a model of its own. Which strategies connect hosts?"
        ),
        Fault("waits_for_the_slowest", D="multi_worker").feedback(
            "You let forty hosts take each step together in case D. All then go at the pace of the "
            "slowest one, and stop when one is taken away. What does the case say of its hosts?"
        ),
        Fault("ps_for_bitwise", C="parameter_server").feedback(
            "You chose parameter servers for case C. Each worker then takes a step when it is "
            "ready, on weights that the other workers have changed in the meantime. What will the "
            "auditors compare?"
        ),
        Observed(
            "mirrored_saves_memory",
            lambda given, out: out["E"] == "mirrored" or _less_memory_each(given, out),
        ).feedback(
            "You counted on less memory for each device. Under Mirrored every device has all "
            "weights, all gradients and all of the optimizer's state. What is the only thing that "
            "it divides?"
        ),
    ),
)
