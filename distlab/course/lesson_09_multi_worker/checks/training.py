"""Checks of lesson 09: the TF_CONFIG of every task, and a training loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.checks.matchers import same_plain
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.checks.shared_checks import softmax
from distlab.course.runs.cluster_calls import WORKERS, call_on_workers

_PER_WORKER = 4
_GLOBAL_BATCH = _PER_WORKER * WORKERS

# --- tf_configs: the TF_CONFIG of every task


def _config_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    port = int(draw.integers(2000, 30000))
    hosts = [f"10.0.0.{n}" for n in draw.permutation(np.arange(2, 90))[: 2 + seed % 3]]
    return {"addresses": [f"{host}:{port + n}" for n, host in enumerate(hosts)]}


def _config_call(tf_configs: Callable[..., Any], inputs: Inputs) -> Plain:
    return tf_configs(list(inputs["addresses"]))


def _config_read(given: Inputs, outputs: Plain) -> Plain:
    texts = outputs.tolist() if isinstance(outputs, np.ndarray) else outputs
    configs = [_config_in(text) for text in texts] if isinstance(texts, list) else []
    return {
        "returned": outputs,
        "texts": texts,
        "configs": configs,
        "clusters": [_cluster_in(config) for config in configs],
        "tasks": [[_part(config, "task", key) for key in ("type", "index")] for config in configs],
    }


def _config_in(text: Plain) -> Any:
    """The dictionary that a text holds; None for one that is no JSON, or holds none."""
    try:
        config = json.loads(text)
    except (TypeError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _cluster_in(config: Any) -> Any:
    """The addresses of the workers; the whole cluster if it has other tasks, too."""
    cluster = _part(config, "cluster")
    return cluster["worker"] if isinstance(cluster, dict) and [*cluster] == ["worker"] else cluster


def _part(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _config_reference(
    given: Inputs, *, only_itself: bool = False, index: Callable[[int], Any] = lambda n: n
) -> Plain:
    """Reads the texts in which the n-th worker names these workers and this index."""

    def text(n: int, address: str) -> str:
        workers = [address] if only_itself else given["addresses"]
        task = {"type": "worker", "index": index(n)}
        return json.dumps({"cluster": {"worker": workers}, "task": task})

    return _config_read(given, [text(*each) for each in enumerate(given["addresses"])])


def _are_json(given: Inputs, out: Plain) -> bool:
    return len(out["configs"]) == len(given["addresses"]) and None not in out["configs"]


def _no_json(given: Inputs, out: Plain) -> str:
    wrong = [t for t, config in zip(out["texts"], out["configs"], strict=True) if config is None]
    if wrong:
        kind = "a string that is no JSON" if isinstance(wrong[0], str) else "no string"
        return f"strings of JSON were asked for; in yours is {kind}: {wrong[0]}"[:160]
    workers = len(given["addresses"])
    return f"{workers} strings were asked for, one for each worker; yours are {len(out['texts'])}"


def _has_other_tasks(given: Inputs, out: Plain) -> bool:
    return any(isinstance(tasks, dict) and "worker" in tasks for tasks in out["clusters"])


TF_CONFIGS = Check(
    name="tf_configs",
    title="The TF_CONFIG of every task",
    question="Which part of TF_CONFIG is the same on all workers, and which part differs?",
    direction="Compare the TF_CONFIG of two workers in the lesson, key by key.",
    cost=Cost.PURE,
    inputs=_config_inputs,
    call=_config_call,
    read=_config_read,
    reference=_config_reference,
    criteria=(
        Form(
            "a list of strings", lambda given, out: isinstance(out["texts"], list), key="returned"
        ),
        Holds("a string of JSON for each worker", _are_json, _no_json),
        Then(
            Equal("clusters", "every task names the whole cluster, in the same order"),
            Equal("tasks", "each task has its own type and index"),
        ),
    ),
    hint="For each index make a dictionary with the keys `cluster` and `task`, and give it "
    "to json.dumps. Only the index differs.",
    revisit="Who is who: TF_CONFIG",
    mistakes=(
        Observed("dictionaries", lambda given, out: isinstance(out["texts"][0], dict)).feedback(
            "Your list holds dictionaries. TF_CONFIG is an environment variable, and those hold "
            "strings only, which TensorFlow reads as JSON. Which function of the module `json` "
            "writes a dictionary as a string?"
        ),
        Observed("not_json", lambda given, out: "'" in "".join(out["texts"])).feedback(
            "Your strings are how Python writes a dictionary, with single quotes. TensorFlow "
            "reads TF_CONFIG as JSON, so it would stop at the first quote. Which function "
            "turns a dictionary into JSON?"
        ),
        Observed("other_tasks", _has_other_tasks).feedback(
            "Your cluster has tasks that are not workers. Each chief and each worker in that list "
            "takes part, so all of them wait until the last one has started. Which tasks were you "
            "asked for, and which does your list add?"
        ),
        Fault("only_itself", only_itself=True).feedback(
            "Each of your configs names only its own worker. So each worker would train alone, "
            "and would never meet the others. What must the list under `cluster` have in "
            "common on all workers?"
        ),
        Fault("index_is_text", index=str).feedback(
            "Your index is a string, in quotes. TensorFlow uses it as a position in the list, "
            "so it must be a number. Where does your code turn the index into a string?"
        ),
        Fault("same_index", index=lambda n: 0).feedback(
            "All your configs have the same index. So every process would take itself for the "
            "same worker, and the others would be missing. From what can you compute each "
            "worker's own index?"
        ),
    ),
)


# --- train_on_two_workers: a custom loop, against one device's weights and losses

_RATE, _EPOCHS = 0.3, 2
_WEIGHTS = ("kernel", "bias")  # a loss may be NaN for a worker without examples


def _train_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The last batch has 1 example, so one worker has none of it; or 5, so 3 and 2.
    examples = 17 if seed % 2 else 21
    return {
        "x": draw.normal(size=(examples, 4)).astype("float32"),
        "y": draw.integers(0, 3, size=examples).astype("int32"),
        "kernel": draw.normal(size=(4, 3)).astype("float32"),
    }


def _train_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    chief, other = workers = call_on_workers(_train_on_worker, train, inputs)
    return {
        **{key: chief[key] for key in _WEIGHTS},
        **{f"other {key}": other[key] for key in _WEIGHTS},
        **{f"losses of worker:{index}": worker["losses"] for index, worker in enumerate(workers)},
        "trained on": [worker["trained on"] for worker in workers],
    }


def _train_on_worker(strategy: Any, train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    trained_on = tf.Variable(0)  # on this worker alone
    step, examples = tf.Variable(0), tf.Variable(0)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def count(x: Any) -> Any:
        def backward(gradient: Any) -> Any:
            step.assign_add(1)
            examples.assign(tf.shape(gradient)[0])
            trained_on.assign_add(tf.shape(gradient)[0])
            return gradient

        return tf.identity(x), backward

    class Count(keras.layers.Layer):  # type: ignore[misc]
        def call(self, logits: Any) -> Any:
            return count(logits)

    def build() -> Any:
        dense = keras.layers.Dense(3)
        model = keras.Sequential([keras.Input((4,)), dense, Count()])
        model.set_weights([inputs["kernel"], np.zeros(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(_RATE), loss)
        return model

    try:
        result = train(strategy, build, inputs["x"], inputs["y"], _PER_WORKER, _EPOCHS)
    except Exception as error:
        if step.numpy() > 0:  # an error in the first trace is the same on both workers
            task = f"worker:{strategy.cluster_resolver.task_id}"
            had = f"which had {examples.numpy()} examples here"
            error.add_note(f"on {task}, after step {step.numpy()}, {had}")
        raise
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"two things were asked for, model and losses; yours is {result!r}"[:200])
    model, losses = result
    if not hasattr(model, "get_weights"):
        raise TypeError(f"first the model was asked for, then the losses; yours is {model!r}"[:200])
    if np.ndim(losses) != 1:
        raise TypeError(
            f"a list with a loss for each epoch was asked for; yours is {losses!r}"[:200]
        )
    kernel, bias = model.get_weights()
    return {
        "kernel": kernel,
        "bias": bias,
        "losses": [float(loss) for loss in losses],
        "trained on": int(trained_on.numpy()),
    }


def _is_shared(given: Inputs, out: Plain) -> bool:
    steps = _EPOCHS * -(-len(given["y"]) // _GLOBAL_BATCH)
    # A worker that has none of the last batch may fill it up with examples of no weight.
    return bool(min(out["trained on"]) > 0 and max(out["trained on"]) <= steps * _PER_WORKER)


def _is_trained(given: Inputs, out: Plain) -> bool:
    return not same_plain(out["kernel"], given["kernel"])


def _are_alike(out: Plain, atol: float) -> bool:
    return all(same_plain(out[key], out[f"other {key}"], atol=atol) for key in _WEIGHTS)


def _logs_own_losses(given: Inputs, out: Plain) -> bool:
    right, logs = _train_reference(given), [out[f"losses of worker:{n}"] for n in range(WORKERS)]
    is_right = all(same_plain(out[key], right[key], atol=1e-4) for key in _WEIGHTS)
    return is_right and len(logs[0]) == len(logs[1]) and not same_plain(*logs, atol=1e-4)


def _one_device(worker_sizes: Any) -> Any:
    """The weight of each example on one device."""
    return np.full(len(worker_sizes), 1 / len(worker_sizes))


def _nominal_batch(worker_sizes: Any) -> Any:
    """The weight of each example where a partial batch is divided like a full one."""
    return np.full(len(worker_sizes), 1 / _GLOBAL_BATCH)


def _mean_of_means(worker_sizes: Any) -> Any:
    """The weight of each example where workers' means are averaged."""
    return 1 / (WORKERS * worker_sizes)


