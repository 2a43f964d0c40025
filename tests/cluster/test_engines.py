"""examples/train.py under the engines that start processes on many machines.

slurm_jobs.json is what a Slurm 22.05 with two nodes, node9 and node10, set for the tasks of two
jobs; tfjob_tf_config.json is TF_CONFIG as Kubeflow's operator puts it together. The hosts that
docs/two_machines.md starts by SSH are two network namespaces with a cable between them.
"""

import contextlib
import copy
import json
import os
import re
import runpy
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile

import psutil
import pytest
import yaml

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.isolation import Isolation
from distlab.cluster.spec import ClusterSpec, TaskName, read_cluster
from distlab.cluster.warm.process import shared_server, task_environment
from distlab.errors import UnsupportedEnvironment
from tests.support.forked_python import write_forked_python
from tests.support.launched import launched
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import wait_until
from tests.support.repository import ROOT

DATA = ROOT / "tests" / "support"
TRAIN, EPOCHS = ROOT / "examples" / "train.py", 2


def slurm_job(name):
    """The environment of each task of a recorded job, in the order of their ranks."""
    job = json.loads((DATA / "slurm_jobs.json").read_text())[name]
    return [{**job["all"], **task} for task in job["tasks"]]


def arguments(folder):
    """What the script is asked for."""
    return ["--epochs", str(EPOCHS), "--folder", str(folder / "checkpoints")]


def loss_in(text):
    """On how many replicas, and which loss, one process told; the same if it is told twice."""
    told = re.findall(rf"loss after {EPOCHS} epochs on (\d) replicas: ([0-9.]+)", text)
    assert told, text[-4000:]
    ((replicas, loss),) = set(told)
    return int(replicas), float(loss)


@pytest.fixture(scope="module")
def loss_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    with (folder / "log").open("w") as log:
        options = {"env": task_environment({"TF_CONFIG": None}), "stdout": log, "stderr": log}
        task = shared_server().spawn([str(TRAIN), *arguments(folder)], cwd=folder, **options)
    code, said = task.wait(timeout_secs=HANG_SECS), (folder / "log").read_text()
    assert code == 0, said
    replicas, loss = loss_in(said)
    assert replicas == 1
    return pytest.approx(loss, abs=1e-5)  # the page on two machines promises five digits


