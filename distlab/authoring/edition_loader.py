"""Runs the answers of one edition of an exercise without a kernel, and returns their names.

names = load_edition(Page(root, "00_start_here", "solution"))
names["split"](10, 4)                   # [3, 3, 3, 1]
"""

from __future__ import annotations

import ast
from typing import Any

from distlab.authoring.notebook_text import plain_python
from distlab.authoring.source import Page, draft_page
from distlab.course.markup import GIVEN, TASK
from distlab.source_lines import keep_lines


def load_edition(page: Page) -> dict[str, Any]:
    """Runs the cells that begin `# task: name` or `# given`, and of others only the imports."""
    names: dict[str, Any] = {"__name__": f"{page.edition}_of_{page.stem}"}
    for index, cell in enumerate(draft_page(page).notebook.cells):
        if cell.cell_type != "code":
            continue
        text = cell.source
        # AutoGraph and tracebacks ask for the source of what runs here.
        file = f"<{page.stem} {page.edition}, cell {index}>"
        keep_lines({file: text.splitlines(keepends=True)})
        if TASK.match(text) or text.startswith(GIVEN):
            exec(compile(text, file, "exec"), names)
        else:
            imports = [line for line in ast.parse(plain_python(text)).body if _is_import(line)]
            exec(compile(ast.Module(imports, []), file, "exec"), names)
    return names


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)
