import shutil
import urllib.error

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

import distlab as dl
from distlab.datasets import loader
from distlab.errors import DatasetError, InvalidArgument
from tests.support.permissions import OBEY_PERMISSIONS


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


# Processes of one import, which takes longer than what is tested.
PREPARE = """
import os, sys, traceback, tensorflow_datasets
import distlab as dl
from distlab.datasets import loader

def forked(run):
    child = os.fork()
    if child:
        return child
    try:
        run()
        sys.stdout.flush()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)
"""
AT_ONCE = """
def noted(*arguments, download=loader._download):
    os.write(1, b"prepared ")
    download(*arguments)

def load():
    os.close(start)
    os.read(ready, 1)  # ends when nobody holds the other end any more
    train, test = dl.load_dataset("digits", data_dir="data", batch_size=2000)
    (images, labels), = train
    os.write(1, f"{len(images)}/{int(sum(labels))} ".encode())

loader._download = noted
ready, start = os.pipe()
children = [forked(load) for _ in range(5)]
os.close(start)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_five_processes_prepare_once_and_read_the_same(tmp_path, run_python):
    prepared, *read = sorted(run_python(PREPARE + AT_ONCE, warm=True).split(), reverse=True)
    assert prepared == "prepared"
    assert read == ["1437/6408"] * 5
    shards = sorted(path.name for path in tmp_path.glob("data/digits/1.0.0/*train.tfrecord*"))
    assert shards == [f"digits-train.tfrecord-0000{index}-of-00004" for index in range(4)]


# Kills a process that prepares before its n-th step: a folder, a file, a shard, the last rename.
KILLED = """
import signal
import tensorflow as tf

def load(deadly):
    steps = []

    def count(event, arguments):
        writes = event != "open" or arguments[1] not in ("r", "rb")
        if event in ("os.mkdir", "os.rename", "open") and "data" in str(arguments[0]) and writes:
            step(event)

    def step(what):
        steps.append(what)
        if len(steps) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def flush(writer, flush=tf.io.TFRecordWriter.flush):
        step("shard")
        flush(writer)

    tf.io.TFRecordWriter.flush = flush
    sys.addaudithook(count)
    train, test = dl.load_dataset("digits", data_dir="data")
    print(*steps, len(list(train)), len(list(test)))

for deadly in range(1, 100):
    child = forked(lambda: load(deadly))
    how = os.waitpid(child, 0)[1]
    if how != signal.SIGKILL:
        assert how == 0
        break
    assert not os.path.exists("data/digits/1.0.0")
"""


def test_what_a_killed_process_has_prepared_is_never_taken_for_whole(tmp_path, run_python):
    *steps, train, test = run_python(PREPARE + KILLED, warm=True).split()
    assert (train, test) == ("1437", "360")
    assert steps.count("shard") == 8
    assert steps[-1] == "os.rename"
    assert list(tmp_path.glob("data/digits/incomplete.*"))  # what was left, and harms nobody


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with the digits; copy it before you change it."""
    folder = tmp_path_factory.mktemp("prepared")
    dl.load_dataset("digits", data_dir=folder)
    return folder


SHARD = "digits-train.tfrecord-00002-of-00004"


def cut(file, *, size):
    with file.open("r+b") as opened:
        opened.truncate(size)


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        (lambda folder: [file.unlink() for file in folder.iterdir()], "dataset_info.json"),
        (lambda folder: (folder / "dataset_info.json").unlink(), "dataset_info.json"),
        (
            lambda folder: cut(folder / "dataset_info.json", size=600),
            "a readable dataset_info.json",
        ),
        (lambda folder: (folder / SHARD).unlink(), SHARD),
        (lambda folder: cut(folder / SHARD, size=0), "63267 bytes of its split 'train'"),
        (lambda folder: cut(folder / SHARD, size=63266), "1 bytes of its split 'train'"),
    ],
    ids=["empty", "no info", "cut info", "no shard", "empty shard", "cut shard"],
)
def test_a_part_of_a_data_set_is_refused_with_its_folder(tmp_path, prepared, change, lacks):
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    change(data / "digits" / "1.0.0")
    with pytest.raises(DatasetError) as error:
        dl.load_dataset("digits", data_dir=data)
    folder = error.value.do.removeprefix("delete ").partition(" and call this again")[0]
    assert error.value.asked == "load_dataset('digits')"
    assert error.value.found == f"{folder} lacks {lacks}, so it is only a part of the data set"
    assert folder.startswith(str(data / "digits"))
    shutil.rmtree(folder)
    assert len(dl.load_dataset("digits", data_dir=data)[0]) == 1437


