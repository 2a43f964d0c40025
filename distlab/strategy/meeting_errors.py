"""Errors for tasks that did not meet: which task is missing, or has a different cluster.

Each function returns the error to raise, and names the tasks; some are asked once more for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distlab.cluster.probing import doubt_of, unanswering
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks
from distlab.errors import ProcessError, TaskTimeout, UnsupportedEnvironment

# The jobs that a coordinator waits for.
_SERVERS = ("worker", "ps")

RESTART = "restart the kernel (or Python; in a LocalCluster: cluster.restart())"
_SAME_CLUSTER = "give all tasks the same 'cluster'; only 'task' differs"


def who_is_missing(cluster: ClusterSpec, joined: set[TaskName] | None, secs: float) -> TaskTimeout:
    """Returns the error of workers that have not all come in time."""
    found, check = _silent(cluster, cluster.trainers)
    for task in cluster.trainers:
        if joined is not None and task not in {*joined, *found}:
            found[task] = "answers and has not joined"
            check.append(f"does it make this strategy, too? If so, {_SAME_CLUSTER}.")
    if not found:
        found[cluster.leader] = (
            "answers, and waits for a task that this one was not told of, or is of another cluster"
        )
        check.append(f"{_SAME_CLUSTER}.")
    return _timeout(cluster, "multi_worker", secs, found, check)


def who_does_not_serve(cluster: ClusterSpec, secs: float) -> TaskTimeout | None:
    """Returns the error of workers and parameter servers that do not answer; None if all do."""
    servers = [task for task in cluster.tasks_in_order() if task.job in _SERVERS]
    found, check = _silent(cluster, servers)
    return _timeout(cluster, "parameter_server", secs, found, check) if found else None


def who_does_not_connect(cluster: ClusterSpec, secs: float) -> TaskTimeout:
    """Returns the error of servers that answer, or did, and that TensorFlow waits for still."""
    if error := who_does_not_serve(cluster, secs):
        return error
    servers = [task for task in cluster.tasks_in_order() if task.job in _SERVERS]
    there = ", ".join(f"{task} at {cluster.address_of(task)}" for task in servers)
    return TaskTimeout(
        asked=asked(cluster, "parameter_server"),
        found=f"of {there}, which all answer, one does not let itself be coordinated",
        do="does each of them make this strategy, with the same version of TensorFlow? Does "
        "something stand before it, a proxy or a mesh?",
        task=str(servers[0]),
    )


def who_has_left(cluster: ClusterSpec, tasks: Sequence[TaskName], secs: float) -> TaskTimeout:
    """Returns the error of workers that have met the others and then said no more."""
    does = "has met the others, and gave up or makes another strategy"
    check = "does its log show an error? Start all tasks again, each with make_strategy"
    return _without_a_word(cluster, tasks, secs, does=does, check=check)


def who_makes_no_other(cluster: ClusterSpec, tasks: Sequence[TaskName], secs: float) -> TaskTimeout:
    """Returns the error of workers that go on with the strategy they have."""
    does = "has not made another strategy, as this task wants to"
    check = "call make_strategy equally often in all tasks."
    return _without_a_word(cluster, tasks, secs, does=does, check=check)


def difference(
    cluster: ClusterSpec, task: TaskName, told: Mapping[str, list[str]]
) -> tuple[str, str] | None:
    """Returns in what the cluster that a task was told of differs from this one, and what to do."""
    ours = {job: list(tasks) for job, tasks in cluster.addresses.items()}
    if told == ours:
        return None
    counts = [{job: len(tasks) for job, tasks in one.items()} for one in (told, ours)]
    if counts[0] != counts[1]:
        theirs, mine = map(count_tasks, counts)
        return f"{task} was told of {theirs}, and {cluster.task} of {mine}", _SAME_CLUSTER
    job, index = next(
        (job, index)
        for job, tasks in ours.items()
        for index, address in enumerate(tasks)
        if told[job][index] != address
    )
    return (
        f"{task} was told that {job}:{index} is at {told[job][index]}, and {cluster.task} "
        f"that it is at {ours[job][index]}",
        _SAME_CLUSTER,
    )


def inequality(
    cluster: ClusterSpec, task: TaskName, *, theirs: int, ours: int
) -> tuple[str, str] | None:
    """Returns what to say of workers that have different numbers of devices, and what to do."""
    if theirs == ours:
        return None
    devices = f"{theirs} device{'s' if theirs > 1 else ''}"
    return (
        f"{task} computes on {devices}, and {cluster.task} on {ours}",
        "give all workers as many: GPUs (CUDA_VISIBLE_DEVICES), or logical devices "
        "(distlab.split_devices, `distlab launch --devices-per-worker`)",
    )


def disagreement(cluster: ClusterSpec, found: str, do: str) -> UnsupportedEnvironment:
    """Returns the error of tasks that are not alike."""
    return UnsupportedEnvironment(asked=asked(cluster), found=found, do=do)


def refused(
    cluster: ClusterSpec, message: str, *, kind: str = "multi_worker"
) -> ProcessError | UnsupportedEnvironment:
    """Returns the error for one that TensorFlow raised while the tasks met."""
    if "Unexpected task registered" in message:
        found = f"{cluster.leader} was told of a cluster without {cluster.task}"
        return disagreement(cluster, found, _SAME_CLUSTER)
    if "Could not start gRPC server" in message:
        return port_in_use(cluster, kind)
    first = (message.strip().splitlines() or ["nothing"])[0]
    return ended(cluster, f"TensorFlow says: {first}", kind=kind)


def ended(cluster: ClusterSpec, sign: str, *, kind: str = "multi_worker") -> ProcessError:
    """Returns the error of tasks that were there and are no more."""
    found, check = _silent(cluster, cluster.trainers)
    return ProcessError(
        asked=asked(cluster, kind),
        found="; ".join([*_named(found), sign]),
        do=_sentences([*check, "start all tasks again"]),
    )


def given_up_before(cluster: ClusterSpec, kind: str) -> ProcessError:
    """Returns the error of a process that has waited for others, in vain, once before."""
    return ProcessError(
        asked=asked(cluster, kind),
        found="this process has tried before; TensorFlow waits in it still, and holds its port",
        do=f"{RESTART}, here and in the other tasks",
    )


def port_in_use(cluster: ClusterSpec, kind: str) -> UnsupportedEnvironment:
    """Returns the error of a port that another process holds."""
    return UnsupportedEnvironment(
        asked=asked(cluster, kind),
        found=f"its port is in use, {_own_address(cluster)} (Address already in use): "
        "another process listens there, perhaps this very task, started twice",
        do="end that process (ss -ltnp names it), or give this task another port in every "
        "task's TF_CONFIG",
    )


def asked(cluster: ClusterSpec, kind: str = "multi_worker") -> str:
    """Returns what was asked for, as an error says it."""
    return f"make_strategy({kind!r}) on {cluster.task or 'the coordinator'}"


def doubt_of_own_address(cluster: ClusterSpec) -> str:
    """Returns a doubt where this process's address is no address of this machine; else ""."""
    address = _own_address(cluster)
    return doubt_of(address) if address else ""


