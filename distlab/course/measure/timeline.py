"""Records which thread worked when, and on what: TensorFlow's profile, read without a server.

    events = record_timeline(lambda: train(steps=3))
    busy_ms(events, "forward", "backward")          # milliseconds in which at least one works
    overlap_ms(events, "input", COMPUTE)            # in which both happen
    draw_timeline({"as it was": events})            # distlab.course.figures.timeline

TensorFlow writes a profile as one protocol buffer for each host. Its planes are devices, their
lines are threads or streams, and each event on a line has a name, a start and a duration.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.errors import DistlabError, UnsupportedEnvironment

# Kinds of work. A step that "waits" has asked for a batch that isn't there yet; "input" makes one.
COMPUTE = ("forward", "backward", "update")
KINDS = (*COMPUTE, "input", "waits")

# What tf.function and Keras put in front of an operation's name.
_CALLERS = re.compile(r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/|while/(?:body/)?(?:_\d+/)*)+")
# An operation's event is named `path/to/operation:Type`.
_OPERATION = re.compile(r"^[^:\s]+:\w+$")
_UPDATE = re.compile(
    r"^(?:ada\w+|ftrl|lamb|lion|loss_scale_optimizer|muon|nadam|rmsprop|sgd)(?:_\d+)?/"
)
_BACKWARD = re.compile(r"^(?:gradient_tape/|gradients/|AddN)")
_WAITS = "IteratorGetNextOp::DoCompute"
_PRODUCTS = ("Einsum", "MatMul", "MatMulV2", "MatMulV3")


class ProfileError(DistlabError, RuntimeError):
    """A profile can't be recorded, or has nothing in it."""


@dataclass(frozen=True, kw_only=True, order=True)
class Event:
    """A piece of work on one thread.

    Attributes:
        start_ms: When it began, in milliseconds after the first event.
        ms: How long it took.
        thread: The thread's name: its pool and a number, such as `tf_Compute 1`.
        kind: One of `KINDS`.
        operation: TensorFlow's type of the operation, such as `MatMul`.
        name: The operation's name, such as `gradient_tape/dense/MatMul`.
    """

    start_ms: float
    ms: float
    thread: str
    kind: str
    operation: str
    name: str

    @property
    def end_ms(self) -> float:
        """When it was over, in milliseconds after the first event."""
        return self.start_ms + self.ms

    @property
    def work(self) -> str:
        """Either `products` or `other operations` if it computes, else its kind."""
        if self.kind not in COMPUTE:
            return self.kind
        return "products" if self.operation.endswith(_PRODUCTS) else "other operations"


def record_timeline(function: Callable[[], object]) -> list[Event]:
    """Runs a function under TensorFlow's profiler, and returns what worked when, by start.

    Call the function once before, or its tracing is part of what you see. Profiling costs time of
    its own, so compare the parts of a timeline with each other, and take a step's time elsewhere.

    Raises:
        ProfileError: Another profile is being recorded, or nothing ran on TensorFlow's threads.
        UnsupportedEnvironment: This TensorFlow's profile can't be read.
    """
    import tensorflow as tf

    space = _new_space()  # before the function runs
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder)
        except tf.errors.AlreadyExistsError as error:
            raise ProfileError(
                asked="record_timeline(function)",
                found="a profile that is being recorded already",
                do="stop it first: tf.profiler.experimental.stop()",
            ) from error
        try:
            function()
        finally:
            tf.profiler.experimental.stop()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        for file in files:
            space.MergeFromString(file.read_bytes())
    if not (events := events_in(space)):
        raise ProfileError(
            asked="record_timeline(function)",
            found=f"{len(files)} files of a profile, with no operation in them",
            do="let the function run a tf.function, and wait for its result with .numpy()",
        )
    return events


def record_quickest(function: Callable[[], object], *, rounds: int = 5) -> list[Event]:
    """Returns the shortest of several timelines of a function: other programs only add time.

    Args:
        function: As for `record_timeline`.
        rounds: How many timelines are recorded.
    """
    found = [record_timeline(function) for _ in range(rounds)]
    return min(found, key=lambda events: max(event.end_ms for event in events))


