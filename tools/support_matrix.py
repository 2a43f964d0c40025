"""The support matrix: what trains with what, found out by running it.

    python tools/support_matrix.py              # measures and prints
    python tools/support_matrix.py --write      # and writes docs/support_matrix.md
    python tools/support_matrix.py --check      # and fails where what is written is not so any more

Cells are measured in processes of their own (`support_group`), two at a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distlab.cluster.ports import reserved_ports
from distlab.cluster.spec import local_spec
from distlab.warm.process import WarmProcess, can_fork

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "support_matrix.md"
SINGLE = ("features", "more features", "keras", "tf_keras")
# Groups that are measured on a cluster: its tasks, and how many ports these need.
CLUSTERS: dict[str, tuple[dict[str, Any], int]] = {
    "workers": ({"workers": 2}, 2),
    "servers": ({"workers": 1, "parameter_servers": 1, "chief": True}, 3),
}
TIMEOUT_SECS = 300

STRATEGY_COLUMNS = (
    "Keras 3 `fit`",
    "Keras 3 own loop",
    "`distribute`",
    "tf_keras `fit`",
)
FEATURE_COLUMNS = (
    "Keras 3 `fit`, mirrored",
    "`distribute`, mirrored",
    "`distribute`, central_storage",
)
GOOD = ("equal", "kept")

Cells = dict[str, dict[str, str]]

PAGE_TEXT = """# Support matrix

Every cell of this page is the result of a run, and each night `python tools/support_matrix.py
--check` runs all of them again. It fails, and names the cells, if an upgrade of TensorFlow or Keras
changes any. `python tools/support_matrix.py --write` then writes the page again.

## Which strategy trains with what

Each cell trains for two epochs with SGD and momentum on logical CPUs. A strategy that can have
several replicas has two, with equal shares; `parameter_server` has one worker. `default` is
TensorFlow's strategy for code that asks for none. The cells mean:

- **equal**: no weight differs from plain training on one device by more than 1e-6, and no log by
  more than 1e-5 plus 1e-5 of its value.
- **named error**: distlab raises an error before it trains, and the error says what to do.
- **differs**: a weight is off by more.
- **weights right, log wrong**: the weights agree, and a log is off by more.
- **crashes**: TensorFlow or Keras raises an error in training. The words after the colon are ours.

A cell in bold is not as it should be.

{strategies}

The parameter-server row has one worker, whose steps follow one another. Several workers do not
wait for each other. They take their steps in a different order in each run, so there is no training
on one device to compare with. `tpu` was not measured.

## Which features of a model and its data work

Each cell compares two replicas with plain training on one device, to the same limits. The row names
the optimizer, the data or the layer that is different from the table above. The strategies come
from `make_strategy`, except in the row that names TensorFlow's own all-reduce.

The last two rows compare what `predict` returns with that of one device, to 1e-6 plus 1e-5 of its
value.

{features}

