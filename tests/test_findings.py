"""The table of what a machine has that stands in the way: each is found, with what to do."""

import os

import pytest

from distlab.findings import Machine, findings

PACKAGES = {
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "tensorflow-datasets": "4.9.10",
    "jupyterlab": "4.6.6",
}
DRIVER = "proc/driver/nvidia/gpus/0000:00:00.0"
NVIDIA_SMI = "#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 4070 (UUID: GPU-1)'\n"
METADATA = {"tensorflow-metadata": "1.21.0"}


def with_packages(**changed):
    return {"installed": PACKAGES | {name.replace("_", "-"): v for name, v in changed.items()}}


# What is changed on a machine on which all is well, the files it has, what is found, what to do.
SITUATIONS = {
    "old Python": ({"python": (3, 10)}, {}, "Python 3.10", "install Python 3.11 to 3.13"),
    "new Python": ({"python": (3, 14)}, {}, "Python 3.14", "install Python 3.11 to 3.13"),
    "no TensorFlow": (
        {"installed": {"keras": "3.15.1"}},
        {},
        "TensorFlow is not installed",
        "pip install tensorflow",
    ),
    "two TensorFlows": (
        with_packages(tensorflow_tpu="2.20.0"),
        {},
        "tensorflow and tensorflow-tpu are both installed",
        "keep one",
    ),
    "old Keras": (with_packages(keras="3.9.2"), {}, "keras 3.9.2", "'keras>=3.10,<3.16'"),
    "old TensorFlow": (with_packages(tensorflow="2.18.1"), {}, "2.18.1 is too old", "pip install"),
    "new Keras": (with_packages(keras="3.16.0.dev2026"), {}, "is newer than", ""),
    "another backend": ({"environ": {"KERAS_BACKEND": "jax"}}, {}, "'jax'", "unset it"),
    "an upgrade under a live kernel": (
        {"loaded": {"tensorflow": "2.20.0", "keras": "3.15.1"}},
        {},
        "tensorflow 2.20.0 is loaded, and 2.21.0 has been installed since",
        "restart the kernel",
    ),
    "TensorFlow does not load": ({"load_error": "NameError"}, {}, "(NameError)", "pip install"),
    "it does not load, with Apple's plugin": (
        {"load_error": "NotFoundError"} | with_packages(tensorflow_metal="1.1.0"),
        {},
        "does not load (NotFoundError)",
        "pip uninstall tensorflow-metal",
    ),
    "Apple's plugin": (
        with_packages(tensorflow_metal="1.2.0"),
        {},
        "tensorflow-metal 1.2.0",
        "pip uninstall tensorflow-metal",
    ),
    "protobuf for data sets": (
        {"installed": PACKAGES | METADATA | {"protobuf": "5.29.6"}},
        {},
        "protobuf 5.29.6 is installed",
        "pip install 'tensorflow-metadata<1.21'",
    ),
    "a home that is no folder": (
        {"environ": {"HOME": "/dev/null"}},
        {},
        "the home folder /dev/null",
        "set HOME to a folder",
    ),
    "a driver without libraries": (
        {},
        {DRIVER: "", "dev/nvidia0": ""},
        "does not see the GPU that NVIDIA's driver has, because NVIDIA's libraries are not",
        'pip install "distlab[gpu]"',
    ),
    "a driver that libraries cannot use": (
        with_packages(nvidia_cudnn_cu12="9.3.0"),
        {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""},
        "does not see the 2 GPUs that NVIDIA's driver has, although",
        "run nvidia-smi",
    ),
    "a container without its host's GPU": ({}, {DRIVER: ""}, "this container", "--gpus all"),
    "WSL2": (
        {},
        {"dev/dxg": "", "usr/lib/wsl/lib/nvidia-smi": NVIDIA_SMI},
        "does not see the GPU that NVIDIA's driver has",
        'pip install "distlab[gpu]"',
    ),
    "WSL2 without NVIDIA's driver": ({}, {"dev/dxg": ""}, "WSL2", "install the driver on Windows"),
    "hidden GPUs": (
        {"environ": {"CUDA_VISIBLE_DEVICES": "-1"}},
        {DRIVER: "", "dev/nvidia0": ""},
        "CUDA_VISIBLE_DEVICES hides all GPUs",
        "unset it",
    ),
    "a proxy": (
        {"environ": {"http_proxy": "http://proxy:3128", "HTTPS_PROXY": "http://proxy:3128"}},
        {},
        "http_proxy would send",
        "export no_grpc_proxy=",
    ),
    "tf_keras": ({"environ": {"TF_USE_LEGACY_KERAS": "1"}}, {}, "TF_USE_LEGACY_KERAS is set", ""),
    "a lean installation": (
        {"installed": {"tensorflow": "2.21.0", "keras": "3.15.1", "jupyterlab": "4.6.6"}},
        {},
        "Data sets are not installed",
        'pip install "distlab[data]"',
    ),
}
NO_GPU = "No GPU: logical CPUs teach the same lessons."