def _own_address(cluster: ClusterSpec) -> str | None:
    return cluster.address_of(cluster.task) if cluster.task else None


def _silent(
    cluster: ClusterSpec, tasks: Iterable[TaskName]
) -> tuple[dict[TaskName, str], list[str]]:
    """Returns which of some other tasks do not answer, in words, and what to check."""
    others = [task for task in tasks if task != cluster.task]
    addresses = {task: cluster.address_of(task) or "" for task in others}
    probes = unanswering({task: one for task, one in addresses.items() if one})
    found = {task: f"at {one.address} does not answer: {one.found}" for task, one in probes.items()}
    return found, [one.check for one in probes.values()]


def _without_a_word(
    cluster: ClusterSpec, tasks: Sequence[TaskName], secs: float, *, does: str, check: str
) -> TaskTimeout:
    """Returns the error of tasks that do not answer, or that answer and then do something else."""
    found, checks = _silent(cluster, tasks)
    for task in tasks:
        found.setdefault(task, does)
    return _timeout(cluster, "multi_worker", secs, found, [*checks, check])


def _timeout(
    cluster: ClusterSpec,
    kind: str,
    secs: float,
    found: Mapping[TaskName, str],
    check: Sequence[str],
) -> TaskTimeout:
    doubt = doubt_of_own_address(cluster)
    more = f"a task that comes later needs a timeout_secs above {secs:g}"
    return TaskTimeout(
        asked=asked(cluster, kind),
        found="; ".join(_named(found)),
        do=_sentences([*check, doubt, more]),
        task=str(next(iter(found))),
    )


def _named(found: Mapping[TaskName, str]) -> list[str]:
    return [f"{task} {text}" for task, text in found.items()]


def _sentences(texts: Sequence[str]) -> str:
    first, *others = dict.fromkeys(filter(None, texts))
    return " ".join([first, *(text[0].upper() + text[1:] for text in others)])
