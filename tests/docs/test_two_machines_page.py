"""docs/two_machines.md: its commands for two hosts run here, on two network namespaces."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.cluster.test_two_hosts import ADDRESSES, hosts  # noqa: F401  # a fixture
from tests.support.repository import ROOT
from tests.support.train_script import loss_in, run_tasks

PAGE = (ROOT / "docs" / "two_machines.md").read_text(encoding="utf-8")

# Enters the network of the host that a command names, where ssh would go to the host.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do [ "$1" = -o ] && shift; shift; done
case $1 in {cases} *) echo "ssh: no host $1" >&2; exit 255 ;; esac
exec nsenter --target "$pid" --net bash -c "$2"
"""


def commands_with(text):
    """The commands of the page that hold a text."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if text in line]


@pytest.fixture
def run(hosts, tmp_path):  # noqa: F811
    """Runs a command of the page with these hosts, and returns what it printed."""
    places = " ".join(f"{a}) pid={p} ;;" for a, p in zip(ADDRESSES, hosts, strict=True))
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(cases=places))
    ssh.chmod(0o755)
    environ = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    environ |= {"PATH": f"{tmp_path}:{environ['PATH']}", "PYTHON": sys.executable}

    def run(command):
        for number, address in enumerate(ADDRESSES, 1):
            command = command.replace(f"10.0.0.{number}", address)
        command = command.replace("/shared/checkpoints", str(tmp_path / "checkpoints"))
        done = subprocess.run(
            shlex.split(command), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_commands_for_two_hosts_train_as_one_process_and_go_on_with_fewer(run, tmp_path):
    both, fewer = commands_with("examples/ssh_hosts.sh")
    (said,) = run_tasks([{}], tmp_path)
    code, printed = run(both)
    assert code == 0, printed
    assert loss_in(printed) == (2, pytest.approx(loss_in(said)[1], abs=1e-5))
    assert "[worker:0] loss after 2 epochs" in printed
    code, printed = run(fewer)
    assert code == 0, printed
    assert re.search(r"\[worker:0\] loss after 4 epochs on 1 replicas", printed), printed


def test_the_exit_code_is_that_of_the_worker_that_failed(run):
    code, printed = run("examples/ssh_hosts.sh 10.0.0.1 10.0.0.2 -- examples/no_such_script.py")
    assert code == 2
    assert "[worker:1]" in printed


@pytest.mark.parametrize("arguments", ["", "10.0.0.1", "10.0.0.1 --", "-- examples/train.py"])
def test_a_wrong_call_shows_how_to_call(arguments):
    command = ["examples/ssh_hosts.sh", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("usage: examples/ssh_hosts.sh HOST [HOST...] -- SCRIPT [ARGUMENT...]\n")


@pytest.mark.parametrize(
    ("module", "texts"),
    [
        (
            "distlab/cluster/probing.py",
            [
                "the machine is there and nothing listens on that port",
                "nothing comes back",
                "there is no way to that machine",
                "no machine of that name is known here",
                "something that is no TensorFlow server answers",
            ],
        ),
        ("distlab/strategy/meeting_errors.py", ["its port is in use", "was told that"]),
    ],
)
def test_the_errors_that_the_page_names_are_those_of_distlab(module, texts):
    source = (ROOT / module).read_text(encoding="utf-8")
    for text in texts:
        assert text in source
        assert text in PAGE
