import urllib.error

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

import distlab as dl
from distlab.datasets import loader
from distlab.errors import DatasetError, InvalidArgument


def test_the_digits_are_scikit_learns_in_a_fixed_order():
    train, test = (list(part) for part in dl.load_dataset("digits", scale_images=False))
    assert (len(train), len(test)) == (1437, 360)
    theirs = np.round(load_digits().data * (255 / 16)).astype(np.uint8)
    stored = sorted(image.numpy().tobytes() for image, _ in train + test)
    assert stored == sorted(image.tobytes() for image in theirs)
    again, _ = dl.load_dataset("digits")
    assert [int(label) for _, label in again] == [int(label) for _, label in train]


def test_images_are_floats_from_0_to_1_in_global_batches_or_as_they_are():
    train, _ = dl.load_dataset("digits", batch_size=64)
    image_spec, label_spec = train.element_spec
    assert (image_spec.dtype, image_spec.shape.as_list()) == (tf.float32, [None, 8, 8, 1])
    assert label_spec.dtype == tf.int64
    images = next(iter(train))[0].numpy()
    assert (len(images), images.min(), images.max()) == (64, 0.0, 1.0)
    assert len(train) == 23  # nothing is dropped: 22 full batches and one of 29
    (few,) = dl.load_dataset("digits", splits=["train[:10]"], scale_images=False)
    assert (few.element_spec[0].dtype, len(list(few))) == (tf.uint8, 10)


# Two processes of one import, which takes longer than what is tested.
PREPARE = """
import os, tensorflow_datasets
import distlab as dl
child = os.fork()
count = len(dl.load_dataset("digits", data_dir="data")[0])
assert child == 0 or os.waitpid(child, 0)[1] == 0
os.write(1, f"{count} ".encode())
os._exit(0)
"""


def test_two_processes_prepare_once(tmp_path, run_python):
    assert run_python(PREPARE, warm=True).split() == ["1437", "1437"]
    shards = sorted(path.name for path in tmp_path.glob("data/digits/1.0.0/*train.tfrecord*"))
    assert shards == [f"digits-train.tfrecord-0000{index}-of-00004" for index in range(4)]


def test_what_cannot_be_loaded_is_refused_with_what_there_is():
    with pytest.raises(DatasetError, match="did you mean 'mnist'"):
        dl.load_dataset("mnst")
    with pytest.raises(DatasetError) as error:
        dl.load_dataset("digits", splits=["validation"])
    assert error.value.found.startswith("Unknown split 'validation'")
    assert error.value.do.startswith("'digits' has the splits 'train', 'test'")
    with pytest.raises(DatasetError, match="nothing can be written there") as error:
        dl.load_dataset("digits", data_dir="/dev/null/data")
    assert error.value.do.startswith("give data_dir=FOLDER, or set TFDS_DATA_DIR")
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
    monkeypatch.setattr(loader, "_is_prepared", lambda *_: True)
    with tfds.testing.mock_data(num_examples=5):
        train, test = dl.load_dataset("mnist", batch_size=2)
        image, _ = next(iter(train))
    assert (image.shape, image.dtype, len(list(test))) == ((2, 28, 28, 1), tf.float32, 3)