def found_on(root, files=None, **changed):
    """What is found on a machine with these files, besides that it has no GPU."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    well = {"python": (3, 11), "installed": PACKAGES, "loaded": {}, "environ": {}}
    machine = Machine(**{**well, "root": root, **changed})
    return [each for each in findings(machine) if not each.found.startswith(NO_GPU)]


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_situation_is_found_with_what_to_do(name, tmp_path):
    changed, files, found, do = SITUATIONS[name]
    told = found_on(tmp_path, files, **changed)
    (finding,) = [each for each in told if found in each.found]
    assert do in finding.do and str(finding).startswith(finding.found)


def test_nothing_is_found_where_all_is_well(tmp_path):
    assert found_on(tmp_path) == found_on(tmp_path, gpus=2) == []
    built_elsewhere = PACKAGES | {"tensorflow": "2.21.0rc1+nv26.1"}
    assert found_on(tmp_path, installed=built_elsewhere, loaded={"tensorflow": "2.21.0-rc1"}) == []
    good = PACKAGES | METADATA | {"protobuf": "6.33.0"}
    for versions in (good, good | {"tensorflow-metadata": "1.17.3", "keras": "3.12.0"}):
        assert found_on(tmp_path, installed=versions) == []


# As somebody who may not write there, who has upgraded two packages.
LIVE = """
import os, pathlib, sys
import distlab as dl
dl.doctor()                                             # all that it imports is imported
pathlib.Path("home").mkdir(mode=0o555)
os.environ["HOME"] = os.path.abspath("home")
for name in ("keras-9.9.9", "protobuf-3.1.0"):
    folder = pathlib.Path(f"packages/{name}.dist-info")
    folder.mkdir(parents=True)
    package, version = name.split("-")
    (folder / "METADATA").write_text(f"Name: {package}\\nVersion: {version}\\n")
sys.path.insert(0, "packages")
if os.getuid() == 0:
    from distlab.environment import is_writable
    os.chmod(".", 0o755)
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        os._exit(is_writable(pathlib.Path("home")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.environ["HOME"] = "/dev/null/home"               # where root cannot write either
print(dl.doctor())
"""


def test_what_changes_under_a_live_process_is_found_by_doctor(run_python):
    text = run_python(LIVE, warm=True)
    assert "Strategies" not in text and "9.9.9\n" not in text.partition("Problems")[0]
    lines = text.partition("Problems\n")[2].splitlines()
    begins = [
        "keras 3.",
        "protobuf ",
        "tensorflow 2.",
        "nothing can be written in the home folder ",
    ]
    for begin in begins:
        (line,) = [line for line in lines if line.strip().startswith(begin)]
        assert ": " in line
    assert any("9.9.9 has been installed since: restart the kernel" in line for line in lines)
    assert any("and 3.1.0 is installed: pip install 'protobuf" in line for line in lines)
    if os.getuid():
        assert "home folder /" in text
