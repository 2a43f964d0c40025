"""An evaluation beside a training: each checkpoint once, as it comes, until the last."""

import json
import shutil
import threading
import time

import keras
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import InvalidArgument, ModelError
from distlab.training import side_car
from distlab.training.side_car import evaluate_checkpoints
from tests.support.distribution import BATCH, X, Y, builder, shuffled


def data():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The checkpoints of four epochs, and what the last of them is worth."""
    folder = tmp_path_factory.mktemp("trained")
    model = builder()()
    model.fit(shuffled(), epochs=4, verbose=0, callbacks=[dl.Resume(folder, keep=9)])
    return folder, model.evaluate(data(), verbose=0, return_dict=True)


def test_each_checkpoint_is_evaluated_once_as_it_comes(trained, tmp_path, monkeypatch):
    source, logs = trained
    folder, lines = tmp_path / "checkpoints", []
    monkeypatch.setattr(side_car, "print", lambda e, **_: lines.append(str(e)), raising=False)

    def come():
        folder.mkdir()
        for index, checkpoint in enumerate(sorted(source.iterdir())):
            while len(lines) < index:  # the next one, once this one is evaluated
                time.sleep(0.01)
            shutil.copytree(checkpoint, tmp_path / "copy")
            (tmp_path / "copy").rename(folder / checkpoint.name)

    writer = threading.Thread(target=come)
    writer.start()
    try:
        found = evaluate_checkpoints(builder(), data(), folder=folder, timeout_secs=120)
    finally:
        writer.join(120)
    assert [(one.epoch, one.step) for one in found] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    assert lines == [str(one) for one in found]
    assert lines[-1].startswith("step 12, 4 epochs done: accuracy 0.")
    for name, value in logs.items():
        assert found[-1].logs[name] == pytest.approx(value, rel=1e-6)
    assert len({one.logs["loss"] for one in found}) == 4


def test_it_ends_where_a_callback_has_ended_the_training(tmp_path, capsys):
    model = builder()()

    def stop(epoch, logs):
        model.stop_training = epoch == 1

    stopping = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    model.fit(shuffled(), epochs=9, verbose=0, callbacks=[dl.Resume(tmp_path), stopping])
    capsys.readouterr()
    found = evaluate_checkpoints(builder(), data(), folder=tmp_path, verbose=False)
    assert [one.epoch for one in found] == [1, 2]
    assert capsys.readouterr().out == ""


def test_the_evaluator_does_not_write_among_the_checkpoints_of_the_training(tmp_path, monkeypatch):
    cluster = {"worker": ["localhost:20001", "localhost:20002"]}
    config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    folder = tmp_path / "checkpoints"
    with pytest.raises(InvalidArgument) as raised:
        builder()().fit(shuffled(), verbose=0, callbacks=[dl.Resume(folder)])
    assert raised.value.asked == f"train with Resume('{folder}') on the evaluator"
    assert "a task beside the training" in raised.value.found
    assert "evaluate_checkpoints(build, data, folder=...) on the evaluator" in raised.value.do
    assert not folder.exists()


def test_a_tf_config_that_nobody_asked_for_does_not_keep_a_training_from_resuming(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TF_CONFIG", "{")
    builder()().fit(shuffled(), verbose=0, callbacks=[dl.Resume(tmp_path)])
    assert list(tmp_path.iterdir())


def test_it_gives_up_where_nothing_more_comes(trained, tmp_path):
    source, _ = trained
    for checkpoint in sorted(source.iterdir())[:2]:
        shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    with pytest.warns(UserWarning, match=r"no new checkpoint in .* for 0.5 s, after 2, and the tr"):
        found = evaluate_checkpoints(builder(), data(), folder=tmp_path, timeout_secs=0.5)
    assert [one.epoch for one in found] == [1, 2]


def test_what_is_removed_while_it_is_read_is_passed_over(trained, tmp_path):
    source, _ = trained
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    (sorted(tmp_path.iterdir())[1] / "values.npz").unlink()
    found = evaluate_checkpoints(builder(), data(), folder=tmp_path, verbose=False)
    assert [one.epoch for one in found] == [1, 3, 4]


def test_it_evaluates_under_a_strategy_too(trained):
    folder, logs = trained
    strategy = dl.make_strategy("mirrored", devices=2)
    found = evaluate_checkpoints(builder(), data(), folder=folder, strategy=strategy, verbose=False)
    assert found[-1].logs["loss"] == pytest.approx(logs["loss"], rel=1e-6)


def test_checkpoints_of_another_model_are_refused(trained):
    def other():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("adam", loss="sparse_categorical_crossentropy")
        return model

    with pytest.raises(ModelError, match="another model: the checkpoint has"):
        evaluate_checkpoints(other, data(), folder=trained[0])