def _nan_of_nothing(worker_sizes: Any) -> Any:
    """As `_mean_of_means`, and NaN where a worker has no example."""
    return _mean_of_means(worker_sizes) if len(worker_sizes) >= WORKERS else np.nan * worker_sizes


def _worker_sizes(examples: int, per_worker: int) -> Any:
    """For each example of a global batch, how many its worker has."""
    shares = [min(examples, per_worker), max(examples - per_worker, 0)]
    if examples < WORKERS * per_worker:  # a partial batch is halved
        shares = [-(-examples // WORKERS), examples // WORKERS]
    return np.repeat(shares, shares).astype("float64")


def _train_reference(
    given: Inputs, *, per_worker: int = _PER_WORKER, weigh: Callable[[Any], Any] = _one_device
) -> Plain:
    """Softmax regression by SGD, in float64, as both workers should have it."""
    kernel, bias = given["kernel"].astype("float64"), np.zeros(3)
    examples, global_batch = len(given["y"]), WORKERS * per_worker
    losses = []
    for _ in range(_EPOCHS):
        total = 0.0
        for start in range(0, examples, global_batch):
            x, y = (given[name][start : start + global_batch] for name in ("x", "y"))
            chances = softmax(x @ kernel + bias)
            error = (chances - np.eye(3)[y]) * weigh(_worker_sizes(len(y), per_worker))[:, None]
            kernel, bias = kernel - _RATE * x.T @ error, bias - _RATE * error.sum(axis=0)
            total -= np.log(chances[np.arange(len(y)), y]).sum()
        losses.append(total / examples)
    return {
        "kernel": kernel,
        "bias": bias,
        "other kernel": kernel,
        "other bias": bias,
        **{f"losses of worker:{index}": losses for index in range(WORKERS)},
        "trained on": [_EPOCHS * (-(-examples // WORKERS)), _EPOCHS * (examples // WORKERS)],
    }


TRAIN = Check(
    name="train_on_two_workers",
    function="train",
    title="A custom loop on two workers",
    question="What does each worker compute alone, and what do both compute together?",
    direction=(
        "Follow one batch: which examples reach which worker, by what the loss is divided, and what"
        " happens if a worker has no example."
    ),
    cost=Cost.CLUSTER,
    inputs=_train_inputs,
    call=_train_call,
    reference=_train_reference,
    criteria=(
        Holds(
            "the workers share each batch",
            _is_shared,
            lambda given, out: (
                f"of {_EPOCHS * len(given['y'])} examples in {_EPOCHS} epochs they trained on "
                f"{out['trained on']}"
            ),
        ),
        Then(
            *(Close(key, f"{key}, as one device has it", atol=1e-4) for key in _WEIGHTS),
            Holds(
                "both workers have the same weights",
                lambda given, out: _is_trained(given, out) and _are_alike(out, 1e-6),
                lambda given, out: (
                    "their weights differ: did they add up their gradients?"
                    if _is_trained(given, out)
                    else "the model has the weights that it had before"
                ),
            ),
            *(
                Close(
                    f"losses of worker:{index}",
                    f"the losses that worker:{index} returns, those of all examples",
                    atol=1e-4,
                )
                for index in range(WORKERS)
            ),
        ),
    ),
    hint="Batch the data by the global size and distribute it. In the step divide the sum "
    "of this worker's losses by the count of all workers' examples, which the replica "
    "context's all_reduce gives.",
    revisit="The loop",
    mistakes=(
        Raises(
            "unequal_steps",
            r"still waits here; worker:\d has finished|Shape mismatch in the collective",
        ).feedback(
            "One worker took more steps than the other. Its last all-reduce waited for a "
            "partner, or met a different collective. What makes the number of steps the same "
            "on all workers, even if a worker has no example left?"
        ),
        Raises(
            "outside_scope",
            r"^(AssertionError\W*)+(on worker:.*)?$"
            r"|Mixing different tf.distribute.Strategy objects",
        ).feedback(
            "You called `build` outside of the strategy's scope. So each worker has variables "
            "of its own, and TensorFlow refuses to update them in a step of the strategy. "
            "Where must variables be made?"
        ),
        Fault("per_worker_batch_as_global", sees=_WEIGHTS, per_worker=_PER_WORKER // WORKERS)
        .or_with(per_worker=_PER_WORKER // WORKERS, weigh=_nominal_batch)
        .or_with(per_worker=_PER_WORKER // WORKERS, weigh=_mean_of_means)
        .feedback(
            "You distributed batches of `per_worker_batch` examples. Each worker took a part "
            "of them, so a step had only half of the intended examples. How large is a global "
            "batch?"
        ),
        Fault("global_batch_on_each", sees=_WEIGHTS, per_worker=_PER_WORKER * WORKERS)
        .or_with(per_worker=_PER_WORKER * WORKERS, weigh=_nominal_batch)
        .feedback(
            "Each worker took a global batch of its own share, so a step had twice the intended "
            "examples. There are then half as many updates, and they aren't those of one device. "
            "Which data set do you have to batch, the whole or a worker's share?"
        ),
        Observed("own_losses", _logs_own_losses).feedback(
            "Your weights are right, and the two logs differ: each is of this worker's examples "
            "only. A decision by such a log, such as early stopping, would differ from worker to "
            "worker. What must be summed over the workers before you divide?"
        ),
        Fault("nominal_batch", sees=_WEIGHTS, weigh=_nominal_batch).feedback(
            "You divided by the size of a full batch, even in the last, partial one. So its "
            "examples weigh too little. How can a worker find out how many examples all "
            "workers have in this batch?"
        ),
        Fault("mean_of_means", sees=_WEIGHTS, weigh=_mean_of_means)
        .or_with(weigh=_nan_of_nothing)
        .feedback(
            "You averaged the workers' means. In the last batch one worker has fewer examples, "
            "so each of those weighs more (and the mean of none is NaN). By which number must "
            "every example be divided?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="who_read_what",
        title="Two workers and one device",
        rubric=(
            RubricRow(
                "same_loss",
                1,
                "says that both log the mean over all examples, because counts or gradients are "
                "added up over the workers",
            ),
            RubricRow(
                "own_losses",
                1,
                "says that two curves would be seen, of about half of the digits each",
            ),
            RubricRow(
                "last_batch",
                2,
                "reads 2 and 1 digits off the picture (1); gives 1/4 and 1/2 in place of 1/3 (1)",
            ),
            RubricRow(
                "bytes_sent",
                2,
                "computes 2,600 bytes in a step and 15,600 in an epoch (1); says that the size of "
                "the batch does not change a step (1)",
            ),
        ),
    ),
)
