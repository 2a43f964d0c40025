"""The last check of lesson 11, a pipeline that recovers, and the rubric of its report.

The learner's training runs on two workers, twice: undisturbed, and with one of them killed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Gate, Holds, Inputs, Observed, Plain, Raises
from distlab.course.checks.matchers import same_plain
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.checks.shared_checks import softmax
from distlab.course.lesson_11_fault_tolerance.checks.checkpoints import AsUndisturbed
from distlab.course.lesson_11_fault_tolerance.worker_kill import killing
from distlab.course.runs.cluster_calls import WORKERS, call_on_workers

_EXAMPLES, _BATCH, _EPOCHS, _KEEP = 24, 4, 3, 2
_STEPS = _EPOCHS * _EXAMPLES // _BATCH
# A right training lowers the loss, if only a little; one that goes up the slope adds 0.2 or more.
_ROUGHLY = 0.1
# A life takes one or two seconds; a machine may be slow, or busy.
_TIMEOUT_SECS = 30.0


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    every = int(draw.choice([4, 5]))
    saved = 2 * every  # in the middle of the second epoch
    # A step is whole on all workers when they are in the next: so the save is, two steps later.
    return {
        "x": draw.normal(size=(_EXAMPLES, 4)).astype("float32"),
        "y": draw.integers(0, 3, size=_EXAMPLES).astype("int32"),
        "orders": [draw.permutation(_EXAMPLES).tolist() for _ in range(_EPOCHS)],
        "every": every,
        "killed": seed % WORKERS,
        "killed in": int(draw.integers(saved + 2, saved + every + 1)),
        "seed": int(draw.integers(1000)),
    }


def _train_twice(train: Callable[..., Any], inputs: Inputs) -> Plain:
    """Returns how a training went without a kill, and with one."""
    undisturbed = _trained(train, {**inputs, "killed": None})
    return {"undisturbed": undisturbed, "recovered": _trained(train, inputs)}


def _trained(train: Callable[..., Any], inputs: Inputs) -> Plain:
    index = inputs["killed"]
    with tempfile.TemporaryDirectory() as place:
        last_step = Path(place, f"seen-{index}-0", str(inputs["killed in"]))
        order = (train, inputs, place)
        with killing(Path(place, f"process-{index}"), when=last_step):
            workers = call_on_workers(_train, *order, timeout_secs=_TIMEOUT_SECS, restarts=1)
        return {"workers": workers, "lives": _lives(Path(place))}


def _train(strategy: Any, train: Callable[..., Any], inputs: Inputs, place: str) -> Plain:
    import tensorflow as tf

    import distlab as dl

    index = strategy.cluster_resolver.task_id
    of_chief, own = Path(place, "worker-0"), Path(place, f"worker-{index}")
    life = len(list(Path(place).glob(f"seen-{index}-*")))
    # Each has its own folder, with what the chief saved: so it shows which worker has written.
    wrote = [] if index == 0 else _files(own)
    if index and life:
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(of_chief, own)
    own.mkdir(exist_ok=True)
    given = set(_files(own))
    strategy.reduce("SUM", tf.constant(0.0), axis=None)  # no worker saves before all have copied
    dl.set_seed(inputs["seed"] + life, deterministic=True)
    seen = Path(place, f"seen-{index}-{life}")
    seen.mkdir()
    Path(place, f"process-{index}").write_text(str(os.getpid()))
    is_killed = life == 0 and inputs["killed"] == index
    build = _builder(inputs, seen, killed_in=inputs["killed in"] if is_killed else -1)
    built: list[Any] = []

    def noting() -> Any:
        model = build()
        built.append(_weights_of(model))
        return model

    model = train(strategy, noting, _batches_of(inputs), _EPOCHS, str(own), inputs["every"], _KEEP)
    if not hasattr(model, "get_weights"):
        raise TypeError(f"the model was asked for; yours is {model!r}"[:200])
    now, weights = _files(own), _weights_of(model)
    return {
        "weights": weights,
        "trained": not any(np.array_equal(weights, before) for before in built),
        "began": built[0] if built else weights,
        "iterations": int(model.optimizer.iterations.numpy()),
        "seeds": model.layers[1].seed_generator.state.numpy(),
        "wrote": [*wrote, *(name for name in now if index and name not in given)],
        "files": now,
    }


def _weights_of(model: Any) -> Any:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _builder(inputs: Inputs, seen: Path, *, killed_in: int) -> Callable[[], Any]:
    import keras
    import tensorflow as tf

    step = tf.Variable(0)  # on this worker alone

    def note(ids: Any) -> Any:
        """Once a step on this worker; in its last one it waits in the middle, to be killed."""
        now = step.assign_add(1)
        numbers = tf.strings.reduce_join(tf.as_string(tf.cast(ids, tf.int32)), separator=" ")
        path = tf.strings.join([str(seen), "/", tf.as_string(now)])
        with tf.control_dependencies([tf.io.write_file(path, numbers)]):
            return tf.while_loop(lambda n: tf.equal(now, killed_in), lambda n: [n], [now])

    class Watch(keras.layers.Layer):  # type: ignore[misc]
        """Takes the number of each example off, and notes it in training."""

        def call(self, x: Any, training: bool = False) -> Any:
            if not training:
                return x[:, 1:]
            with tf.control_dependencies(note(x[:, 0])):
                return tf.identity(x[:, 1:])

    def build() -> Any:
        # Named as in every new process: a worker that lives on counts its layers further.
        dropout = keras.layers.Dropout(0.4, seed=inputs["seed"], name="dropout")
        layers = [Watch(name="watch"), dropout, keras.layers.Dense(3, name="dense")]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.Adam(0.05))
        return model

    return build


def _batches_of(inputs: Inputs) -> Callable[[int], Any]:
    numbered = np.concatenate([np.arange(_EXAMPLES)[:, None], inputs["x"]], axis=1)

    def batches_of(epoch: int) -> Any:
        import tensorflow as tf

        order = inputs["orders"][epoch]
        examples = (numbered[order].astype("float32"), inputs["y"][order])
        return tf.data.Dataset.from_tensor_slices(examples).batch(_BATCH)

    return batches_of


def _lives(place: Path) -> list[list[list[int]]]:
    """Returns, for each step of each life, the examples that any worker read."""
    lives: list[list[list[int]]] = []
    while folders := sorted(place.glob(f"seen-*-{len(lives)}")):
        of_workers = [_steps_in(folder) for folder in folders]
        # The step in which one is killed is not noted by all: it never was.
        whole = min(map(len, of_workers))
        lives.append([sorted(i for steps in of_workers for i in steps[n]) for n in range(whole)])
    return lives


def _steps_in(folder: Path) -> list[list[int]]:
    files = sorted(folder.iterdir(), key=lambda file: int(file.name))
    return [[int(number) for number in file.read_text().split()] for file in files]


def _order(inputs: Inputs) -> list[list[int]]:
    """The examples of each step."""
    return [
        sorted(order[start : start + _BATCH])
        for order in inputs["orders"]
        for start in range(0, _EXAMPLES, _BATCH)
    ]


def _saved(inputs: Inputs) -> int:
    """Steps that the last checkpoint before the kill holds."""
    return int((inputs["killed in"] - 1) // inputs["every"] * inputs["every"])


def _read(given: Inputs, out: Plain) -> Plain:
    calm, recovered = out["undisturbed"]["workers"], out["recovered"]["workers"]
    before_kill, *after_kill = out["recovered"]["lives"]
    order, first_again = _order(given), (after_kill or [[]])[0][:1]
    # The step that is done first after the kill, or -1 if no step has these examples.
    begins = order.index(first_again[0]) if first_again and first_again[0] in order else -1
    files = recovered[0]["files"]
    checkpoints = [name.removesuffix(".index") for name in files if name.endswith(".index")]
    expected_files = (*checkpoints, "checkpoint")
    return {
        "trained": all(worker["trained"] for worker in calm),
        "losses": [_loss(given, calm[0][weights]) for weights in ("began", "weights")],
        "lives": out["undisturbed"]["lives"],
        "lived": [*before_kill[: max(begins, 0)], *itertools.chain(*after_kill)],
        "begins": begins,
        "twice": any(worker["iterations"] > _STEPS for worker in recovered),
        "weights": recovered[0]["weights"],
        "calm": {"weights": calm[0]["weights"]},
        "alike": all(
            same_plain(recovered[0]["weights"], worker["weights"]) for worker in recovered
        ),
        "state_kept": all(
            same_plain(worker[part], calm_worker[part])
            for part in ("iterations", "seeds")
            for worker, calm_worker in zip(recovered, calm, strict=True)
        ),
        "wrote": [workers[1]["wrote"] for workers in (calm, recovered)],
        "count": len(checkpoints),
        "others": [name for name in files if name.partition(".")[0] not in expected_files],
    }


def _reference(given: Inputs) -> Plain:
    """Returns how a training that recovers should go, all but its weights."""
    order, weights = _order(given), np.zeros(1)
    steps = {"lives": [order], "lived": order, "begins": _saved(given), "twice": False}
    files = {"wrote": [[], []], "count": _KEEP, "others": []}
    same = {"trained": True, "losses": [1.0, 0.5], "alike": True, "state_kept": True}
    return {**steps, **files, **same, "weights": weights, "calm": {"weights": weights}}


def _loss(given: Inputs, weights: Any) -> float:
    """The mean loss of all examples under the weights of the one layer that has some."""
    chances = softmax(given["x"] @ weights[:12].reshape(4, 3) + weights[12:])
    return float(-np.log(chances[np.arange(_EXAMPLES), given["y"]]).mean())


def _accounting(given: Inputs, out: Plain) -> str:
    begins, saved = out["begins"], _saved(given)
    if begins < 0:
        return "after the kill no batch of the data set was trained on"
    return (
        f"the checkpoint holds {saved} steps; after the kill it resumed after step {begins}"
        if begins != saved
        else "the steps after the kill are not those of the data set, in their order"
    )


_GOES_ON = "it resumes with the step that follows the last checkpoint, one every `every_steps`"

RECOVERS = Check(
    name="recovers",
    function="train",
    title="A pipeline that recovers",
    question="What differs between a run that was killed and one that was not?",
    direction=(
        "Check the parts in order: what is saved, by whom, what every worker restores, and which "
        "batch comes next."
    ),
    cost=Cost.CLUSTER,
    inputs=_inputs,
    call=_train_twice,
    read=_read,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "undisturbed: the model is trained",
                lambda given, out: out["trained"],
                "its weights are still those that `build` gave it",
            )
        ),
        Holds(
            "undisturbed: the workers share each batch, and each example comes once an epoch",
            lambda given, out: out["lives"] == [_order(given)],
            f"{_STEPS} steps of {_BATCH} examples were asked for, in their order",
        ),
        Holds(
            "undisturbed: the loss of all examples has not grown",
            lambda given, out: out["losses"][1] < out["losses"][0] + _ROUGHLY,
            lambda given, out: "it was {:.2f} before the training, and is {:.2f} after it".format(
                *out["losses"]
            ),
            points=0.5,
        ),
        Gate(Holds(_GOES_ON, lambda given, out: out["begins"] > 0, _accounting)),
        Holds(
            "with a kill: in the result each example counts once in an epoch",
            lambda given, out: out["lived"] == _order(given) and not out["twice"],
            _accounting,
            points=1.5,
        ),
        Holds(_GOES_ON, lambda given, out: out["begins"] == _saved(given), _accounting),
        AsUndisturbed(
            "weights",
            "the weights at the end: bit for bit those of the undisturbed run",
            points=1.5,
            of=lambda given, out: out["calm"],
        ),
        Holds(
            "both workers have the same weights",
            lambda given, out: out["alike"],
            "their weights differ",
            points=0.5,
        ),
        Equal("wrote", "what worker:1 has written in the folder"),
        Equal("count", "checkpoints in the folder at the end", points=0.5),
        Equal("others", "other files in the folder", points=0.5),
    ),
    hint="In the scope: build the model, and its optimizer. Then a checkpoint of all four "
    "parts, which all workers restore from tf.train.latest_checkpoint(folder). Only "
    "the chief has a CheckpointManager. Distribute `batches_of(epoch).skip(done)`.",
    revisit="Kill a worker",
    mistakes=(
        Raises("only_chief_restores", r"worker:1 still waits here; worker:0 has finished").feedback(
            "After the kill worker 0 resumed, and worker 1 started from the beginning. So "
            "worker 1 has more steps to take, and waits in the first one without a partner. "
            "Which workers must restore the checkpoint, and which one writes it?"
        ),
        Raises(
            "outside_scope",
            r"^(AssertionError\W*)+$|Mixing different tf.distribute.Strategy objects",
        ).feedback(
            "You called `build` outside of the strategy's scope, and ran its step inside. "
            "TensorFlow refuses to update such variables. Where must the model be made?"
        ),
        Observed(
            "both_read_all",
            lambda given, out: [sorted(2 * step) for step in _order(given)] == out["lives"][0],
        ).feedback(
            "Each worker trained on the whole of each batch. So every example counted twice, "
            "and no work was shared. Which call gives each worker its share of a batch?"
        ),
        Observed(
            "state_lost",
            lambda given, out: (
                out["begins"] == _saved(given) and not (out["twice"] or out["state_kept"])
            ),
        ).feedback(
            "You trained each step once, but after the kill Adam or dropout started from the "
            "beginning. So the steps were too long, or the masks differ from the undisturbed "
            "run's. Which of the four parts of task 1 is not in your checkpoint?"
        ),
        Observed("both_write", lambda given, out: out["wrote"][1]).feedback(
            "Both workers wrote into the folder. In a real run it is the same folder for both, "
            "so one removes what the other is about to read. Which worker should write?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="what_comes_back",
        title="What comes back after a kill",
        rubric=(
            RubricRow(
                "trained_twice",
                1,
                "names the steps between the checkpoint and the kill (46 to 48), and says that "
                "their first time is in no checkpoint",
            ),
            RubricRow(
                "what_jumps",
                2,
                "names the curve of the weights only and about how high it jumps (1); explains it "
                "by the averages that a fresh Adam lacks (1)",
            ),
            RubricRow(
                "not_with_sgd",
                1,
                "says that plain SGD would show no jump, although the place in the data and the "
                "seeds are lost",
            ),
            RubricRow(
                "proof",
                1,
                "asks for the weights at the end, compared bit for bit with an undisturbed run; a "
                "smooth curve is no proof",
            ),
        ),
    ),
)
