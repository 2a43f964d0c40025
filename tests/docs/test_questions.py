"""docs/questions.md: its lines print what it shows, and its table says what they print."""

import re
from importlib.metadata import version

import pytest

from distlab.cluster.local.cluster import NOTICE
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
CODE, SHOWN = (rf"```{kind}\n(.+?)```" for kind in ("python", "text"))
LINK = r"\[[^]]+\]\((https://github\.com/[^)]+/issues/\d+)\)"
ON_CPU = {"CUDA_VISIBLE_DEVICES": "-1"}
NEXT = "--- the next section ---"
# What a section prints about plain Keras, and how the table begins to say so.
SAYS = {
    r"plain Keras: (\w+Error)": "stops: {}",
    r"plain Keras: weights equal: False": "weights differ",
    r"plain Keras: weights equal: True, logs: False": "weights right, log wrong",
}
# Graphs that run a few times: to optimize them, or to mend tracebacks, costs more than it saves.
PREPARED = """
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
tf.debugging.disable_traceback_filtering()
"""

NAMED = re.findall(r"(TensorFlow|Keras) (\d+)\.(\d+)", HEAD)
OLDER = [
    name
    for name, *numbers in NAMED
    if [int(part) for part in version(name.lower()).split(".")[:2]] < [*map(int, numbers)]
]


@pytest.mark.skipif(bool(OLDER), reason=f"the page is of a newer {OLDER}")
def test_the_lines_print_what_the_page_shows(run_python):
    """In one process, from top to bottom, as a reader runs them."""
    (first,) = re.findall(CODE, HEAD, re.DOTALL)
    code = first + PREPARED
    shown = []
    for section in SECTIONS:
        (lines,), (output,) = (re.findall(each, section, re.DOTALL) for each in (CODE, SHOWN))
        code += f"print({NEXT!r})\n{lines}"
        shown.append(output)
    printed = run_python(code, environ=ON_CPU, warm=True).replace(f"{NOTICE}\n", "")
    nothing, *printed = printed.split(f"{NEXT}\n")
    assert nothing == ""
    titles = [section.partition("\n")[0] for section in SECTIONS]
    assert dict(zip(titles, printed, strict=True)) == dict(zip(titles, shown, strict=True))


def test_the_table_names_the_sections_their_threads_and_what_they_print():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in HEAD.splitlines()
        if line.startswith("| [")
    ]
    assert len(rows) == len(SECTIONS)
    for (question, thread, plain, ours), section in zip(rows, SECTIONS, strict=True):
        title = section.partition("\n")[0]
        assert question.startswith(f"[{title}](#")
        assert re.findall(LINK, thread) == re.findall(LINK, section)[:1]
        (output,) = re.findall(SHOWN, section, re.DOTALL)
        found = [(says, re.findall(printed, output)) for printed, says in SAYS.items()]
        said = [says.format(*matches) for says, matches in found if matches]
        assert not said or any(each in plain for each in said), title
        assert "distlab: weights equal: False" not in output and ours