REFUSED = """
import errno, os, resource, shutil
import tensorflow_datasets
import distlab as dl
from distlab.errors import DatasetError

def shown(what, **place):
    try:
        print(what, len(dl.load_dataset("digits", **place)[0]), sep="|")
    except DatasetError as error:
        print(what, error.asked, error.found, error.do, sep="|")

"""
OF_ANOTHER = """
for folder, mode in (("home", 0o555), ("others", 0o555), ("secret", 0o755), ("read_only", 0o755)):
    os.chmod(folder, mode)
shown("home")
shown("others", data_dir="others")
os.chmod("secret/digits/1.0.0", 0o000)
shown("secret", data_dir="secret")
os.chmod("secret/digits/1.0.0", 0o755)
os.chmod("secret/digits/1.0.0/SHARD", 0o000)
shown("secret shard", data_dir="secret")
for folder, _, files in os.walk("read_only", topdown=False):
    for name in (*files, "."):
        os.chmod(os.path.join(folder, name), 0o555)
shown("read-only", data_dir="read_only")
for folder, _, _ in os.walk("read_only"):
    os.chmod(folder, 0o755)  # so that it can be removed
""".replace("SHARD", SHARD)


def refusals(printed):
    """What a process showed: by case, how many examples it got, or the parts of the error."""
    rows = [line.split("|") for line in printed.splitlines()]
    return {name: rest[0] if len(rest) == 1 else tuple(rest) for name, *rest in rows}


def test_a_folder_that_this_user_cannot_write_or_read_is_named(tmp_path, prepared, run_python):
    for name in ("home", "others"):
        (tmp_path / name).mkdir()
    for name in ("secret", "read_only"):
        shutil.copytree(prepared, tmp_path / name)
    code = REFUSED.replace("import errno", f"{OBEY_PERMISSIONS}\nimport errno") + OF_ANOTHER
    environ = {"HOME": str(tmp_path / "home"), "TFDS_DATA_DIR": None}
    got = refusals(run_python(code, environ=environ, warm=True))
    asked = "load_dataset('digits')"
    denied = "nothing can be written there: [Errno 13] Permission denied:"
    do = (
        "pass data_dir=FOLDER, or set TFDS_DATA_DIR, to a folder that you can write in and that "
        "has space"
    )
    in_home = f"{tmp_path}/home/tensorflow_datasets"
    assert got["home"] == (
        asked,
        f"it is not in {in_home}/digits/1.0.0, and {denied} {in_home!r}",
        do,
    )
    assert got["others"] == (
        asked,
        f"it is not in others/digits/1.0.0, and {denied} 'others/digits'",
        do,
    )
    secret, shard = (got[name] for name in ("secret", "secret shard"))
    assert secret[1].startswith("secret/digits/1.0.0 cannot be read: [Errno 13] Permission denied")
    assert shard[1] == f"secret/digits/1.0.0 cannot be read: {SHARD} is not for this user"
    assert (
        shard[2]
        == secret[2]
        == (
            "ask its owner to let you read it, or pass data_dir=FOLDER, or set TFDS_DATA_DIR, to a "
            "folder of your own"
        )
    )
    assert got["read-only"] == "1437"  # no lock is needed to read


NO_SPACE = """
import ctypes, signal

libc = ctypes.CDLL(None, use_errno=True)

def shown_apart(what, prepare, **place):
    child = os.fork()
    if not child:
        if prepare():
            shown(what, **place)
            print(what + ", left", *sorted(os.listdir(place["data_dir"] + "/digits")), sep="|")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    return True

def full_disk():
    if libc.unshare(0x20000):  # mounts of its own, which only root may have
        return False
    return libc.mount(b"none", b"/", None, 0x44000, None) == 0 and libc.mount(
        b"tmpfs", b"full", b"tmpfs", 0, b"size=150k") == 0

shown_apart("limit", limited, data_dir="limited")
shown_apart("full disk", full_disk, data_dir="full")
shown("afterwards", data_dir="limited")
"""


def test_without_space_nothing_half_made_stays(tmp_path, run_python):
    (tmp_path / "full").mkdir()
    code = REFUSED.replace("import errno", "import errno, sys") + NO_SPACE
    got = refusals(run_python(code, warm=True))
    for name, folder, why in (
        ("limit", "limited", "File too large"),
        ("full disk", "full", "No space left on device"),
    ):
        if name == "full disk" and name not in got:
            continue  # only root may mount one
        asked, found, do = got[name]
        assert asked == "load_dataset('digits')"
        assert (
            found == f"it is not in {folder}/digits/1.0.0, and nothing can be written there: {why}"
        )
        assert do.endswith("to a folder that you can write in and that has space")
        assert got[f"{name}, left"] == ".1.0.0.lock"
    assert got["afterwards"] == "1437"


def test_what_cannot_be_loaded_is_refused_with_what_there_is():
    with pytest.raises(DatasetError, match="did you mean 'mnist'"):
        dl.load_dataset("mnst")
    with pytest.raises(DatasetError) as error:
        dl.load_dataset("digits", splits=["validation"])
    assert error.value.found.startswith("Unknown split 'validation'")
    assert error.value.do.startswith("'digits' has the splits 'train', 'test'")
    with pytest.raises(DatasetError, match="nothing can be written there") as error:
        dl.load_dataset("digits", data_dir="/dev/null/data")
    assert error.value.do.startswith("pass data_dir=FOLDER, or set TFDS_DATA_DIR")
    with pytest.raises(InvalidArgument, match="found: batch_size="):
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
