"""`distlab bench` measures a reader's own model, and says what is missing in their code."""

import keras
import pytest
import tensorflow as tf

from distlab import cli
from distlab.cluster.warm.process import can_fork
from distlab.course.bench_command import efficiency_of, own_functions, table_of
from distlab.course.measure.scaling_runs import MeasuredStep, time_step
from distlab.errors import ModelError
from tests.support.forked_python import write_forked_python

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model

def data(batch_size):
    x, y = np.ones((2 * batch_size, 3), "float32"), np.ones((2 * batch_size, 2), "float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)

if __name__ == "__main__":
    raise SystemExit("a script that trains must not train here")
"""


def test_a_script_is_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if can_fork():
        write_forked_python(tmp_path / "python", monkeypatch)
        monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--replicas", "1", "2", "--batch", "8", "--blocks", "2", "--plot", "out.png"]
    assert cli.main(["bench", "train.py", *options]) == 0
    out, progress = capsys.readouterr()
    assert progress.splitlines() == [f"measuring with replicas: {count}" for count in (1, 2)]
    assert "strong scaling, 8 examples in a step" in out
    assert "weak scaling, 8 examples on each replica" in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert [row[0] for row in rows] == ["1", "2", "1", "2"]
    assert rows[0][2:4] == rows[2][2:4] == ["100", "%"]
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_a_row_has_throughput_efficiency_and_the_parts_in_milliseconds():
    steps = [
        MeasuredStep(replicas, 64, 4, 0.010, 0.002, 0.001, secs, (secs, secs))
        for replicas, secs in ((1, 0.020), (4, 0.010))
    ]
    # Strong efficiency is divided by the replicas, and weak is not.
    assert efficiency_of("strong", steps) == [1.0, 0.5]
    assert efficiency_of("weak", steps) == [1.0, 2.0]
    row = table_of("strong", steps)[2]
    assert row.split() == ["4", "6400", "50", "%", "10.0", "10.0", "2.0", "1.0"]


def test_a_loss_that_only_its_own_step_knows_cannot_be_timed():
    def build():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="own_step")
        model.compile("sgd")
        return model

    data = tf.data.Dataset.from_tensors((tf.ones((4, 3)), tf.ones((4, 2))))
    with pytest.raises(ModelError) as caught:
        time_step(build, tf.distribute.get_strategy(), data, blocks=2)
    assert caught.value.asked == "time a step of the model 'own_step'"
    assert caught.value.found.startswith(
        "no loss outside of its own train_step: No loss to compute"
    )
    assert caught.value.do == "compile the model with a loss, or override compute_loss"


def test_a_target_may_be_a_module_and_what_lacks_something_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models.py").write_text("def small(): return 1\ndef data(batch_size): return 2")
    build, data = own_functions("own_models:small")
    assert (build(), data(8)) == (1, 2)
    without_build, without_data = tmp_path / "a.py", tmp_path / "b.py"
    without_build.write_text("def data(batch_size): ...")
    without_data.write_text("def build(): ...")
    for target, found in (
        (str(without_build), r"no function 'build'\n.*a compiled Keras model"),
        (str(without_data), r"no function 'data'\n.*define data\(batch_size\)"),
        ("nowhere.py", "no such file"),
        ("nowhere:f", "no module named 'nowhere'"),
    ):
        with pytest.raises(ValueError, match=found):
            own_functions(target)


def test_what_cannot_be_measured_is_refused(capsys):
    for arguments, text in (
        ([], "neither a file nor --build"),
        (["train.py", "--replicas", "2", "4"], "a first number that is not 1"),
        (
            ["train.py", "--batch", "10", "--replicas", "1", "4"],
            "10 examples, which 4 replicas cannot share equally",
        ),
    ):
        assert cli.main(["bench", *arguments]) == 2
        assert text in capsys.readouterr().err


def test_a_process_that_fails_is_quoted(tmp_path, monkeypatch, capsys):
    # Not Python, which would import TensorFlow before it fails.
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'RuntimeError: no data here' >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(failing))
    assert cli.main(["bench", "train.py", "--replicas", "1"]) == 2
    message = capsys.readouterr().err
    assert "distlab bench train.py on 1 replicas" in message
    assert "ended with exit code 3: RuntimeError: no data here" in message
