"""Shows a sentence instead of an error while the answers that a cell needs are not written yet.

    with waits_for("recovers"):
        runs = run_and_kill(train)        # a stub raises NotImplementedError
        display(draw_resumed(...))

Until then the cell says what it waits for, and "run all" goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distlab.course.runs.tensorflow_log import quiet_tensorflow
from distlab.errors import DistlabError


@contextlib.contextmanager
def waits_for(*tasks: str) -> Iterator[None]:
    """Inside, a function that is not written yet, or that fails, ends the block with a sentence."""
    names, pronoun = " and ".join(tasks), "it" if len(tasks) == 1 else "them"
    try:
        with quiet_tensorflow():
            yield
    except NotImplementedError:
        print(f"This cell waits for {names}: write {pronoun} above, then run this cell again.")  # noqa: T201
    except DistlabError:
        raise
    except Exception as error:
        checks = " and ".join(f'dl.check("{task}")' for task in tasks)
        print(f"No result: your code ended with {type(error).__name__}: {error}")  # noqa: T201
        print(f"{checks} says more.")  # noqa: T201
