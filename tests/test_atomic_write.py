"""A file is written whole or not at all, and nothing is left beside it."""

import pytest

from distlab.atomic_write import write_atomically

# The system lets this process write files of at most 1,000 bytes, as if the disk were full.
NO_ROOM = """
import pathlib, resource, signal
from distlab.atomic_write import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomically(pathlib.Path("kept.txt"), "new" * 1000)
"""


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path, run_python):
    path = tmp_path / "folder" / "kept.txt"
    write_atomically(path, "old\r\n")
    assert "File too large" in run_python(NO_ROOM, fails=True, cwd=path.parent)
    assert path.read_bytes() == b"old\r\n", "ends of lines stay as they are"
    assert [entry.name for entry in path.parent.iterdir()] == ["kept.txt"]


def test_text_that_has_no_bytes_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.ipynb"
    write_atomically(path, b"old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.ipynb"]
