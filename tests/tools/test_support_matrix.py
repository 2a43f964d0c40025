"""The support matrix says what is so: every cell is measured again."""

import importlib.util

import pytest

from distlab.errors import ModelError
from tools import support_cells, support_matrix

STORED = support_matrix.PAGE.read_text(encoding="utf-8")
needs_tf_keras = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="the legacy extra is not installed"
)


@needs_tf_keras
def test_every_cell_is_as_it_is_written():
    found = support_matrix.measure()
    changed = support_matrix.changes(support_matrix.read_tables(STORED), list(found))
    told = "\n".join(changed)
    assert not changed, f"python tools/support_matrix.py --write renews the page; changed:\n{told}"


def test_a_changed_cell_is_named_and_so_is_one_that_came_or_went():
    stored, found = ([{"mirrored": {"fit": cell}}] for cell in ("equal", "crashes: X"))
    message = "mirrored | fit: 'equal' is written, 'crashes: X' was found"
    assert support_matrix.changes(stored, found) == [message]
    assert support_matrix.changes(stored, stored) == []
    assert support_matrix.changes(stored, [{}]) == [
        "mirrored | fit: 'equal' is written, None was found"
    ]


def test_the_page_holds_the_tables_that_were_measured():
    from tools import support_features  # after the devices are split: it makes Keras objects

    tables = support_matrix.read_tables(STORED)
    assert support_matrix.page(*tables, "X").count("\n") == STORED.count("\n")
    assert tables[1].keys() == support_features.ROWS.keys()
    assert "**crashes: PerReplica to Tensor**" in STORED
    assert (
        tables[0]["multi_worker, 2 processes"]["Keras 3 `fit`"] == "crashes: PerReplica to Tensor"
    )


def test_a_training_is_equal_or_its_log_is_wrong_or_it_differs():
    judge = support_cells.against(({"loss": [0.5]}, [1.0, 2.0]))
    assert judge(({"loss": [0.5 + 1e-6]}, [1.0, 2.0 + 5e-7])) == "equal"
    assert judge(({"loss": [0.6]}, [1.0, 2.0])) == "weights right, log wrong"
    assert judge(({"loss": [0.5]}, [1.0, 2.0 + 2e-6])) == "differs"
    assert judge(({"loss": [0.5]}, [1.0, float("nan")])) == "differs"


def test_how_a_training_ended_is_told_in_few_words():
    def end(error):
        def run():
            raise error

        return support_cells.cell(run, str)

    assert end(ValueError("a PerReplica object")) == "crashes: PerReplica to Tensor"
    assert end(ValueError("something new")) == "crashes: ValueError"
    assert end(ModelError(asked="a", found="b", do="c")) == "named error"


def test_a_process_that_ends_without_an_answer_is_told_with_what_it_said(tmp_path):
    environ = {"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with pytest.raises(RuntimeError, match=r"(?s)the cells of 'nothing' ended with 1:.*KeyError"):
        support_matrix._measure_group("nothing", tmp_path, None, environ)
