"""Explains a cluster to one of its processes: its own task, the other tasks, what comes next.

explain_cluster()        # reads TF_CONFIG, or Slurm's variables; starts and asks nothing
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from distlab.cluster.probing import doubt_of
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks, read_cluster

OPEN_SERVERS = (
    "TensorFlow's servers listen on every network interface without authentication: any program "
    "that reaches them can run code."
)

_ALONE = "by the devices of this machine"


@dataclass(frozen=True, kw_only=True)
class ClusterExplanation:
    """What a cluster means for this process.

    Attributes:
        cluster: How many tasks of which job, and where that was read.
        task: Which of them this process is, and where it listens.
        chief: Who saves for all.
        others: The other tasks, and where they listen.
        strategy: What `make_strategy("auto")` does here.
        expect: What to expect of it.
        notes: What is worth knowing.
    """

    cluster: str
    task: str
    chief: str
    others: tuple[str, ...]
    strategy: str
    expect: tuple[str, ...]
    notes: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Returns names and texts, a row each; notes, and what there is none of, left out."""
        texts = {
            "cluster": self.cluster,
            "task": self.task,
            "chief": self.chief,
            "others": ", ".join(self.others),
            "strategy": self.strategy,
            "expect": " ".join(self.expect),
        }
        return [(name, text) for name, text in texts.items() if text]

    def __repr__(self) -> str:
        rows = [f"{name:<9} {text}" for name, text in self.rows()]
        return "\n".join([*rows, *self.notes])

    def _repr_html_(self) -> str:
        left = "style='text-align:left; vertical-align:top'"
        cells = "".join(
            f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(text)}</td></tr>"
            for name, text in self.rows()
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table>{cells}</table>{notes}"


def explain_cluster(environ: Mapping[str, str] | None = None) -> ClusterExplanation:
    """Explains the cluster that the environment describes, from where this process stands."""
    cluster = read_cluster(environ)
    if cluster is None:
        return ClusterExplanation(
            cluster="none: TF_CONFIG is not set, and this is no step of Slurm",
            task="this process is alone",
            chief="",
            others=(),
            strategy=_ALONE,
            expect=(),
            notes=(),
        )
    return ClusterExplanation(
        cluster=f"{count_tasks(cluster.jobs)} ({cluster.source})",
        task=_at(cluster, cluster.task) if cluster.task else "none of them: it coordinates them",
        chief=_chief(cluster),
        others=tuple(_at(cluster, t) for t in cluster.tasks_in_order() if t != cluster.task),
        strategy=_strategy(cluster),
        expect=_expect(cluster),
        notes=_notes(cluster),
    )


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


def _strategy(cluster: ClusterSpec) -> str:
    if cluster.serves:
        return "none: it serves until it gets SIGTERM"
    return cluster.strategy or _ALONE


def _expect(cluster: ClusterSpec) -> tuple[str, ...]:
    if cluster.serves:
        return (f"{_coordinator(cluster)} tells it what to do; your code ends at make_strategy.",)
    saves = "This task saves" if cluster.task == cluster.leader else f"{cluster.leader} saves"
    return {
        None: (),
        "one_device": (
            f"It evaluates the checkpoints that {cluster.leader} writes, and waits for nobody.",
        ),
        "multi_worker": (
            f"All {len(cluster.trainers)} workers make their strategy before any goes on.",
            "Every step waits for the slowest worker; when one ends, the others get an error.",
            f"{saves} for all.",
        ),
        "parameter_server": (
            "It waits until all workers and parameter servers answer.",
            "It makes the model, hands out the steps and saves; the variables are on the "
            "parameter servers.",
            "A worker that ends may come back; a parameter server takes its variables with it.",
        ),
    }[cluster.strategy]


def _coordinator(cluster: ClusterSpec) -> str:
    return "chief:0" if cluster.jobs.get("chief") else "A process outside of the cluster"


def _notes(cluster: ClusterSpec) -> tuple[str, ...]:
    address = cluster.address_of(cluster.task) if cluster.task else None
    doubt = doubt_of(address) if address else ""
    return (f"{OPEN_SERVERS} Use a network that you trust.", *([doubt] if doubt else []))
