"""examples/train.py under the engines that start processes on many machines.

data/slurm_jobs.json is what a Slurm 22.05 with two nodes, node9 and node10, set for the tasks of
two jobs; data/tfjob_tf_config.json is TF_CONFIG as Kubeflow's operator puts it together.
"""

import copy
import json
import os
import re
import runpy
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest
import yaml

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.ports import reserved_ports
from distlab.cluster.spec import TaskName, local_spec, read_cluster
from distlab.errors import UnsupportedEnvironment
from tests.support.launched import launched
from tests.support.repository import ROOT
from tests.support.train_script import TRAIN, arguments, loss_in, run_tasks

DATA = ROOT / "tests" / "support"


def slurm_job(name):
    """The environment of each task of a recorded job, in the order of their ranks."""
    job = json.loads((DATA / "slurm_jobs.json").read_text())[name]
    return [{**job["all"], **task} for task in job["tasks"]]


@pytest.fixture(scope="module")
def loss_alone(tmp_path_factory):
    (said,) = run_tasks([{}], tmp_path_factory.mktemp("alone"))
    replicas, loss = loss_in(said)
    assert replicas == 1
    return pytest.approx(loss, abs=1e-5)


def test_two_tasks_of_slurm_train_as_one_process_does(loss_alone, tmp_path):
    with reserved_ports(2) as ports:
        here = {
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_NODEID": "0",
            "SLURM_STEP_RESV_PORTS": f"{ports[0]},{ports[1]}",
        }
        tasks = slurm_job("examples/slurm/train.sbatch")
        said = run_tasks(
            [{**task, **here, "SLURM_LOCALID": task["SLURM_PROCID"]} for task in tasks], tmp_path
        )
    assert loss_in(said[0]) == (2, loss_alone)
    assert "loss after" not in said[1]


def test_an_evaluator_evaluates_what_the_workers_have_trained(loss_alone, tmp_path):
    run = launched(["--workers", 2, "--evaluator", TRAIN, *arguments(tmp_path)], tmp_path)
    assert loss_in(run.out) == (2, loss_alone)
    of_evaluator = re.findall(r"^evaluator:0 \| (.*)$", run.out, re.MULTILINE)
    assert [
        re.match(r"step (\d+), \d epochs? done: accuracy 0\.", one)[1] for one in of_evaluator
    ] == [
        "45",
        "90",
    ]


def test_a_worker_that_is_told_to_leave_before_it_trains_leaves(tmp_path):
    code = """
import time, distlab
distlab.make_strategy("auto")
print("met", flush=True)
time.sleep(300)
"""

    def said_by_all(word):
        return all(word in group.log_of(task).read_text() for task in spec.tasks_in_order())

    with reserved_ports(2) as ports:
        spec = local_spec(workers=2, ports=ports)
        how = Start(argv=["-c", code], env={})
        with TaskGroup(spec, how=lambda task: how, folder=tmp_path) as group:
            group.start()
            deadline = time.monotonic() + 120
            while not said_by_all("met") and time.monotonic() < deadline:
                time.sleep(0.02)  # between looks at real processes
            assert said_by_all("met")
            assert set(group.stop(grace_secs=20).values()) == {-signal.SIGTERM}


@pytest.mark.parametrize(
    ("job", "addresses"),
    [
        ("examples/slurm/train.sbatch", ("node9:12944", "node10:12944")),
        ("two tasks a node", ("node9:13072", "node9:13073", "node10:13072", "node10:13073")),
    ],
)
def test_a_recorded_job_of_slurm_gives_each_task_its_own_host(job, addresses):
    tasks = slurm_job(job)
    assert len(tasks) == len(addresses)
    for rank, environ in enumerate(tasks):
        cluster = read_cluster(environ)
        assert cluster.addresses == {"worker": addresses}
        assert cluster.task == TaskName("worker", rank)
        assert cluster.address_of(cluster.task).split(":")[0] == environ["SLURMD_NODENAME"]


def test_ranks_that_slurm_dealt_out_in_turn_are_refused():
    tasks = slurm_job("two tasks a node, srun --distribution=cyclic")
    with pytest.raises(UnsupportedEnvironment, match="srun --distribution=block"):
        read_cluster(tasks[1])


