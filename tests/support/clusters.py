"""Runs a function of a test module on the tasks of a cluster of real processes.

    results = run_on_tasks("distribution_cases:train", workers=2, args=[3])
    # what the function returned on each task, in task order (pickled, so arrays are fine)

The function runs in a process of its own, forked from the warm one, with its TF_CONFIG set and
TensorFlow imported but not used. Its module is found beside the tests.
"""

import contextlib
import pickle
import time

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.ports import reserved_ports
from distlab.cluster.spec import Layout
from tests.support.limits import HANG_SECS
from tests.support.repository import ROOT

_CODE = """
import importlib, pickle, sys
sys.path.insert(0, {root!r})
module = importlib.import_module("tests." + {module!r})
result = eval({call!r}, vars(module) | {{"args": pickle.loads({args!r})}})
with open({out!r}, "wb") as file:
    pickle.dump(result, file)
"""


def run_on_tasks(target, folder, *, only=None, timeout_secs=HANG_SECS, fails=False, **options):
    """Returns what `target` returned on each task, in task order; see `started_tasks`.

    `only` are the jobs whose end is waited for (the others, servers, are ended then). With
    `fails` the logs of the tasks are returned instead, and some task must have failed.
    """
    with started_tasks(target, folder, **options) as group:
        tasks = group.spec.tasks_in_order()
        waited = [t for t in tasks if only is None or t.job in only]
        ended = _wait(group, waited, timeout_secs)
        logs = {str(task): group.log_of(task).read_text() for task in tasks}
        failed = {str(task): code for task, code in ended.items() if code}
        late = [str(task) for task in waited if task not in ended and not failed]
        assert bool(failed) == fails and not late, f"{failed=} {late=}\n" + "\n".join(
            f"--- {task}\n{text[-4000:]}" for task, text in logs.items()
        )
        return logs if fails else [result_of(folder, task) for task in waited]


@contextlib.contextmanager
def started_tasks(
    target,
    folder,
    *,
    args=(),
    env=None,
    started=None,
    **layout,
):
    """Yields the `TaskGroup` of a cluster whose tasks run `target`, to end and start them.

    `target` is a function that is called with `args`, or an expression, as
    "support.strategy_cases:caught(meet)"; or what returns one for a task. `env` is the same for
    all tasks, or what returns the variables of each task of a `ClusterSpec`.
    """

    def how(task):
        module, _, call = (target(task) if callable(target) else target).partition(":")
        code = _CODE.format(
            root=str(ROOT),
            module=module,
            call=call if "(" in call else f"{call}(*args)",
            args=pickle.dumps(tuple(args)),
            out=str(_path_of_result(folder, task)),
        )
        return Start(argv=["-c", code], env=env(spec)[task] if callable(env) else env or {})

    layout = Layout(**{"workers": 2, **layout})
    with reserved_ports(layout.ports) as ports:
        spec = layout.on(ports)
        with TaskGroup(spec, how=how, folder=folder) as group:
            group.start(started)
            yield group


def result_of(folder, task):
    """Returns what the target returned on a task that has ended."""
    return pickle.loads(_path_of_result(folder, task).read_bytes())


def _path_of_result(folder, task):
    return folder / f"{task.job}-{task.index}.pickle"


def _wait(group, tasks, timeout_secs):
    """Returns the exit codes once all have ended, or one has failed, or it is too late."""
    deadline = time.monotonic() + timeout_secs
    while time.monotonic() < deadline:
        ended = group.ended()
        if all(task in ended for task in tasks) or any(ended.values()):
            return ended
        time.sleep(0.02)  # between looks at real processes
    return group.ended()
