"""Measures one group of the support matrix's cells, in a process of its own.

python -m tools.support_group keras cells.json      # `tools/support_matrix.py` runs all of them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tools import support_strategies
from tools.support_cells import Cells


def main(group: str, path: str) -> None:
    """Measures one group of cells, and writes them to a file."""
    groups: dict[str, Callable[[], Cells]] = {
        "keras": support_strategies.in_one_process,
        "tf_keras": support_strategies.in_one_process_of_tf_keras,
        "workers": support_strategies.workers,
        "servers": support_strategies.servers,
        "features": lambda: _features(0),
        "more features": lambda: _features(1),
    }
    Path(path).write_text(json.dumps(groups[group]()), encoding="utf-8")


def _features(part: int) -> Cells:
    from tools import support_features  # it makes Keras objects: too early for the other groups

    return support_features.measure(part)


if __name__ == "__main__":
    main(*sys.argv[1:])
