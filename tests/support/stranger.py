"""A stranger's environment: a wheel, what it declares without extras, an empty home, no clone.

    stranger = make_stranger(wheel, folder)
    done = stranger.distlab("lab mine --lay-only")      # in a folder of their own

The packages that the wheel needs are links to those of the running environment; no other can be
imported.
"""

import importlib.metadata
import os
import subprocess
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Stranger:
    """Runs Python in that environment."""

    python_path: Path
    folder: Path  # where commands run, empty at first
    home: Path

    def python(self, code, *arguments, folder=None):
        # Isolated (-I): neither this folder nor PYTHONPATH may bring the clone's distlab in.
        return subprocess.run(
            [self.python_path, "-I", "-c", code, *arguments],
            cwd=folder or self.folder,
            env={"HOME": str(self.home), "PATH": os.defpath},
            capture_output=True,
            text=True,
        )

    def distlab(self, line):
        return self.python("import distlab.cli; exit(distlab.cli.main())", *line.split())

    def files(self):
        return {path for path in self.folder.rglob("*") if path.is_file()}


def make_stranger(wheel, folder):
    """Returns a new environment with the wheel and what it needs."""
    root, work, home = (folder / name for name in ("python", "work", "home"))
    venv.create(root, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(root), "platbase": str(root)}))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (own,) = importlib.metadata.distributions(name="distlab", path=[str(site)])
    for distribution in _needs_of(own):
        _link(distribution, site)
    work.mkdir()
    home.mkdir()
    return Stranger(root / "bin" / "python", work, home)


def _needs_of(distribution):
    """Returns what pip would install with a distribution, and with that."""
    found, waiting = {}, [(distribution, frozenset())]
    while waiting:
        current, extras = waiting.pop()
        for need in map(Requirement, current.requires or ()):
            contexts = [{"extra": extra} for extra in extras or {""}]
            key = canonicalize_name(need.name), frozenset(need.extras)
            asked = need.marker is None or any(map(need.marker.evaluate, contexts))
            if asked and key not in found:
                found[key] = importlib.metadata.distribution(need.name)
                waiting.append((found[key], key[1]))
    return found.values()


def _link(distribution, site):
    for file in distribution.files:
        if file.parts[0] in ("..", "__pycache__"):
            continue
        top = Path(distribution.locate_file(file.parts[0]))
        # The folder of a namespace is shared by distributions, of which some are not needed.
        is_shared = top.is_dir() and not (top / "__init__.py").is_file()
        name = Path(*file.parts[: 1 + is_shared])
        (site / name).parent.mkdir(exist_ok=True)
        if not (site / name).is_symlink():
            (site / name).symlink_to(distribution.locate_file(name))
