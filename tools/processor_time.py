"""What each test costs in processor time, for tests/costs.json: `make test-costs`.

Processor time, of a test and of all processes that it starts, is the same on a busy machine as on a
quiet one. What tests of a file share, such as a cluster, is divided among them.

    python -m pytest tests -p tools.processor_time      # appends to .test_costs.jsonl
    python -m tools.processor_time                      # what was measured, into tests/costs.json
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
MEASURED = Path(os.environ.get("TEST_COSTS", ROOT / ".test_costs.jsonl"))
COSTS = ROOT / "tests" / "costs.json"
# Tests that cost less are not listed: they always run.
LEAST_SECS = 0.5

_shared: Counter[tuple[str, str]] = Counter()  # seconds, by file ("" for all) and fixture


def _tree_secs() -> float:
    """Returns the processor time of this process, of what it started and of what it waited for."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def _file_of(item: pytest.Item | None) -> str:
    return item.nodeid.split("::")[0] if item else ""


def _append(line: dict[str, Any]) -> None:
    with MEASURED.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Writes what a test took, less what it made or tore down for others too."""
    before, clock, others = _tree_secs(), time.monotonic(), _shared.total()
    result = yield
    secs = _tree_secs() - before - (_shared.total() - others)
    _append({"test": item.nodeid, "cpu_secs": secs, "secs": time.monotonic() - clock})
    if _file_of(item) != _file_of(nextitem):
        _write_shared(item.session, _file_of(item), last=nextitem is None)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Keeps what a fixture of a file or of the session takes."""
    if fixturedef.scope in ("function", "class"):
        return (yield)
    before, others = _tree_secs(), _shared.total()
    result = yield
    file = "" if fixturedef.scope == "session" else request.node.nodeid.split("::")[0]
    # Fixtures that this one asked for are counted by themselves.
    _shared[file, fixturedef.argname] += _tree_secs() - before - (_shared.total() - others)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Keeps what is torn down after the last test of a file."""
    before = _tree_secs()
    result = yield
    if _file_of(item) != _file_of(nextitem):
        _shared[_file_of(item), ""] += _tree_secs() - before
    return result


def _write_shared(session: pytest.Session, file: str, *, last: bool) -> None:
    for of, name in [key for key in _shared if key[0] == file or (last and key[0] == "")]:
        users = [
            item.nodeid
            for item in session.items
            if (not of or _file_of(item) == of)
            and (not name or name in getattr(item, "fixturenames", ()))
        ]
        _append({"shared": name, "cpu_secs": _shared.pop((of, name)), "users": users})


def merge(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the seconds of each test that was measured, with its part of what it shared.

    Args:
        lines: As the plugin wrote them; of a test that was measured twice, the last counts.
    """
    own: dict[str, float] = {}
    parts: Counter[str] = Counter()
    for line in lines:
        if "test" in line:
            own[line["test"]] = line["cpu_secs"]
    for line in lines:
        for user in line.get("users", ()):
            parts[user] += line["cpu_secs"] / len(line["users"])
    return {test: secs + parts[test] for test, secs in own.items()}


def listed(costs: dict[str, float]) -> dict[str, dict[str, float]]:
    """Returns, by test function, what its cases cost, for tests that are worth a line.

    Args:
        costs: Seconds by the full name of a case.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for test, secs in costs.items():
        function, _, case = test.partition("[")
        found[function][case.removesuffix("]")] = round(secs, 1)
    return {
        function: cases
        for function, cases in sorted(found.items())
        if sum(cases.values()) >= LEAST_SECS
    }


def known() -> dict[str, dict[str, float]]:
    """Returns what tests/costs.json says: seconds by test function, and by case."""
    found: dict[str, dict[str, float]] = json.loads(COSTS.read_text(encoding="utf-8"))
    return found


def _is(function: str) -> bool:
    file, _, name = function.partition("::")
    path = ROOT / file
    return path.exists() and f"def {name}(" in path.read_text(encoding="utf-8")


def main() -> None:
    """Writes tests/costs.json; what was not measured keeps its costs while its test is there."""
    lines = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    costs = merge(lines)
    measured = {test.partition("[")[0] for test in costs}
    kept = {name: cases for name, cases in known().items() if name not in measured and _is(name)}
    rows = [
        f"{json.dumps(name)}: {json.dumps(cases)}"
        for name, cases in sorted((kept | listed(costs)).items())
    ]
    COSTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    by_file = Counter[str]()
    for test, secs in costs.items():
        by_file[test.split("::")[0]] += secs
    for file, secs in by_file.most_common():
        print(f"{secs:8.1f} s  {file}")
    print(f"{by_file.total():8.1f} s  of processor time in all")


if __name__ == "__main__":
    main()
