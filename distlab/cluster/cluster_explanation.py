"""Explains a cluster to one of its processes: its own task, the other tasks, what comes next.

explain_cluster(read_cluster())        # {"cluster": "2 workers (TF_CONFIG)", "task": ...}
"""

from __future__ import annotations

from distlab.cluster.probe import doubt_of
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks

OPEN_SERVERS = (
    "TensorFlow's servers listen on every network interface without authentication: any program "
    "that reaches them can run code."
)


def explain_cluster(cluster: ClusterSpec) -> dict[str, str]:
    """What a cluster means for this process, as names and texts; starts and asks nothing."""
    others = [_at(cluster, task) for task in cluster.tasks_in_order() if task != cluster.task]
    strategy = cluster.strategy or "by the devices of this machine"
    texts = {
        "cluster": f"{count_tasks(cluster.jobs)} ({cluster.source})",
        "task": _at(cluster, cluster.task) if cluster.task else "none of them: it coordinates them",
        "chief": _chief(cluster),
        "others": ", ".join(others),
        "strategy": "none: it serves until it gets SIGTERM" if cluster.serves else strategy,
        "expect": _expect(cluster),
    }
    return {name: text for name, text in texts.items() if text}


def warn_of_cluster(cluster: ClusterSpec) -> tuple[str, ...]:
    """What is worth knowing of a cluster: who can reach it, and doubts of this task's address."""
    address = cluster.address_of(cluster.task) if cluster.task else None
    doubt = doubt_of(address) if address else ""
    return (f"{OPEN_SERVERS} Use a network that you trust.", *([doubt] if doubt else []))


def _at(cluster: ClusterSpec, task: TaskName) -> str:
    if task.job == "evaluator":
        return f"{task}, which nobody calls"
    return f"{task} at {cluster.address_of(task) or 'an address that was not told'}"


def _chief(cluster: ClusterSpec) -> str:
    if cluster.has_parameter_servers and "chief" not in cluster.jobs:
        return "this process"
    own = ", this task" if cluster.leader == cluster.task else ""
    acts = ", which acts as one" if cluster.leader.job == "worker" else ""
    return f"{cluster.leader}{acts}{own}"


def _expect(cluster: ClusterSpec) -> str:
    if cluster.serves:
        coordinator = "chief:0" if cluster.jobs.get("chief") else "A process outside of the cluster"
        return f"{coordinator} tells it what to do; your code ends at make_strategy."
    saves = "This task saves" if cluster.task == cluster.leader else f"{cluster.leader} saves"
    return {
        None: "",
        "one_device": f"It evaluates the checkpoints that {cluster.leader} writes, and waits for "
        "nobody.",
        "multi_worker": f"All {len(cluster.trainers)} workers make their strategy before any goes "
        "on. Every step waits for the slowest worker; when one ends, the others get an error. "
        f"{saves} for all.",
        "parameter_server": "It waits until all workers and parameter servers answer. It makes the "
        "model, hands out the steps and saves; the variables are on the parameter servers. A "
        "worker that ends may come back; a parameter server takes its variables with it.",
    }[cluster.strategy]
