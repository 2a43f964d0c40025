"""`--check` of the two measured pages fails, and names the cell, where a measurement differs."""

import types

import pytest

from tools import support_matrix, zoo

STORED = support_matrix.PAGE.read_text(encoding="utf-8")


def test_the_support_matrix_is_checked_cell_by_cell(monkeypatch, capsys):
    strategies, features = support_matrix.read_tables(STORED)
    monkeypatch.setattr(support_matrix, "measure", lambda: (strategies, features))
    assert support_matrix.main(["--check"]) == 0
    support_matrix.main([])
    assert support_matrix.read_tables(capsys.readouterr().out) == [strategies, features]

    row, column = "gradient accumulation", "`distribute`, mirrored"
    changed = features | {row: features[row] | {column: "differs"}, "new": features[row]}
    del changed["two outputs"]
    monkeypatch.setattr(support_matrix, "measure", lambda: (strategies, changed))
    assert support_matrix.main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{row} | {column}: 'equal' is written, 'differs' was found" in lines
    assert f"new | {column}: None is written, 'equal' was found" in lines
    assert f"two outputs | {column}: 'equal' is written, None was found" in lines
    assert len(lines) == 7  # one cell, and the three of each row


def test_a_group_of_cells_that_gives_no_answer_is_named_with_its_error(monkeypatch, tmp_path):
    monkeypatch.setattr(support_matrix, "_start", ended_with_an_error)
    with pytest.raises(RuntimeError, match=r"(?s)the cells of 'keras' ended with 1:.*KeyError"):
        support_matrix._measure_group("keras", tmp_path, None, {})


def ended_with_an_error(group, path, warm, env):
    path.with_name(f"{path.name}.err").write_text("KeyError")
    return types.SimpleNamespace(wait=lambda timeout_secs: 1, kill=lambda: None)


ROWS = {
    "vae": ["equal", "stops: RuntimeError"],
    "dice": ["off by 3e-05", "off by 2e-04"],
    "sum": ["equal", "weights equal, log off by 4e-01"],
}


def test_the_zoo_is_checked_by_its_words(monkeypatch, capsys, tmp_path):
    families = {name: types.SimpleNamespace(like=f"the {name}") for name in ROWS}
    monkeypatch.setattr(zoo, "families", lambda: families)
    monkeypatch.setattr(zoo, "PAGE", tmp_path / "zoo.md")
    zoo.PAGE.write_text(zoo.page(ROWS))

    def check(*only, **measured):
        rows = ROWS | measured
        monkeypatch.setattr(zoo, "measure_all", lambda names: {name: rows[name] for name in names})
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