def events_in(space: Any) -> list[Event]:
    """Returns the events of a profile, an `XSpace`, by start; the outermost where they nest."""
    found: list[Event] = []
    pools: dict[str, int] = {}
    for plane in space.planes:
        names = {number: each.name for number, each in plane.stat_metadata.items()}
        for line in plane.lines:
            pool = _pool(plane.name, line)
            rows = []
            for event in line.events:
                name = _name_of(plane, event, names)
                if kind := kind_of(name, pool):
                    start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                    rows.append((start, event.duration_ps / 1e9, kind, name))
            if rows:
                pools[pool] = pools.get(pool, 0) + 1
                found += _outermost(rows, f"{pool} {pools[pool]}")
    first = min((event.start_ms for event in found), default=0.0)
    return sorted(_moved(event, -first) for event in found)


def kind_of(name: str, pool: str = "") -> str:
    """Returns which of `KINDS` an event is, by its name and its thread's pool; "" for none."""
    if name == _WAITS:
        return "waits"
    is_operation = bool(_OPERATION.match(name))
    if pool.startswith("tf_data") or name.startswith(("EagerPyFunc:", "PyFunc:")):
        return "input" if is_operation or name.startswith("Iterator::") else ""
    if not is_operation:
        return ""
    path = _CALLERS.sub("", name)
    if _BACKWARD.match(path):
        return "backward"
    return "update" if _UPDATE.match(path) else "forward"


def busy_ms(events: Iterable[Event], *kinds: str) -> float:
    """Returns the milliseconds in which at least one event of these kinds, or of any, runs."""
    wanted = kinds or KINDS
    return covered_ms(event for event in events if event.kind in wanted)


def covered_ms(events: Iterable[Event]) -> float:
    """Returns the milliseconds in which at least one of these events runs."""
    return sum(end - start for start, end in _spans(events))


def overlap_ms(events: Iterable[Event], kind: str, others: Iterable[str]) -> float:
    """Returns the milliseconds in which work of a kind runs beside work of other kinds."""
    events, others = list(events), tuple(others)
    both = busy_ms(events, kind, *others)
    return busy_ms(events, kind) + busy_ms(events, *others) - both


def _spans(events: Iterable[Event]) -> list[tuple[float, float]]:
    """Returns the intervals in which one of these events runs, without overlaps, by start."""
    spans: list[tuple[float, float]] = []
    for event in sorted(events):
        if spans and event.start_ms <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], event.end_ms)
        else:
            spans.append((event.start_ms, event.end_ms))
    return spans


def _outermost(rows: list[tuple[float, float, str, str]], thread: str) -> list[Event]:
    """Returns the events of a thread without those that run inside another of the same kind."""
    kept: list[Event] = []
    ends: dict[str, float] = {}
    for start, ms, kind, name in sorted(rows, key=lambda row: (row[0], -row[1])):
        if start + ms <= ends.get(kind, float("-inf")):
            continue
        ends[kind] = start + ms
        operation = name.rpartition(":")[2].removeprefix("_Mkl").lstrip("_")
        operation = "IteratorGetNext" if kind == "waits" else operation
        path = _CALLERS.sub("", name.rpartition(":")[0].rstrip(":")) or name
        kept.append(
            Event(start_ms=start, ms=ms, thread=thread, kind=kind, operation=operation, name=path)
        )
    return kept


def _moved(event: Event, ms: float) -> Event:
    return Event(**{**vars(event), "start_ms": event.start_ms + ms})


def _pool(plane: str, line: Any) -> str:
    """Returns a thread's name without its number, or a device's for one of its streams."""
    if plane.startswith("/device:"):
        return plane.removeprefix("/device:")
    return str(line.display_name or line.name).split("/")[0]


def _name_of(plane: Any, event: Any, stats: dict[int, str]) -> str:
    """Returns an event's name; a kernel of a GPU has that of its operation in a statistic."""
    for stat in event.stats:
        if stats.get(stat.metadata_id) == "tf_op":
            value = stat.str_value or stats.get(stat.ref_value, "")
            if value:
                return str(value)
    return str(plane.event_metadata[event.metadata_id].name)


def _new_space() -> Any:
    """Returns an empty profile of TensorFlow's class, which has no public path."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        import tensorflow as tf

        raise UnsupportedEnvironment(
            asked="record_timeline(function)",
            found=f"TensorFlow {tf.__version__} without tensorflow.tsl.profiler.protobuf",
            do="install the tensorflow that constraints.txt names, or record with "
            "tf.profiler.experimental.start(folder) and open the folder in TensorBoard "
            "(pip install tensorboard-plugin-profile)",
        ) from error
    return xplane_pb2.XSpace()