def test_the_batch_script_is_one_that_bash_and_slurm_can_read():
    (script,) = (ROOT / "examples" / "slurm").glob("*.sbatch")
    subprocess.run(["bash", "-n", script], check=True, timeout=10)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    commands = [number for number, line in enumerate(lines) if line and line[0] != "#"]
    options = {
        number: line.removeprefix("#SBATCH ")
        for number, line in enumerate(lines)
        if line.startswith("#SBATCH")
    }
    assert max(options) < commands[0], "sbatch reads no option after the first command"
    known = {"job-name", "nodes", "ntasks-per-node", "exclusive", "cpus-per-task", "time"}
    known |= {"signal", "requeue", "open-mode", "output"}
    assert all(option.startswith("--") for option in options.values())
    assert {option[2:].partition("=")[0] for option in options.values()} == known
    (run,) = re.findall(r"^srun (.*?[^\\])$", script.read_text(), re.MULTILINE | re.DOTALL)
    words = shlex.split(run.replace("\\\n", ""))
    assert words[words.index("python") + 1] == "examples/train.py"
    assert "--distribution=block" in words
    assert_the_script_takes(words[words.index("python") + 2 : words.index("$@")])


def assert_the_script_takes(arguments):
    options = runpy.run_path(str(TRAIN))["read_options"](arguments)
    assert options.folder != "checkpoints", "every host needs the same folder"


def test_the_tf_config_of_kubeflow_is_read():
    config = json.loads((DATA / "tfjob_tf_config.json").read_text())
    cluster = read_cluster({"TF_CONFIG": json.dumps(config)})
    assert cluster.jobs == {"chief": 1, "worker": 2}
    assert cluster.address_of(cluster.task) == "digits-worker-1.default.svc:2222"
    evaluator = {**config, "task": {"type": "evaluator", "index": 0}}
    assert read_cluster({"TF_CONFIG": json.dumps(evaluator)}).task == TaskName("evaluator", 0)


