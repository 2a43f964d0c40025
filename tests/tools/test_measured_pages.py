"""`--check` of the two measured pages fails, and names the cell, where a measurement differs."""

from unittest import mock

import pytest

from distlab.errors import ModelError
from tools import measured_pages, support_matrix, zoo

STORED = support_matrix.PAGE.read_text(encoding="utf-8")


def test_the_support_matrix_is_checked_cell_by_cell(monkeypatch, capsys, tmp_path):
    strategies, features = measured_pages.read_tables(STORED)
    monkeypatch.setattr(support_matrix, "measure", lambda: [strategies, features])
    monkeypatch.setattr("sys.argv", ["", "--check"])
    assert support_matrix.main() == 0
    capsys.readouterr()

    row, column = "gradient accumulation", "`distribute`, mirrored"
    changed = features | {row: features[row] | {column: "differs"}, "new": features[row]}
    del changed["two outputs"]
    monkeypatch.setattr(support_matrix, "measure", lambda: [strategies, changed])
    assert support_matrix.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{row} | {column}: 'equal' is written, 'differs' was measured" in lines
    assert f"new | {column}: None is written, 'equal' was measured" in lines
    assert f"two outputs | {column}: 'equal' is written, None was measured" in lines
    assert len(lines) == 7  # one cell, and the three of each row

    monkeypatch.setattr("sys.argv", ["", "--write"])
    monkeypatch.setattr(support_matrix, "PAGE", tmp_path / "page.md")
    support_matrix.PAGE.write_text(STORED)
    support_matrix.main()
    written = support_matrix.PAGE.read_text()
    assert measured_pages.read_tables(written) == [strategies, changed]
    assert (
        "| gradient accumulation | **crashes: merge_call in a condition** | **differs**" in written
    )


CELLS = {
    "equal": ({"loss": [1.000001]}, [[1.0000005]]),
    "weights right, log wrong": ({"loss": [1.1]}, [[1.0]]),
    "differs": ({"loss": [1.0]}, [[1.00001]]),
    "named error": ModelError(asked="a", found="b", do="c"),
    "crashes: merge_call in a condition": RuntimeError("`merge_call` called while defining"),
    "crashes: OSError": OSError("something else"),
}


@pytest.mark.parametrize("words", CELLS)
def test_a_cell_says_how_a_training_ended(words):
    ended = mock.Mock(side_effect=[CELLS[words]])
    assert support_matrix.cell(ended, ({"loss": [1.0], "other": [2.0]}, [[1.0]])) == words


def test_a_row_is_measured_on_two_replicas():
    assert list(support_matrix.FEATURES["`clipnorm`"]().values()) == ["differs", "equal", "equal"]


def test_the_zoo_is_checked_by_its_words(monkeypatch):
    stored, _ = measured_pages.read_tables(zoo.PAGE.read_text(encoding="utf-8"))
    monkeypatch.setattr("sys.argv", ["", "--check"])
    for cell, code in {"off by 9e-01": 0, "equal": 1, "stops: ValueError": 1}.items():
        measured = stored | {"autoencoder": stored["autoencoder"] | {zoo.THEIRS: cell}}
        monkeypatch.setattr(zoo, "measure_rows", lambda *_, measured=measured: measured)
        assert zoo.main() == code, cell
    for cell in ("equal", "weights equal, log off by 4e-01", "off by 3e-05"):
        far = {"log loss": 0.4 if "4" in cell else 0.0, "kernel": 3e-5 if "3" in cell else 0.0}
        assert zoo.in_words(far, {name: size for name, size in far.items() if size}) == cell
