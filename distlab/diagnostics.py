"""Diagnoses this machine: versions, devices, strategies, and what would not work.

doctor()                # in a notebook; `distlab doctor` in a terminal
"""

from __future__ import annotations

import html
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from distlab import environment
from distlab.cluster.group import OPEN_SERVERS
from distlab.cluster.probe import doubt_of
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks, read_cluster
from distlab.errors import UnsupportedEnvironment
from distlab.findings import Machine, Severity, findings


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The findings of `doctor`.

    Attributes:
        versions: Python's version and those of the packages that matter.
        devices: Processors and GPUs, a line each.
        strategies: For each kind of strategy, whether it runs here, and on what.
        cluster: What the cluster means for this process; empty where none is described.
        notes: What is worth knowing.
        problems: What will not work, each with its cure; empty when all is well.
    """

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    strategies: Mapping[str, str]
    cluster: Mapping[str, str]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Titles, and under each the rows: a name, or nothing, and a text."""
        return [
            ("Versions", list(self.versions.items())),
            ("Devices", [("", line) for line in self.devices]),
            ("Strategies", list(self.strategies.items())),
            ("Cluster", list(self.cluster.items())),
            ("Notes", [("", line) for line in self.notes]),
            ("Problems", [("", line) for line in self.problems] or [("", "none")]),
        ]

    def __repr__(self) -> str:
        lines = []
        for title, rows in self._sections():
            if rows:
                width = max(len(name) for name, _ in rows)
                lines.append(title)
                lines += [
                    f"  {name:<{width}}  {text}" if name else f"  {text}" for name, text in rows
                ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        left = "style='text-align:left; vertical-align:top'"
        cells = []
        for title, rows in self._sections():
            for index, (name, text) in enumerate(rows):
                head = title if index == 0 else ""
                texts = f"<td {left}>{html.escape(name)}</td><td {left}>{html.escape(text)}</td>"
                if not name:
                    texts = f"<td {left} colspan='2'>{html.escape(text)}</td>"
                cells.append(f"<tr><th {left}>{head}</th>{texts}</tr>")
        return f"<table>{''.join(cells)}</table>"


# The distributions whose versions are reported.
_REPORTED = (
    "tensorflow",
    "keras",
    "tf-keras",
    "tensorflow-tpu",
    "tensorflow-datasets",
    "tensorboard",
    "jupyterlab",
    "numpy",
)


def doctor() -> Diagnosis:
    """Reports what this machine has, which strategies run on it, and how to cure each problem.

    It changes nothing, and logical devices can still be split afterwards. In a terminal, `distlab
    doctor` prints the same report.

    Returns:
        A `Diagnosis`, which shows as a table: versions, devices, strategies, and in a cluster what
        this process is there for. Its `problems` are empty when all is well.

    Example:
        >>> report = dl.doctor()
        >>> list(report.strategies)
        ['one_device', 'mirrored', 'central_storage', 'multi_worker', 'parameter_server', 'tpu']
    """
    gpus, load_error = _load()
    machine = Machine(gpus=len(gpus), load_error=load_error)
    rows = findings(machine)
    spec, mistake = _read_cluster()
    problems = [str(each) for each in rows if each.severity is not Severity.NOTE]
    notes = [str(each) for each in rows if each.severity is Severity.NOTE]
    versions = {**machine.installed, **machine.loaded}
    works = not any(each.severity is Severity.STOPS for each in rows)
    return Diagnosis(
        versions={
            "Python": platform.python_version(),
            **{name: versions[name] for name in _REPORTED if name in versions},
        },
        devices=(f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}", *gpus),
        strategies=_strategies(len(gpus), _cluster_texts(spec, mistake)) if works else {},
        cluster=explain_cluster(spec) if spec else {},
        notes=(*notes, *(warn_of_cluster(spec) if spec else ())),
        problems=(*problems, *filter(None, [mistake])),
    )


def _load() -> tuple[list[str], str]:
    """Returns a line for each GPU that TensorFlow sees, and what keeps TensorFlow from loading."""
    try:
        environment.load_tensorflow()
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"
    names = [detail.get("device_name", "GPU") for detail in details]
    return [f"GPU {index}: {name}" for index, name in enumerate(names)], ""


def _strategies(gpus: int, cluster: tuple[str, str]) -> dict[str, str]:
    device = f"{gpus} GPUs" if gpus > 1 else "one GPU" if gpus else "the CPU"
    several = device if gpus > 1 else f"logical devices on {device}: distlab.split_devices(4)"
    together, served = cluster
    return {
        "one_device": f"yes, on {device}" if gpus < 2 else "yes, on one GPU",
        "mirrored": f"yes, on {several}",
        "central_storage": f"yes, on {several}",
        "multi_worker": together,
        "parameter_server": served,
        "tpu": "yes" if os.environ.get("TPU_NAME") else "no TPU here",
    }


def _read_cluster() -> tuple[ClusterSpec | None, str]:
    """Returns the cluster that the environment describes, and a mistake in its description."""
    try:
        return read_cluster(), ""
    except UnsupportedEnvironment as error:
        return None, f"{error.asked}: {error.found}; {error.do}"


def _cluster_texts(spec: ClusterSpec | None, mistake: str) -> tuple[str, str]:
    """Returns whether workers that step together run here, and whether parameter servers do."""
    if mistake:
        return ("no: see the problem below",) * 2
    if spec is None:
        found = "names none" if os.environ.get("TF_CONFIG") else "is not set"
        return (f"needs a cluster: TF_CONFIG {found}",) * 2
    yes = f"yes, on {count_tasks(spec.jobs)} ({spec.source})"
    if spec.has_parameter_servers:
        return "no: the cluster has parameter servers", yes
    return yes, "no: the cluster has no parameter servers"


def explain_cluster(cluster: ClusterSpec) -> dict[str, str]:
    """Explains a cluster to this process, as texts by name, without starting or asking anything."""
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
    """Returns warnings about a cluster: who can reach it, and doubts about this task's address."""
    address = cluster.address_of(cluster.task) if cluster.task else None
    doubt = doubt_of(address) if address else ""
    return (f"{OPEN_SERVERS} Use a network that you trust.", *([doubt] if doubt else []))


def _at(cluster: ClusterSpec, task: TaskName) -> str:
    if task.job == "evaluator":
        return f"{task}, which nobody calls"
    return f"{task} at {cluster.address_of(task)}"


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