def documents(name):
    """The documents of a manifest, by kind."""
    text = (ROOT / "examples" / "kubernetes" / name).read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def kubernetes_model(kind):
    """The model that is generated of what Kubernetes says of a kind: "core_v1_service"."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    return getattr(models, "IoK8sApi" + kind.title().replace("_", ""))


def assert_kubernetes_knows(document, kind):
    """Each field of a document is one of Kubernetes, with a value that it can have."""
    understood = kubernetes_model(kind).from_dict(copy.deepcopy(document)).to_dict()
    assert_contained(document, understood, kind)


def assert_contained(part, whole, path):
    if isinstance(part, dict):
        assert part.keys() <= whole.keys(), f"{path}: {part.keys() - whole.keys()}"
        for key, value in part.items():
            assert_contained(value, whole[key], f"{path}.{key}")
    elif isinstance(part, list):
        assert len(part) == len(whole), path
        for number, (one, other) in enumerate(zip(part, whole, strict=True)):
            assert_contained(one, other, f"{path}[{number}]")
    else:
        assert part == whole, path


def assert_pods_share_the_checkpoints(pod, claim):
    """A pod mounts the claim where the script saves, and leaves it the time to do so."""
    (container,) = pod["containers"]
    command = container["command"]
    assert command[:2] == ["python", "examples/train.py"]
    assert_the_script_takes(command[2:])
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mount == {"name": volume["name"], "mountPath": command[command.index("--folder") + 1]}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert pod["terminationGracePeriodSeconds"] > 30


# Of the operator's own definition of a TFJob (v1); there is no package that holds it.
TFJOB_SPEC = {"enableDynamicWorker", "runPolicy", "successPolicy", "tfReplicaSpecs"}
TFJOB_RUN_POLICY = {"activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy"}
TFJOB_RUN_POLICY |= {"schedulingPolicy", "suspend", "ttlSecondsAfterFinished"}
TFJOB_REPLICAS = {"Chief", "Worker", "PS", "Evaluator"}


def test_the_tfjob_has_the_fields_of_kubeflow_and_of_kubernetes():
    claim = documents("checkpoints.yaml")["PersistentVolumeClaim"]
    assert_kubernetes_knows(claim, "core_v1_persistent_volume_claim")
    job = documents("tfjob.yaml")["TFJob"]
    assert job.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert job["apiVersion"] == "kubeflow.org/v1"
    assert job["spec"].keys() <= TFJOB_SPEC
    assert job["spec"]["runPolicy"].keys() <= TFJOB_RUN_POLICY
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] in {"None", "Running", "All"}
    replicas = job["spec"]["tfReplicaSpecs"]
    assert replicas.keys() <= TFJOB_REPLICAS
    assert {kind: spec["replicas"] for kind, spec in replicas.items()} == {"Chief": 1, "Worker": 2}
    for spec in replicas.values():
        assert spec.keys() == {"replicas", "restartPolicy", "template"}
        assert spec["restartPolicy"] == "OnFailure"
        assert_kubernetes_knows(spec["template"], "core_v1_pod_template_spec")
        pod = spec["template"]["spec"]
        assert_pods_share_the_checkpoints(pod, claim)
        assert pod["containers"][0]["name"] == "tensorflow"
        assert pod["containers"][0]["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]


def test_the_indexed_job_gives_each_pod_its_place_in_the_cluster():
    manifest = documents("indexed_job.yaml")
    service, job = manifest["Service"], manifest["Job"]
    assert_kubernetes_knows(service, "core_v1_service")
    assert_kubernetes_knows(job, "batch_v1_job")
    pod = job["spec"]["template"]["spec"]
    claim = documents("checkpoints.yaml")["PersistentVolumeClaim"]
    assert_pods_share_the_checkpoints(pod, claim)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    name = job["metadata"]["name"]
    assert service["spec"] == {"clusterIP": "None", "selector": {"job-name": name}}
    assert pod["subdomain"] == service["metadata"]["name"]
    index, config = pod["containers"][0]["env"]
    assert index["name"] == "INDEX"  # set before it is used: Kubernetes replaces no later ones
    for number in range(2):
        cluster = read_cluster({config["name"]: config["value"].replace("$(INDEX)", str(number))})
        assert cluster.task == TaskName("worker", number)
        assert cluster.address_of(cluster.task) == f"{name}-{number}.{pod['subdomain']}:2222"


def test_a_field_that_kubernetes_does_not_know_would_be_noticed():
    job = documents("indexed_job.yaml")["Job"]
    job["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    with pytest.raises(AssertionError, match="imagePullPolcy"):
        assert_kubernetes_knows(job, "batch_v1_job")


# Ray gives its own processes 30 s to start, which no setting changes: not always enough on a
# machine that is busy with other tests.
RAY_WAS_SLOW = "timed out during startup"


def run_logged(argv, environ, path):
    """Returns the exit code of a command, and what it printed."""
    with path.open("w") as log:
        code = subprocess.run(
            argv, env=environ, stdout=log, stderr=log, timeout=300, check=False
        ).returncode
    return code, path.read_text()


def test_two_workers_of_ray_train_as_one_process_does(loss_alone, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: it holds sockets
    environ = {**os.environ, "RAY_TMPDIR": place, "RAY_AUTH_TOKEN": secrets.token_hex()}
    # It watches over machines that are not there, and costs as much as a worker.
    environ |= {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_TRAIN_METRICS_ENABLED": "0"}
    environ |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    environ.pop("TF_CONFIG", None)
    argv = [sys.executable, ROOT / "examples" / "ray_train.py", *arguments(tmp_path)]
    argv += ["--max-restarts", "0"]
    try:
        code, said = run_logged(argv, environ, tmp_path / "log")
        if RAY_WAS_SLOW in said:
            code, said = run_logged(argv, environ, tmp_path / "log")
        assert code == 0, said[-8000:]
        assert loss_in(said) == (2, loss_alone)
        deadline = time.monotonic() + 20
        while (left := processes_at(place)) and time.monotonic() < deadline:
            time.sleep(0.1)  # they end by themselves, a moment after the one that started them
        assert left == []
    finally:
        for process in processes_at(place):
            process.kill()
        shutil.rmtree(place, ignore_errors=True)


def processes_at(place):
    """The processes that were started for a folder, or write there."""
    found = []
    for process in psutil.process_iter():
        try:
            names = [*process.cmdline(), *(file.path for file in process.open_files())]
        except psutil.Error:  # it has ended, or is another user's
            continue
        if any(place in name for name in names):
            found.append(process)
    return found
