import pytest

from distlab import environment

GOOD = {"tensorflow": "2.21.0", "keras": "3.15.1"}


def problems(python=(3, 11), versions=GOOD, environ=None):
    return environment.known_problems(python=python, versions=versions, environ=environ or {})


def test_a_good_environment_has_no_problems():
    assert problems() == []


@pytest.mark.parametrize("python", [(3, 10), (3, 14)])
def test_an_unsupported_python_is_named_with_those_that_work(python):
    assert problems(python=python) == [
        f"Python 3.{python[1]} is not supported: TensorFlow 2.21 and Keras 3.15 need Python 3.11 "
        "to 3.13. Install one of these."
    ]


def test_missing_tensorflow_is_a_problem_with_the_command_that_brings_it():
    assert problems(versions={"keras": "3.15.1"}) == [
        "TensorFlow is not installed: pip install tensorflow"
    ]


def test_tensorflow_beside_tensorflow_tpu_is_a_problem():
    (problem,) = problems(versions={**GOOD, "tensorflow-tpu": "2.20.0"})
    assert problem.startswith("tensorflow and tensorflow-tpu are both installed")


def test_the_old_keras_is_a_problem():
    (problem,) = problems(versions={**GOOD, "keras": "2.15.0"})
    assert problem == "Keras 2.15.0 is the old Keras: pip install --upgrade 'keras>=3.15'"


def test_another_keras_backend_is_a_problem():
    (problem,) = problems(environ={"KERAS_BACKEND": "jax"})
    assert problem.startswith("KERAS_BACKEND is 'jax': tf.distribute needs Keras on TensorFlow.")


def test_prepare_keeps_what_the_user_has_set():
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    environment.prepare(environ)
    assert environ == {"TF_CPP_MIN_LOG_LEVEL": "0", "KERAS_BACKEND": "tensorflow"}


def test_a_keras_json_that_names_another_backend_does_not_win(run_python, tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    code = "import distlab; distlab.distribute; import keras; print(keras.backend.backend())"
    assert run_python(code, environ={"KERAS_HOME": str(tmp_path)}).split()[-1] == "tensorflow"
