"""A pytest plugin: nbval made strict. Loaded as `pytest -p distlab.authoring.regression --nbval`.

nbval collects the cells, reads their tags, sanitises and compares texts. This runs the cells as
`distlab.authoring.execute` does, and adds: a cell that was never executed fails; outputs that are
missing fail; pictures are compared by their pixels; a cell tagged to raise must raise; a dead
kernel fails at once; after a cell that failed to run no later cell of its notebook runs. (After
outputs that only differ the rest does run, so that one report shows every difference.)

An output that later cells update (`display(...).update`) is compared as it is in the end, as it
was stored. Of a widget the text is compared, not its view, which holds only a random id.

A cell's words are compared exactly, and its numbers to the tolerance that its tag states, on any
processor and on a GPU (see distlab.authoring.compare). With `--other-versions`, for packages that
are not those of constraints.txt, pictures need only be there, and a number of three parts, as
"2.21.0", may be another.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams

from distlab.authoring import compare
from distlab.authoring.execute import CELL_TIMEOUT_SECS, Session, kernel_environment
from distlab.authoring.notebook_text import tags_of
from distlab.cluster.warm.process import ADDRESS_VARIABLE, PRELOAD, WarmServer, can_fork
from distlab.errors import NotebookError

_NBVAL_CELL_TIMEOUT_SECS = 2000
_VERSION = re.compile(r"\b\d+\.\d+\.\d+\b")
# What notebooks import besides what every task does.
_PRELOAD = (
    *PRELOAD,
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "PIL.PngImagePlugin",
    "tensorflow_datasets",
    "sklearn.datasets",
)
_WARM = pytest.StashKey[WarmServer]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--other-versions`."""
    parser.addoption(
        "--other-versions",
        action="store_true",
        help="the packages are not those of the stored notebooks: leave out what shows it",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keeps a notebook on one xdist worker, and starts the warm process for all of them."""
    if not (config.option.nbval or config.option.nbval_lax):
        return
    if getattr(config.option, "dist", "no") not in {"no", "loadfile"}:
        config.option.dist = "loadfile"  # any other mode splits a notebook over several kernels
    if config.option.nbval_cell_timeout == _NBVAL_CELL_TIMEOUT_SECS:
        config.option.nbval_cell_timeout = CELL_TIMEOUT_SECS
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.collectonly or not can_fork() or ADDRESS_VARIABLE in os.environ:
        return
    config.stash[_WARM] = warm = WarmServer(preload=_PRELOAD, env=kernel_environment()).start()
    os.environ[ADDRESS_VARIABLE] = warm.address  # the workers inherit it


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the warm process, if it is this run's."""
    if warm := config.stash.get(_WARM, None):
        os.environ.pop(ADDRESS_VARIABLE, None)
        warm.close()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Puts the strict notebook in the place of nbval's."""
    collectors = yield
    return [
        StrictNotebook.from_parent(parent, path=file_path)
        if type(collector) is IPyNbFile
        else collector
        for collector in collectors
    ]


class StrictNotebook(IPyNbFile):  # type: ignore[misc]
    """A notebook under test, and the session in which its cells run."""

    running: Session | None = None
    failed: StrictCell | None = None
    problem: Exception | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """Yields nbval's cells as strict ones."""
        self.cells = [
            StrictCell.from_parent(
                self, name=item.name, cell_num=item.cell_num, cell=item.cell, options=item.options
            )
            for item in super().collect()
        ]
        yield from self.cells

    def setup(self) -> None:
        """Reads the sanitising patterns; the kernel starts with the first cell that runs."""
        self.setup_sanitize_files()
        self._next = 0

    def teardown(self) -> None:
        """Ends the kernel."""
        session, self.running = self.running, None
        if session is not None:
            session.__exit__()

    def run_until(self, cell_num: int) -> None:
        """Runs the cells up to this one that have not run yet, stopping where one fails."""
        while self._next <= cell_num and self.failed is None:
            cell = self.cells[self._next]
            self._next += 1
            if not cell.options["skip"]:
                try:
                    cell.run_in(self._running_session())
                except Exception as problem:
                    self.failed, self.problem = cell, problem

    def _running_session(self) -> Session:
        if self.running is None:
            secs = self.config.option.nbval_cell_timeout
            self.running = Session(self.nb, cell_timeout_secs=secs).__enter__()
        return self.running


class StrictCell(IPyNbCell):  # type: ignore[misc]
    """One cell under test."""

    fresh: NotebookNode | None = None
    is_reported = False

    def setup(self) -> None:
        """Nothing to set up; nbval would mark the cell."""

    def run_in(self, session: Session) -> None:
        """Runs the cell."""
        self.fresh = session.run_cell(self._index, raises=bool(self.options["check_exception"]))

    def runtest(self) -> None:
        """Runs the cell, if its turn has come, and compares its outputs."""
        if self.options["skip"]:
            pytest.skip("tagged nbval-skip")
        notebook: StrictNotebook = self.parent
        notebook.run_until(self.cell_num)
        if notebook.failed is None and notebook.running and self._may_change(notebook.running):
            notebook.run_until(len(notebook.cells) - 1)
        if notebook.failed is self:
            self.is_reported = True
            assert notebook.problem is not None
            raise notebook.problem
        if self.fresh is None:
            self._report_not_run(notebook)
        self._check()

    @property
    def _index(self) -> int:
        return next(i for i, cell in enumerate(self.parent.nb.cells) if cell is self.cell)

    def _may_change(self, session: Session) -> bool:
        return session.can_be_updated(self._index)

    def _report_not_run(self, notebook: StrictNotebook) -> None:
        assert notebook.failed is not None
        reason = f"not run: {notebook.failed.name} before it failed"
        if notebook.failed.is_reported:
            pytest.skip(reason)
        pytest.fail(f"{reason}\n{notebook.problem}", pytrace=False)  # it was not selected itself

    def _check(self) -> None:
        assert self.fresh is not None
        if self.cell.source.strip() and self.cell.execution_count is None:
            self._fail("the stored cell was never executed (its execution_count is null)")
        if not self.options["check"]:
            return
        stored = coalesce_streams(self.cell.outputs)
        fresh = self.test_outputs = coalesce_streams(self.fresh.outputs)
        tolerance = compare.Tolerance.of_tags(tags_of(self.cell))
        limit = math.inf if self.config.option.other_versions else tolerance.picture_limit
        differences = list(compare.differences(stored, fresh, picture_limit=limit))
        close = compare.with_stored_numbers(stored, fresh, tolerance)
        if not differences and not self.compare_outputs(close, stored):
            differences.append("the texts differ")
        if differences:
            self._fail(
                "; ".join(differences), _beside(compare.render(stored), compare.render(fresh))
            )

    def sanitize(self, text: Any) -> Any:
        """Returns a text as it is compared."""
        text = super().sanitize(text)
        if isinstance(text, str) and self.config.option.other_versions:
            text = _VERSION.sub("0.0.0", text)
        return text

    def _fail(self, found: str, lines: Iterable[str] = ()) -> None:
        raise NotebookError(
            asked=f"{self.name} to give its stored outputs:\n{_indent(self.cell.source)}",
            found="\n".join([found, *(f"    {line}" for line in lines)]),
            do="`make notebooks` where the change is meant; else repair what changed it",
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> str:
        """Returns what is shown of a failure: the error says all that helps."""
        if isinstance(excinfo.value, NotebookError):
            return str(excinfo.value)
        return str(pytest.Item.repr_failure(self, excinfo))


def _beside(stored: list[str], fresh: list[str]) -> Iterator[str]:
    """Yields the lines that both have once, and each that differs as stored above fresh."""
    matcher = difflib.SequenceMatcher(None, stored, fresh, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield from (f"       | {line}" for line in stored[a:b])
        else:
            yield from (f"stored | {line}" for line in stored[a:b])
            yield from (f"fresh  | {line}" for line in fresh[c:d])


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
