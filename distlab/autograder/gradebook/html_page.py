"""The HTML frame of every page that the autograder writes; its policy blocks all scripts.

page("09_multi_worker, jane", "<p>...</p>")      # the title is a text, the body is HTML
"""

from __future__ import annotations

import hashlib
import re
from html import escape
from pathlib import Path

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:;
 form-action 'none'; base-uri 'none'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }}
section {{ margin: 1.5em 0; overflow-wrap: anywhere }}
.written {{ border-left: 4px solid #808080; padding: 0.1em 0.8em; margin: 0.5em 0 1em }}
.quiet, details > summary {{ color: #808080 }}
summary {{ cursor: pointer; margin: 0.3em 0 }}
pre {{ white-space: pre-wrap; font-size: 0.9em; line-height: 1.4 }}
pre.code, .lesson pre {{ border: 1px solid #80808066; border-radius: 4px; padding: 0.6em }}
pre.code {{ counter-reset: line }}
pre.code span::before {{ counter-increment: line; content: counter(line); color: #808080;
 display: inline-block; width: 2em }}
.lesson pre.output {{ border: none; padding: 0 0.6em }}
svg rect {{ fill: #0072b2 }}
svg line {{ stroke: #80808066 }}
img, svg {{ max-width: 100% }}
img {{ background: white }}
table {{ border-collapse: collapse }}
td, th {{ text-align: left; vertical-align: top; padding: 0.1em 1em 0.1em 0 }}
th {{ font-size: 0.9em; overflow-wrap: normal; vertical-align: bottom }}
td.number, th.number {{ text-align: right }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_OTHER = re.compile(r"[^\w.-]+")


def page(title: str, body: str) -> str:
    """Returns a page."""
    return _PAGE.format(title=escape(title), body=body)


def write_page(path: Path, text: str) -> None:
    """Writes a page, whatever letters are in it, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def file_name(text: str) -> str:
    """Returns a name for a file, without any folder in it; different texts have different names."""
    name = _OTHER.sub("_", text).strip(".")[:80]
    if name == text:
        return name
    return f"{name}-{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:8]}"
