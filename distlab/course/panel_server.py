"""Gives JupyterLab's left side the map and the learner's progress, as JSON at `distlab/course`.

JupyterLab loads this as a server extension (`distlab.course.lab` asks for it). Only a browser with
the server's token gets an answer, and nothing is written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distlab.course.course_page import course_state


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "distlab.course.panel_server"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado.web import authenticated

    class CourseHandler(APIHandler):  # type: ignore[misc,unused-ignore]
        @authenticated  # type: ignore[misc,untyped-decorator,unused-ignore]
        def get(self) -> None:
            self.finish(json.dumps(course_state(Path(server.root_dir))))

    pattern = url_path_join(server.web_app.settings["base_url"], "distlab", "course")
    server.web_app.add_handlers(".*$", [(pattern, CourseHandler)])
