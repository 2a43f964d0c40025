"""What a package index shows: addresses, and README with links that work outside of the clone.

The address of the repository stands in pyproject.toml, once. In the clone README's links stay
relative, so that they work there, in a fork and on every branch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or a picture of Markdown that has no scheme and is no heading of its own page.
_RELATIVE = re.compile(r"(?P<kind>!?)(?P<text>\[[^][]*\])\((?![a-z]+:|#)(?P<path>[^()\s]+)\)")


class PackageMetadata(MetadataHookInterface):
    """Adds to the metadata what depends on the repository's address."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"]
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/tree/HEAD/docs",
            "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository),
        }


def with_absolute_links(text: str, repository: str) -> str:
    """Returns Markdown whose relative links lead into the repository, pictures to their bytes."""

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link["kind"] else "blob"
        return f"{link['kind']}{link['text']}({repository}/{view}/HEAD/{link['path']})"

    return _RELATIVE.sub(absolute, text)
