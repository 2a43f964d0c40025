import pickle

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from distlab import errors


def test_a_message_says_what_was_asked_what_was_found_and_what_to_do():
    words = {"asked": "f(0)", "found": "a zero", "do": "give one"}
    text = "f(0)\n  found: a zero\n  to do: give one"
    assert str(errors.InvalidArgument(**words)) == text
    explained = errors.InvalidArgument(**words, pitfall="No zero")
    assert str(explained) == f"{text}\n  see: docs/pitfalls.md, 'No zero'"


def test_each_error_is_also_the_builtin_that_a_caller_expects():
    builtins = {
        errors.InvalidArgument: ValueError,
        errors.ModelError: ValueError,
        errors.DeviceError: RuntimeError,
        errors.DatasetError: RuntimeError,
        errors.UnsupportedEnvironment: RuntimeError,
        errors.NotebookError: RuntimeError,
        errors.ProcessError: RuntimeError,
        errors.TaskFailed: errors.ProcessError,
        errors.TaskTimeout: TimeoutError,
    }
    for kind, builtin in builtins.items():
        assert issubclass(kind, errors.DistlabError) and issubclass(kind, builtin), kind


def test_errors_cross_processes_with_all_that_they_know():
    words = {"asked": "a", "found": "b", "do": "c", "pitfall": "d"}
    task = {"task": "worker:1", "error": "ValueError", "traceback": "t", "is_loss": True}
    for error in (errors.DeviceError(**words), errors.TaskTimeout(**words, **task)):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_misspelt_word_is_answered_with_the_near_one_first():
    advice = errors.did_you_mean("mirored", ["default", "mirrored"])
    assert advice == "did you mean 'mirrored'? Or choose one of 'default', 'mirrored'"
    assert errors.did_you_mean("xyz", ["a", "b"]) == "choose one of 'a', 'b'"
    assert errors.did_you_mean("xyz", "abc", most=2) == "choose one of 'a', 'b' and 1 more"


def test_a_notebook_shows_the_callers_line_and_the_parts_and_all_by_tb():
    shell = InteractiveShell.instance(colors="nocolor")
    try:
        with capture_output() as short:
            shell.run_cell("import distlab\n\n\ndistlab.make_strategy('mirored')")
        with capture_output() as full:
            shell.run_cell("%tb")
    finally:
        InteractiveShell.clear_instance()
    assert "make_strategy('mirored')" in short.stdout and "line 4" in short.stdout
    ending = ["  found: ", "  to do: ", "%tb shows the whole traceback."]
    assert all(map(str.startswith, short.stdout.splitlines()[-3:], ending))
    assert len(short.stdout.splitlines()) < 20 and "factory.py" not in short.stdout
    assert "factory.py" in full.stdout
