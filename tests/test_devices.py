import pytest

import distlab as dl
from distlab.errors import DeviceError, InvalidArgument


def test_four_devices_are_there_and_asking_again_changes_nothing(devices):
    assert len(devices) == 4
    assert dl.split_devices(4) == devices
    assert dl.make_strategy("mirrored", devices=devices).num_replicas_in_sync == 4


def test_too_late_says_restart_the_kernel():
    dl.make_strategy("one_device")  # wakes the devices
    with pytest.raises(DeviceError) as error:
        dl.split_devices(2)
    assert "TensorFlow is already running with 4 logical" in error.value.found
    assert error.value.do == (
        "restart the kernel (or Python) and call split_devices first, before any other use of "
        "TensorFlow"
    )


def test_counts_and_kinds_that_cannot_be_meant_are_refused():
    cases = [
        (
            {"count": count},
            f"found: count={count!r}\n  to do: pass the number of devices, at least 1",
        )
        for count in (0, 2.0, True, "4")
    ]
    cases += [
        ({"count": 65}, "count=65, more logical devices than one process can hold"),
        ({"count": 2, "kind": "gpus"}, "did you mean 'gpu'"),
    ]
    for arguments, text in cases:
        with pytest.raises(InvalidArgument) as error:
            dl.split_devices(**arguments)
        assert text in str(error.value), arguments


def test_a_gpu_where_there_is_none_is_a_device_error(run_python):
    code = "import distlab as dl; dl.split_devices(2, kind='gpu')"
    message = run_python(code, environ={"CUDA_VISIBLE_DEVICES": "-1"}, fails=True, warm=True)
    assert "split_devices(2, kind='gpu')\n  found: no GPU that TensorFlow can see" in message


def test_the_largest_number_of_devices_works_also_after_doctor(run_python):
    code = (
        "import distlab as dl; dl.doctor(); dl.split_devices(64, kind='cpu')\n"
        "import tensorflow as tf; print(len(tf.config.list_logical_devices('CPU')))"
    )
    assert run_python(code, warm=True).split()[-1] == "64"


class FakeConfig:
    """TensorFlow's configuration on a machine with GPUs, for the arithmetic of sharing them."""

    def __init__(self, gpus):
        self.gpus = [f"gpu{index}" for index in range(gpus)]
        self.shared = {}
        self.visible = None
        self.tf32 = True

    @property
    def experimental(self):
        return self

    def list_physical_devices(self, kind):
        return self.gpus if kind == "GPU" else ["cpu0"]

    def LogicalDeviceConfiguration(self, memory_limit):  # noqa: N802
        return memory_limit

    def set_logical_device_configuration(self, device, limits):
        self.shared[device] = limits

    def set_visible_devices(self, devices, kind):
        self.visible = devices

    def enable_tensor_float_32_execution(self, enabled):
        self.tf32 = enabled


@pytest.mark.parametrize(
    ("gpus", "count", "shared", "visible", "tf32"),
    [
        (1, 4, {"gpu0": [512] * 4}, None, False),
        (2, 3, {"gpu0": [512] * 2, "gpu1": [512]}, None, False),
        (8, 4, {}, ["gpu0", "gpu1", "gpu2", "gpu3"], True),
    ],
)
def test_gpus_are_shared_with_memory_limits_or_taken_whole(
    monkeypatch, gpus, count, shared, visible, tf32
):
    import tensorflow as tf

    config = FakeConfig(gpus)
    monkeypatch.setattr(tf, "config", config)
    names = dl.split_devices(count, memory_limit_mb=512)
    assert names == tuple(f"GPU:{index}" for index in range(count))
    assert (config.shared, config.visible, config.tf32) == (shared, visible, tf32)