Measured with {versions}.
"""


def measure() -> tuple[Cells, Cells]:
    """Returns both tables, by row and column.

    Raises:
        RuntimeError: A process ended without an answer; the end of what it wrote is in the text.
    """
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
    for name in ("TF_CONFIG", "TF_USE_LEGACY_KERAS"):
        environ.pop(name, None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        warm = None
        if can_fork():
            warm = stack.enter_context(WarmProcess(preload=("tensorflow", "keras"), env=environ))
        two = stack.enter_context(ThreadPoolExecutor(2))
        jobs = [
            two.submit(_measure_group, group, folder, warm, environ)
            for group in (*SINGLE, *CLUSTERS)
        ]
        some, others, keras, tf_keras, workers, servers = (job.result() for job in jobs)
    rows = itertools.zip_longest(some.items(), others.items())
    features = dict(pair for pairs in rows for pair in pairs if pair)
    strategies = {name: keras[name] | tf_keras[name] for name in keras}
    return strategies | workers | servers, features


def _measure_group(group: str, folder: Path, warm: WarmProcess | None, environ: Any) -> Cells:
    with ExitStack() as stack:
        if group in CLUSTERS:
            layout, ports = CLUSTERS[group]
            spec = local_spec(**layout, ports=stack.enter_context(reserved_ports(ports)))
            tasks = {f"{group} {task}": spec.tf_config(task) for task in spec.tasks_in_order()}
            environs = {name: environ | {"TF_CONFIG": config} for name, config in tasks.items()}
            serve = len(tasks) - 1 if spec.has_parameter_servers else 0
        else:
            environs, serve = {group: environ}, 0
        running = []
        for name, env in environs.items():
            running.append((name, _start(group, folder / name, warm, env)))
            stack.callback(running[-1][1].kill)
        measuring = running[: len(running) - serve]  # the chief comes first
        codes = {name: task.wait(TIMEOUT_SECS) for name, task in measuring}
    for name, code in codes.items():
        if code:
            said = (folder / f"{name}.err").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the cells of {name!r} ended with {code}:\n{said}")
    found: Cells = json.loads((folder / next(iter(environs))).read_text(encoding="utf-8"))
    return found


def _start(group: str, path: Path, warm: WarmProcess | None, env: dict[str, str]) -> Any:
    argv = ["-m", "tools.support_group", group, str(path)]
    with path.with_name(f"{path.name}.err").open("wb") as err:
        streams: dict[str, Any] = {"env": env, "cwd": ROOT, "stdout": err, "stderr": err}
        if warm:
            return warm.spawn(argv, **streams)
        return subprocess.Popen([sys.executable, *argv], **streams)


def table(cells: Cells, corner: str, columns: tuple[str, ...]) -> str:
    """Returns the cells in Markdown; what is not as it should be is bold."""
    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    for name, row in cells.items():
        texts = [row[column] for column in columns]
        lines.append([name, *(text if text in GOOD else f"**{text}**" for text in texts)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read_tables(text: str) -> list[Cells]:
    """Returns the tables in a Markdown text: what `table` made of them."""
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [
            [part.strip().strip("*") for part in line.strip().strip("|").split(" | ")]
            for line in block.splitlines()
        ]
        (_, *columns), _, *rows = lines
        tables.append({name: dict(zip(columns, row, strict=True)) for name, *row in rows})
    return tables


def page(strategies: Cells, features: Cells, versions: str) -> str:
    """Returns docs/support_matrix.md."""
    return PAGE_TEXT.format(
        strategies=table(strategies, "strategy", STRATEGY_COLUMNS),
        features=table(features, "feature", FEATURE_COLUMNS),
        versions=versions,
    )


def versions() -> str:
    """Returns what the cells are measured with."""
    of = importlib.metadata.version
    packages = {"TensorFlow": "tensorflow", "Keras": "keras", "tf_keras": "tf_keras"}
    named = [f"{name} {of(package)}" for name, package in packages.items()]
    return f"{', '.join(named)} and Python {platform.python_version()}"


def changes(stored: list[Cells], found: list[Cells]) -> list[str]:
    """Returns a line for each cell that differs, by its row and column."""
    lines: list[str] = []
    for old, new in zip(stored, found, strict=True):
        for row in old | new:
            was, now = old.get(row, {}), new.get(row, {})
            lines += [
                f"{row} | {column}: {was.get(column)!r} is written, {now.get(column)!r} was found"
                for column in was | now
                if was.get(column) != now.get(column)
            ]
    return lines


def main(argv: list[str]) -> int:
    """Measures; prints, writes or compares. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    arguments = parser.parse_args(argv)
    found = measure()
    text = page(*found, versions())
    if not arguments.check:
        print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    if arguments.check:
        changed = changes(read_tables(PAGE.read_text(encoding="utf-8")), list(found))
        print("\n".join(changed) or "every cell is as it is written")
        return bool(changed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
