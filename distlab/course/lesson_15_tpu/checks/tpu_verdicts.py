"""A check of lesson 15: a verdict on each of six findings, and what to do next."""

from __future__ import annotations

from distlab.course.checks import Check, Cost, Fault, Observed
from distlab.course.checks.shared_checks import PairsByCase

FINDINGS = PairsByCase(
    {
        "A": (
            "refused_here",
            "move_to_input_pipeline",
            "can XLA read a string, and which part of a training never runs on the TPU?",
        ),
        "B": (
            "suspect_on_tpu",
            "mask_instead_of_select",
            "on what do the rows depend, and does the program always say so?",
        ),
        "C": ("not_checked", "measure_on_tpu", "which run of yours has shown the speed of a TPU?"),
        "D": (
            "fails_everywhere",
            "rewrite_in_tensorflow",
            "was a compiler asked at all, and does the loss have a value while the step is traced?",
        ),
        "E": (
            "suspect_on_tpu",
            "use_float32",
            "which type is in the program, and what is a TPU built for?",
        ),
        "F": (
            "not_checked",
            "measure_on_tpu",
            "how many bits of a float32 number does a CPU multiply, and a TPU?",
        ),
    },
    verdict=(
        "fails_everywhere",
        "refused_here",
        "suspect_on_tpu",
        "not_checked",
        "runs_on_tpu",
        "fails_on_tpu",
    ),
    step=(
        "rewrite_in_tensorflow",
        "move_to_input_pipeline",
        "mask_instead_of_select",
        "use_float32",
        "measure_on_tpu",
    ),
)

VERDICTS = Check(
    name="give_verdict",
    title="A verdict and a next step for six findings",
    question="What exactly was run in each case, and on which machine?",
    direction=(
        "First ask whether the step ran without a compiler, and then whether the compiler on your "
        "CPU refused it. If not, ask whether you have seen a reason for doubt. If not, ask whether "
        "a CPU could have answered at all."
    ),
    cost=Cost.PURE,
    inputs=FINDINGS.inputs,
    call=FINDINGS.call,
    read=FINDINGS.read,
    reference=FINDINGS.reference,
    criteria=FINDINGS.criteria,
    hint="One case fails before any compiler is asked, and one is refused by the compiler. Two "
    "compile and have a sign of trouble, in the program or in the code. Two are about what a CPU "
    "cannot show.",
    revisit='"Three verdicts" in lesson 15',
    mistakes=(
        Observed("compiled_means_ready", FINDINGS.any_is("runs_on_tpu")).feedback(
            "You took a program that compiles on a CPU for one that runs on a TPU. XLA has a "
            "different backend for each kind of device, and nothing here ran on a TPU. Which of "
            "your runs shows what a TPU does?"
        ),
        Observed("refused_means_never", FINDINGS.any_is("fails_on_tpu")).feedback(
            "You took a refusal on a CPU for a refusal on a TPU. A TPU strategy may run such an "
            "operation on the host instead, slowly. What did you see, and on which machine?"
        ),
        Fault("blames_the_compiler", D="refused_here").feedback(
            "You took an error of the step itself for a refusal by XLA. The step fails under plain "
            "`tf.function`, so it fails on every device. What had asked for a compiler then?"
        ),
        Fault("compiled_means_checked", B="not_checked")
        .or_with(E="not_checked")
        .feedback(
            "You found nothing in a step that shows a sign of trouble. The compiler let it pass, "
            "but its code or its program has a doubtful shape or type. What does the finding "
            "quote?"
        ),
        Fault("unmeasured_is_suspect", C="suspect_on_tpu")
        .or_with(F="suspect_on_tpu")
        .feedback(
            "You called something suspect that you have not looked at. A suspicion needs a "
            "sign. Which one did you see in this case?"
        ),
    ),
)
