import json
import os
import sys

import distlab as dl
from distlab.cluster.group import OPEN_SERVERS


def test_doctor_finds_versions_devices_and_strategies():
    diagnosis = dl.doctor()
    assert diagnosis.problems == ()
    assert diagnosis.versions["Python"] == sys.version.split()[0]
    assert {"tensorflow", "keras"} <= diagnosis.versions.keys()
    assert diagnosis.devices[0].startswith(f"{os.cpu_count()} CPU cores")
    assert diagnosis.strategies["mirrored"].startswith("yes, on ")
    assert repr(diagnosis).startswith("Versions\n  Python  ")
    assert repr(diagnosis).endswith("Problems\n  none")
    assert ">Strategies</th>" in diagnosis._repr_html_()


def test_doctor_tells_of_a_tf_config_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    (problem,) = dl.doctor().problems
    assert problem.startswith("TF_CONFIG='{': it does not describe a cluster")


def test_doctor_works_where_tensorflow_is_missing_or_broken(run_python):
    code = "import sys; sys.modules['tensorflow'] = None; import distlab; print(distlab.doctor())"
    assert "TensorFlow does not load (ModuleNotFoundError" in run_python(code)


def test_tensorflow_loads_without_its_usual_noise_and_real_messages_pass(run_python):
    code = (
        "import os, sys\n"
        "sys.ps1 = '> '  # as in a notebook, where TensorFlow's own logger talks more\n"
        "import distlab, logging\n"
        "from distlab import environment\n"
        "r, w = os.pipe(); os.dup2(w, 2)\n"
        "distlab.make_strategy\n"
        "with environment.without_noise(): os.write(2, b'E0000 a real error\\n')\n"
        "os.close(w); os.close(2)\n"
        "print(os.read(r, 10000))\n"
        "logger = logging.getLogger('tensorflow'); print(logger.level)\n"
        "logger.setLevel(logging.INFO); distlab.describe; print(logger.level)"
    )
    said = run_python(code).splitlines()
    assert said == [r"b'E0000 a real error\n'", "30", "20"], "the user's own level stays"


def set_cluster(monkeypatch, **jobs):
    task = {"type": next(iter(jobs)), "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))


def test_doctor_explains_the_cluster_that_is_described_and_who_can_reach_it(monkeypatch):
    set_cluster(monkeypatch, worker=["127.0.0.1:1", "127.0.0.1:2"])
    diagnosis = dl.doctor()
    assert diagnosis.problems == ()
    assert diagnosis.strategies["multi_worker"] == "yes, on 2 workers (TF_CONFIG)"
    assert diagnosis.strategies["parameter_server"] == "no: the cluster has no parameter servers"
    assert "\nCluster\n  cluster   2 workers (TF_CONFIG)\n  task      worker:0 at" in repr(
        diagnosis
    )
    assert ">Cluster</th>" in diagnosis._repr_html_()
    assert f"{OPEN_SERVERS} Use a network that you trust." in diagnosis.notes


def test_doctor_says_nothing_of_clusters_where_none_is_described(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    diagnosis = dl.doctor()
    assert diagnosis.strategies["multi_worker"] == "needs a cluster: TF_CONFIG is not set"
    assert diagnosis.cluster == {} and "Cluster" not in repr(diagnosis)
    assert not [note for note in diagnosis.notes if OPEN_SERVERS in note]
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert dl.doctor().strategies["multi_worker"] == "needs a cluster: TF_CONFIG names none"
