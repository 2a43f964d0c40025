"""Tampers with every notebook, and holds that the regression notices each time.

    python tools/tamper.py        # `make regression-tampered`

Of each notebook three copies are made: one with a changed number, one with a changed picture,
one with a removed output (where it has such). Every copy must fail, and the notebook as it is
must pass.
"""

from __future__ import annotations

import base64
import copy
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image, ImageDraw

from distlab.authoring.compare import Tolerance

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "exercises", "solutions")


def compared_outputs(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    """Yields each output whose numbers are compared exactly, with its cell."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        is_exact = "nbval-ignore-output" not in tags and Tolerance.of_tags(tags) == Tolerance()
        if cell.cell_type == "code" and is_exact:
            yield from ((cell, output) for output in cell.outputs)


def change_number(notebook: NotebookNode) -> bool:
    """Changes the first digit of the first text that has one."""
    for _, output in compared_outputs(notebook):
        if output.output_type == "stream" and (found := re.search(r"\d", output.text)):
            other = str((int(found[0]) + 1) % 10)
            output.text = output.text[: found.start()] + other + output.text[found.end() :]
            return True
    return False


def change_picture(notebook: NotebookNode) -> bool:
    """Draws a thick line over the first picture."""
    for _, output in compared_outputs(notebook):
        if png := output.get("data", {}).get("image/png"):
            with Image.open(io.BytesIO(base64.b64decode(png))) as opened:
                picture = opened.convert("RGBA")
            ends = [(0, picture.height // 2), (picture.width, picture.height // 2)]
            ImageDraw.Draw(picture).line(ends, fill="red", width=5)
            stream = io.BytesIO()
            picture.save(stream, "png")
            output.data["image/png"] = base64.b64encode(stream.getvalue()).decode()
            return True
    return False


def remove_output(notebook: NotebookNode) -> bool:
    """Removes the last output that is compared."""
    *_, (cell, output) = compared_outputs(notebook)
    cell.outputs.remove(output)
    return True


def main() -> int:
    """Returns 0 if every tampered copy failed, and every notebook as it is passed."""
    expected = {}
    with tempfile.TemporaryDirectory(prefix="distlab-tampered-") as folder:
        for path in (path for name in FOLDERS for path in sorted((ROOT / name).glob("*.ipynb"))):
            notebook = nbformat.read(path, as_version=4)
            for change in (None, change_number, change_picture, remove_output):
                changed = copy.deepcopy(notebook)
                if change is not None and not change(changed):
                    continue
                what = change.__name__ if change else "as_it_is"
                name = f"{path.parent.name}-{path.stem}-{what}.ipynb"
                nbformat.write(changed, Path(folder, name))
                expected[name] = change is None
        command = [sys.executable, "-m", "pytest", "-p", "distlab.authoring.regression", "--nbval"]
        command += ["-n", "2", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S*?([^/\s]+\.ipynb)", done.stdout, re.MULTILINE))
    wrong = [name for name, passes in expected.items() if passes == (name in failed)]
    for name in wrong:
        print(f"{name}: {'failed' if expected[name] else 'passed'}")
    tampered = sum(not passes for passes in expected.values())
    print(f"{tampered} tampered copies of {len(expected) - tampered} notebooks, {len(wrong)} wrong")
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:])
    return int(bool(wrong) or done.returncode not in (0, 1))


if __name__ == "__main__":
    sys.exit(main())
