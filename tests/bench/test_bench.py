"""`distlab bench` measures a reader's own model, and says what is missing in their code."""

import pytest

from distlab import cli
from distlab.bench.bench_command import efficiency_of, table_of
from distlab.bench.own_code import own_functions
from distlab.measure.scaling_runs import MeasuredStep

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


def step(replicas, whole_secs, *, batch=64):
    half = (whole_secs, whole_secs)
    return MeasuredStep(replicas, batch, 4, 0.010, 0.002, 0.001, whole_secs, half)


def said(capsys, *arguments):
    assert cli.main(["bench", *arguments]) == 2
    return capsys.readouterr().err


def test_a_script_is_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
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


def test_strong_efficiency_is_divided_by_the_replicas_and_weak_is_not():
    steps = [step(1, 0.020), step(4, 0.010)]
    assert efficiency_of("strong", steps) == [1.0, 0.5]
    assert efficiency_of("weak", steps) == [1.0, 2.0]


def test_a_row_has_throughput_efficiency_and_the_parts_in_milliseconds():
    row = table_of("strong", [step(1, 0.020), step(4, 0.010)])[2]
    assert row.split() == ["4", "6400", "50", "%", "10.0", "10.0", "2.0", "1.0"]


def test_a_module_and_its_function_stand_in_for_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models.py").write_text("def small(): return 1\ndef data(batch_size): return 2")
    build, data = own_functions("own_models:small")
    assert (build(), data(8)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "found", "do"),
    [
        ("def data(batch_size): ...", "no function 'build'", "a compiled Keras model"),
        ("def build(): ...", "no function 'data'", "define data(batch_size)"),
    ],
)
def test_a_file_that_lacks_a_function_is_told_which(tmp_path, text, found, do):
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(ValueError, match=found) as error:
        own_functions(str(tmp_path / "train.py"))
    assert do in str(error.value)


def test_what_cannot_be_measured_is_refused(capsys):
    assert "neither a file nor --build" in said(capsys)
    assert "both a file and --build" in said(capsys, "train.py", "--build", "a:b")
    assert "a first number that is not 1" in said(capsys, "train.py", "--replicas", "2", "4")
    odd = said(capsys, "train.py", "--batch", "10", "--replicas", "1", "4")
    assert "10 examples, which 4 replicas cannot share equally" in odd


def test_a_process_that_fails_is_quoted(tmp_path, capsys):
    (tmp_path / "train.py").write_text("raise RuntimeError('no data here')")
    text = said(capsys, str(tmp_path / "train.py"), "--replicas", "1")
    assert "on 1 replicas" in text
    assert "RuntimeError: no data here" in text


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("nowhere.py", "no such file"),
        ("train", "no file and no function"),
        ("nowhere:f", "nowhere"),
    ],
)
def test_targets_that_are_not_there_are_refused(target, found):
    with pytest.raises(ValueError, match=found):
        own_functions(target)
