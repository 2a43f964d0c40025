import pickle

import pytest

from distlab import errors


def test_a_message_says_what_was_asked_what_was_found_and_what_to_do():
    error = errors.InvalidArgument(asked="f(0)", found="a zero", do="give one")
    assert str(error) == "f(0)\n  found: a zero\n  to do: give one"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidArgument, ValueError),
        (errors.ModelError, ValueError),
        (errors.DeviceError, RuntimeError),
        (errors.DatasetError, RuntimeError),
        (errors.UnsupportedEnvironment, RuntimeError),
        (errors.NotebookError, RuntimeError),
        (errors.ProcessError, RuntimeError),
        (errors.TaskFailed, errors.ProcessError),
        (errors.TaskTimeout, TimeoutError),
    ],
)
def test_each_error_is_also_the_builtin_that_a_caller_expects(kind, builtin):
    assert issubclass(kind, errors.DistlabError)
    assert issubclass(kind, builtin)


def test_a_message_says_where_the_pitfall_is_that_explains_it():
    error = errors.InvalidArgument(asked="f(0)", found="a zero", do="give one", pitfall="No zero")
    assert str(error).splitlines()[3:] == ["  see: docs/pitfalls.md, 'No zero'"]


def test_errors_cross_processes_whole():
    error = errors.DeviceError(asked="a", found="b", do="c", pitfall="d")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (errors.DeviceError, str(error), vars(error))


def test_the_error_of_a_task_crosses_processes_with_what_it_knows_of_it():
    words = {"asked": "a", "found": "b", "do": "c", "pitfall": "d"}
    task = {"task": "worker:1", "error": "ValueError", "traceback": "t", "is_loss": True}
    copy = pickle.loads(pickle.dumps(errors.TaskTimeout(**words, **task)))
    assert (type(copy), vars(copy)) == (errors.TaskTimeout, words | task)


def test_a_misspelt_word_is_answered_with_the_near_one_first():
    advice = errors.did_you_mean("mirored", ["default", "mirrored"])
    assert advice == "did you mean 'mirrored'? Or choose one of 'default', 'mirrored'"


def test_a_word_near_nothing_is_answered_with_all():
    assert errors.did_you_mean("xyz", ["a", "b"]) == "choose one of 'a', 'b'"
