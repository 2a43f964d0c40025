"""A script that is launched from a notebook gives its exit code and its lines."""

from distlab.coursework.script_runs import launch_here

_SCRIPT = """
import json, os, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("I am", index)
sys.exit(3 * index)
"""


def test_lines_come_sorted_and_the_exit_code_is_that_of_the_first_failure(tmp_path):
    (tmp_path / "script.py").write_text(_SCRIPT)
    launched = launch_here("--workers", "2", "script.py", folder=tmp_path)
    assert launched.exit_code == 3
    lines = launched.lines_with("I am")
    assert [line.split("I am ")[1] for line in lines] == ["0", "1"]
    assert ["worker:0" in lines[0], "worker:1" in lines[1]] == [True, True]
    assert launched.lines_with("nothing of the kind") == []
