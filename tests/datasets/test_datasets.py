import subprocess
import sys
import urllib.error

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import distlab as dl
from distlab.datasets import loader
from distlab.errors import DatasetError, InvalidArgument


def test_the_digits_are_all_there_in_a_fixed_order():
    train, test = dl.load_dataset("digits")
    labels = [int(label) for _, label in train]
    assert (len(labels), len(list(test))) == (1437, 360)
    assert sorted(set(labels)) == list(range(10))
    assert [int(label) for _, label in dl.load_dataset("digits")[0]] == labels


def test_the_two_splits_share_no_image_and_are_scikit_learns():
    from sklearn.datasets import load_digits

    stored = [
        image.numpy().tobytes()
        for part in dl.load_dataset("digits", scale_images=False)
        for image, _ in part
    ]
    theirs = np.round(load_digits().data * (255 / 16)).astype(np.uint8)
    assert sorted(stored) == sorted(image.tobytes() for image in theirs)


def test_images_are_floats_from_0_to_1_in_global_batches():
    train, _ = dl.load_dataset("digits", batch_size=64)
    image_spec, label_spec = train.element_spec
    assert (image_spec.dtype, image_spec.shape.as_list()) == (tf.float32, [None, 8, 8, 1])
    assert label_spec.dtype == tf.int64
    images = next(iter(train))[0].numpy()
    assert images.shape == (64, 8, 8, 1)
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert len(train) == 23  # nothing is dropped: 22 full batches and one of 29


def test_images_may_be_left_as_they_are_and_splits_be_sliced():
    (few,) = dl.load_dataset("digits", splits=["train[:10]"], scale_images=False)
    assert few.element_spec[0].dtype == tf.uint8
    assert len(list(few)) == 10


def test_two_processes_prepare_once(tmp_path):
    code = (
        "import sys, distlab as dl\nprint(len(dl.load_dataset('digits', data_dir=sys.argv[1])[0]))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].split()[-1] for process in both] == ["1437"] * 2
    shards = sorted(path.name for path in tmp_path.glob("digits/1.0.0/*train.tfrecord*"))
    assert shards == [f"digits-train.tfrecord-0000{index}-of-00004" for index in range(4)]


def test_an_unknown_name_is_answered_with_the_near_one():
    with pytest.raises(DatasetError, match="did you mean 'mnist'"):
        dl.load_dataset("mnst")


def test_an_unknown_split_is_answered_with_those_there_are():
    with pytest.raises(DatasetError) as error:
        dl.load_dataset("digits", splits=["validation"])
    assert error.value.found.startswith("Unknown split 'validation'")
    assert error.value.do.startswith("'digits' has the splits 'train', 'test'")


def test_a_batch_of_none_is_refused():
    with pytest.raises(InvalidArgument, match="a batch size below 1"):
        dl.load_dataset("digits", batch_size=0)


def test_without_a_network_a_download_fails_at_once_and_says_what_to_do(monkeypatch, tmp_path):
    def refuse(url, timeout):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(loader.urllib.request, "urlopen", refuse)
    with pytest.raises(DatasetError) as error:
        dl.load_dataset("mnist", data_dir=tmp_path)
    assert error.value.found.startswith(f"it is not in {tmp_path}")
    assert "Name or service not known" in error.value.found
    assert error.value.do.startswith("connect to the network (or set HTTPS_PROXY)")


def test_any_tfds_name_takes_the_same_path(monkeypatch):
    monkeypatch.setattr(loader, "_is_prepared", lambda builder: True)
    with tfds.testing.mock_data(num_examples=5):
        train, test = dl.load_dataset("mnist", batch_size=2)
        image, _ = next(iter(train))
    assert image.shape == (2, 28, 28, 1)
    assert image.dtype == tf.float32
    assert len(list(test)) == 3
