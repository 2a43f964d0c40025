"""Results go where nothing of others can be lost, and stay with their submissions."""

from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.output.output_dir import take_place


def handed(*learners, name="one"):
    return [Submission(learner=one, path=Path(one), name=name) for one in learners]


@pytest.fixture
def take(tmp_path):
    def taken(folder, *submissions, seed=None, out="out"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        return take_place(tmp_path / out, tmp_path / folder, submissions, seed=seed)

    return taken


def refused(call, *arguments, **options):
    with pytest.raises(errors.InvalidArgument) as caught:
        call(*arguments, **options)
    return caught.value


def test_the_seed_is_drawn_once_and_kept(take):
    seed = take("in", *handed("jane"))
    assert take("in", *handed("jane")) == seed
    assert take("in", *handed("jane"), out="other", seed=7) == 7
    assert refused(take, "in", out="other", seed=8).found == "an earlier run with the seed 7"


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("in/out", "a folder inside the submissions"),
        ("in", "a folder inside the submissions"),
        ("other", "a folder with other files"),
        ("file", "a file"),
        ("file/out", "a folder that cannot be written (Not a directory)"),
    ],
)
def test_other_places_are_refused_and_left_as_they_were(take, tmp_path, place, found):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gradebook.csv").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted([*tmp_path.rglob("*"), tmp_path / "in"])
    assert refused(take, "in", *handed("jane"), out=place).found == found
    assert sorted(tmp_path.rglob("*")) == before


def test_results_of_another_folder_are_not_written_over(take, tmp_path):
    take("week1", *handed("jane", "john"), seed=7)
    error = refused(take, "week2", *handed("jane", name="two"))
    assert error.found == (
        f"the results of {tmp_path / 'week1'}; 2 of its notebooks are not in "
        f"{tmp_path / 'week2'}, such as one of jane"
    )
    assert error.do == "give a different folder for these results"


def test_the_same_submissions_and_more_may_lie_in_another_folder(take):
    take("week1", *handed("jane"), seed=7)
    assert take("week1 again", *handed("jane", "john")) == 7
    assert refused(take, "elsewhere", *handed("jane")).found.endswith("such as one of john")


def test_in_its_own_folder_a_notebook_may_be_gone(take):
    take("week1", *handed("jane", "john"), seed=7)
    assert take("week1", *handed("jane")) == 7
