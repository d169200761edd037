"""Virtual environments for the clients that tests drive: each has its own, for their pins contradict ours and
each other's.

Knows: making one once, whichever process asks first. Does not know: what a client is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".venvs"
PATIENCE = 600.0
"""Seconds that an installation may take."""


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment that has `requirements` installed; made on first use and kept, until the
    requirements change.

    Raises:
        RuntimeError: the installation failed; the message is pip's.
    """
    place = ENVIRONMENTS / name
    python, stamp = place / "bin" / "python", place / "complete"
    wanted = "\n".join(requirements)
    ENVIRONMENTS.mkdir(exist_ok=True)
    with FileLock(ENVIRONMENTS / f"{name}.lock", timeout=PATIENCE):
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            # Our pip installs into it: an own one would take longer than what it has to install. Python
            # compiles what is imported; a client imports a small part of its packages.
            venv.create(place, with_pip=False)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
            done = subprocess.run(
                [*pip, "install", "--quiet", "--no-compile", *requirements],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{name}: {', '.join(requirements)} could not be installed: {done.stderr}")
            stamp.write_text(wanted)
    return python