def test_an_evaluator_evaluates_what_launched_workers_have_trained(
    loss_alone, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = ["--workers", 2, "--evaluator", TRAIN, *arguments(tmp_path)]
    run = launched(args, capfd)
    assert loss_in(run.out) == (2, loss_alone)
    steps = r"^evaluator:0 \| step (\d+), \d epochs? done: accuracy 0\."
    assert re.findall(steps, run.out, re.MULTILINE) == ["45", "90"]


def test_recorded_jobs_of_slurm_and_kubeflow_are_read():
    for job, addresses in {
        "examples/slurm/train.sbatch": ("node9:12944", "node10:12944"),
        "two tasks a node": ("node9:13072", "node9:13073", "node10:13072", "node10:13073"),
    }.items():
        clusters = [(read_cluster(environ), environ) for environ in slurm_job(job)]
        assert len(clusters) == len(addresses)
        for rank, (cluster, environ) in enumerate(clusters):
            assert cluster.addresses == {"worker": addresses}
            assert cluster.task == TaskName("worker", rank)
            assert cluster.address_of(cluster.task).split(":")[0] == environ["SLURMD_NODENAME"]
    dealt_out_in_turn = slurm_job("two tasks a node, srun --distribution=cyclic")
    with pytest.raises(UnsupportedEnvironment, match="srun --distribution=block"):
        read_cluster(dealt_out_in_turn[1])
    config = json.loads((DATA / "tfjob_tf_config.json").read_text())
    cluster = read_cluster({"TF_CONFIG": json.dumps(config)})
    assert cluster.jobs == {"chief": 1, "worker": 2}
    assert cluster.address_of(cluster.task) == "digits-worker-1.default.svc:2222"
    evaluator = {**config, "task": {"type": "evaluator", "index": 0}}
    assert read_cluster({"TF_CONFIG": json.dumps(evaluator)}).task == TaskName("evaluator", 0)


# The files for Slurm and Kubernetes


def test_the_batch_script_is_one_that_bash_and_slurm_can_read():
    (script,) = (ROOT / "examples" / "slurm").glob("*.sbatch")
    subprocess.run(["bash", "-n", script], check=True, timeout=HANG_SECS)
    (run,) = re.findall(r"^srun (.*?[^\\])$", script.read_text(), re.MULTILINE | re.DOTALL)
    words = shlex.split(run.replace("\\\n", ""))
    assert words[words.index("python") + 1] == "examples/train.py"
    assert "--distribution=block" in words
    assert_the_script_takes(words[words.index("python") + 2 : words.index("$@")])


def assert_the_script_takes(arguments):
    options = runpy.run_path(str(TRAIN))["read_options"](arguments)
    assert options.folder != "checkpoints", "every host needs the same folder"


def documents(name):
    """The documents of a manifest, by kind."""
    text = (ROOT / "examples" / "kubernetes" / name).read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def assert_kubernetes_knows(document, kind):
    """Each field of a document is one of Kubernetes ("core_v1_service"), with a possible value."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    model = getattr(models, "IoK8sApi" + kind.title().replace("_", ""))
    assert_contained(document, model.from_dict(copy.deepcopy(document)).to_dict(), kind)


def assert_contained(part, whole, path):
    if isinstance(part, dict):
        assert part.keys() <= whole.keys(), f"{path}: {part.keys() - whole.keys()}"
        for key, value in part.items():
            assert_contained(value, whole[key], f"{path}.{key}")
    elif isinstance(part, list):
        assert len(part) == len(whole), path
        for number, (mine, theirs) in enumerate(zip(part, whole, strict=True)):
            assert_contained(mine, theirs, f"{path}[{number}]")
    else:
        assert part == whole, path


def assert_the_pod_trains(pod):
    """It saves where the claim is mounted, and has the time to do so."""
    (container,) = pod["containers"]
    command = container["command"]
    assert command[:2] == ["python", "examples/train.py"]
    assert_the_script_takes(command[2:])
    assert container["volumeMounts"][0]["mountPath"] == command[command.index("--folder") + 1]
    assert pod["terminationGracePeriodSeconds"] > 30


def test_the_manifests_have_the_fields_of_kubernetes_and_each_pod_trains():
    claim = documents("checkpoints.yaml")["PersistentVolumeClaim"]
    assert_kubernetes_knows(claim, "core_v1_persistent_volume_claim")
    for spec in documents("tfjob.yaml")["TFJob"]["spec"]["tfReplicaSpecs"].values():
        assert_kubernetes_knows(spec["template"], "core_v1_pod_template_spec")
        assert_the_pod_trains(spec["template"]["spec"])
    manifest = documents("indexed_job.yaml")
    assert_kubernetes_knows(manifest["Service"], "core_v1_service")
    assert_kubernetes_knows(manifest["Job"], "batch_v1_job")
    assert_the_pod_trains(manifest["Job"]["spec"]["template"]["spec"])


def test_the_indexed_job_gives_each_pod_its_place_in_the_cluster():
    job = documents("indexed_job.yaml")["Job"]
    pod, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    index, config = pod["containers"][0]["env"]
    assert index["name"] == "INDEX"  # set before it is used: Kubernetes replaces no later ones
    for number in range(2):
        cluster = read_cluster({config["name"]: config["value"].replace("$(INDEX)", str(number))})
        assert cluster.task == TaskName("worker", number)
        assert cluster.address_of(cluster.task) == f"{name}-{number}.{pod['subdomain']}:2222"


# Two hosts, made of two network namespaces

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PAGE = (ROOT / "docs" / "two_machines.md").read_text(encoding="utf-8")
# Enters the network of the host that a command names, where ssh would go to the host.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do [ "$1" = -o ] && shift; shift; done
case $1 in {cases} *) echo "ssh: no host $1" >&2; exit 255 ;; esac
exec nsenter --target "$pid" --net bash -c "$2"
"""


def ip(pid, arguments):
    """Runs `ip` on the host that a process holds."""
    enter = ["nsenter", "--target", str(pid), "--net"]
    subprocess.run(
        [*enter, "ip", *arguments.split()], check=True, capture_output=True, timeout=HANG_SECS
    )


@pytest.fixture
def hosts():
    """Two processes, each of which holds the network of a host."""
    missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        pytest.skip(f"network namespaces are Linux's, and need {' and '.join(missing)}")
    if os.geteuid():
        pytest.skip("only root may lay a cable between two network namespaces")
    with contextlib.ExitStack() as stack:
        try:
            pids = [stack.enter_context(Isolation()).pid for _ in ADDRESSES]
        except UnsupportedEnvironment as error:
            if "Operation not permitted" not in error.found:
                raise
            pytest.skip(error.found)
        ip(pids[0], f"link add cable type veth peer name cable netns {pids[1]}")
        for pid, address in zip(pids, ADDRESSES, strict=True):
            ip(pid, f"address add {address}/24 dev cable")
            ip(pid, "link set cable up")
        yield pids


def test_the_pages_commands_for_two_hosts_train_as_one_process_and_go_on_with_fewer(
    hosts, loss_alone, tmp_path, monkeypatch
):
    cases = " ".join(f"{a}) pid={p} ;;" for a, p in zip(ADDRESSES, hosts, strict=True))
    (tmp_path / "ssh").write_text(SSH.format(cases=cases))
    (tmp_path / "ssh").chmod(0o755)
    write_forked_python(tmp_path / "python", monkeypatch)
    environ = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    environ |= {"PATH": f"{tmp_path}:{environ['PATH']}", "PYTHON": str(tmp_path / "python")}

    def run(command):
        for number, address in enumerate(ADDRESSES, 1):
            command = command.replace(f"10.0.0.{number}", address)
        command = command.replace("/shared/checkpoints", str(tmp_path / "checkpoints"))
        done = subprocess.run(
            shlex.split(command),
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=HANG_SECS,
        )
        return done.returncode, done.stdout + done.stderr

    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    both, fewer = (line for line in lines if "examples/ssh_hosts.sh" in line)
    code, printed = run(both)
    assert code == 0, printed
    assert loss_in(printed) == (2, loss_alone)
    assert "[worker:0] loss after 2 epochs" in printed
    code, printed = run(fewer)
    assert code == 0, printed
    assert re.search(r"\[worker:0\] loss after 4 epochs on 1 replicas", printed), printed
    code, printed = run("examples/ssh_hosts.sh 10.0.0.1 10.0.0.2 -- examples/no_such_script.py")
    assert code == 1 and "[worker:1]" in printed


def test_the_errors_that_the_page_names_are_those_of_distlab():
    rows = PAGE.partition("| the error says | check |")[2].splitlines()[2:7]
    errors = [row.split("|")[1].strip() for row in rows]
    source = (ROOT / "distlab/cluster/probe.py").read_text(encoding="utf-8")
    assert len(errors) == 5 and [error for error in errors if error not in source] == []
    source = (ROOT / "distlab/strategy/cluster_errors.py").read_text(encoding="utf-8")
    for text in ("its port is in use", "was told that"):
        assert text in source and text in PAGE


CUT_OFF = """
import keras, numpy as np
import distlab as dl
def tell(epoch, logs): print("epoch", epoch, flush=True)
def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
strategy = dl.make_strategy("auto", heartbeat_secs=20)  # a busy machine is silent for seconds
x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
options = {"batch_size": 4, "epochs": 1_000_000, "shuffle": False, "verbose": 0}
tells = keras.callbacks.LambdaCallback(on_epoch_end=tell)
dl.distribute(build, strategy).fit(x, y, callbacks=[tells], **options)
"""


def test_a_host_that_is_cut_off_ends_both(hosts, tmp_path):
    addresses = {"worker": tuple(f"{address}:2222" for address in ADDRESSES)}
    spec = ClusterSpec(jobs={"worker": 2}, addresses=addresses, source="here")
    both = spec.tasks_in_order()

    def how(task):
        return Start(argv=["-c", CUT_OFF], env={}, network_of=hosts[task.index])

    def said(task):
        return group.log_of(task).read_text()

    with TaskGroup(spec, how=how, folder=tmp_path) as group:
        group.start()
        wait_until(lambda: all("epoch 2" in said(task) for task in both) or group.ended())
        assert group.ended() == {}, "\n---\n".join(map(said, both))
        # What one host sends goes to nobody from now on: no error, no end of a connection.
        for pid, other in zip(hosts, reversed(ADDRESSES), strict=True):
            ip(pid, f"neighbour replace {other} lladdr 02:00:00:00:00:ff dev cable nud permanent")
        wait_until(lambda: not group.running())
        for task, other in zip(both, reversed(both), strict=True):
            assert group.ended()[task] == 1, said(task)
            gone = f"{other} ({spec.address_of(other)}) fell silent: its host or its network is"
            assert gone in said(task)


# A Python that has Ray, in an environment of its own: `make other-packages`.
RAY = os.environ.get("DISTLAB_RAY")
# Ray gives its own processes 30 s to start, which no setting changes: not always enough on a
# machine that is busy with other tests.
RAY_WAS_SLOW = "timed out during startup"


def run_logged(argv, environ, path):
    """Returns the exit code of a command, and what it printed."""
    with path.open("w") as log:
        code = subprocess.run(
            argv, env=environ, stdout=log, stderr=log, timeout=HANG_SECS
        ).returncode
    return code, path.read_text()


def processes_at(place):
    """The processes that were started for a folder, or write there."""
    theirs = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            names = [*process.cmdline(), *(file.path for file in process.open_files())]
            if any(place in name for name in names):
                theirs.append(process)
    return theirs


@pytest.mark.skipif(RAY is None, reason="`make other-packages` runs it in an environment with Ray")
def test_two_workers_of_ray_train_as_one_process_does(loss_alone, tmp_path):
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: it holds sockets
    environ = {**os.environ, "RAY_TMPDIR": place, "RAY_AUTH_TOKEN": secrets.token_hex()}
    # It watches over machines that are not there, and costs as much as a worker.
    environ |= {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_TRAIN_METRICS_ENABLED": "0"}
    environ |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600"}
    environ.pop("TF_CONFIG", None)
    argv = [RAY, ROOT / "examples" / "ray_train.py", *arguments(tmp_path)]
    argv += ["--max-restarts", "0"]
    try:
        code, said = run_logged(argv, environ, tmp_path / "log")
        if RAY_WAS_SLOW in said:
            code, said = run_logged(argv, environ, tmp_path / "log")
        assert code == 0, said[-8000:]
        assert loss_in(said) == (2, loss_alone)
        wait_until(lambda: not processes_at(place))  # by themselves, a moment after the first
    finally:
        for process in processes_at(place):
            process.kill()
        shutil.rmtree(place, ignore_errors=True)
