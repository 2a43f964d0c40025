"""`--check` of the two measured pages fails, and names the cell, where a measurement differs."""

import types
from unittest import mock

import pytest

from distlab.errors import ModelError
from tools import support_matrix, zoo

STORED = support_matrix.PAGE.read_text(encoding="utf-8")


def test_the_support_matrix_is_checked_cell_by_cell(monkeypatch, capsys):
    strategies, features = support_matrix.read_tables(STORED)
    monkeypatch.setattr(support_matrix, "measure", lambda: [strategies, features])
    assert support_matrix.main(["--check"]) == 0
    support_matrix.main([])
    assert support_matrix.read_tables(capsys.readouterr().out) == [strategies, features]

    row, column = "gradient accumulation", "`distribute`, mirrored"
    changed = features | {row: features[row] | {column: "differs"}, "new": features[row]}
    del changed["two outputs"]
    monkeypatch.setattr(support_matrix, "measure", lambda: [strategies, changed])
    assert support_matrix.main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{row} | {column}: 'equal' is written, 'differs' was found" in lines
    assert f"new | {column}: None is written, 'equal' was found" in lines
    assert f"two outputs | {column}: 'equal' is written, None was found" in lines
    assert len(lines) == 7  # one cell, and the three of each row


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
    assert list(support_matrix.ROWS["`clipnorm`"]().values()) == ["differs", "equal", "equal"]


ROWS = {
    "vae": ["equal", "stops: RuntimeError"],
    "dice": ["off by 3e-05", "off by 2e-04"],
    "sum": ["equal", "weights equal, log off by 4e-01"],
}


def cells_of(row):
    return dict(zip(zoo.COLUMNS, row, strict=True))


def test_the_zoo_is_checked_by_its_words(monkeypatch, capsys, tmp_path):
    families = {name: types.SimpleNamespace(like=f"the {name}") for name in ROWS}
    monkeypatch.setattr(zoo, "families", lambda: families)
    monkeypatch.setattr(zoo, "PAGE", tmp_path / "zoo.md")
    zoo.PAGE.write_text("Equal to one device, of 9 models: all.\n\n| family |\n")
    zoo.PAGE.write_text(zoo.page({name: cells_of(row) for name, row in ROWS.items()}))
    assert zoo.PAGE.read_text().startswith("Equal to one device, of 3 models: 2 (`distribute`, ")

    def check(*only, **measured):
        rows = ROWS | measured
        monkeypatch.setattr(
            zoo, "measure_all", lambda names: {name: cells_of(rows[name]) for name in names}
        )
        code = zoo.main(["--check", *(["--only", *only] if only else [])])
        return code, capsys.readouterr().out.splitlines()

    assert check() == (0, ["all 3 families are as docs/zoo.md says in words"])
    code, _ = check(
        vae=["equal", "stops: RuntimeError"],
        dice=["off by 7e-06", "off by 9e-01"],
        sum=["equal", "weights equal, log off by 3e+00"],
    )
    assert code == 0
    for changed in (
        {"vae": ["off by 1e-05", *ROWS["vae"][1:]]},
        {"vae": ["weights equal, log off by 4e-01", *ROWS["vae"][1:]]},
        {"vae": [ROWS["vae"][0], "stops: ValueError"]},
        {"dice": ["equal", *ROWS["dice"][1:]]},
        {"sum": [ROWS["sum"][0], "equal"]},
    ):
        code, lines = check(**changed)
        assert (code, len(lines)) == (1, 1), changed
        assert lines[0].startswith(f"{next(iter(changed))} | "), changed
    assert check("dice", vae=["off by 1"] * 2)[0] == 0  # was not asked for
    families["new"] = types.SimpleNamespace(like="nothing")
    assert check(new=ROWS["vae"])[0] == 1
    del families["new"], families["vae"]  # its row is left on the page
    assert check()[0] == 1
