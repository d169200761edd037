"""What Lighthouse says of the page: accessibility and best practices, whole."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from tests.browser.conftest import CHROMIUM_ARGS, chromium_path
from tests.browser.fake import FakeServer
from tests.clients.node import node_environment

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = [
    "--only-categories=accessibility,best-practices",
    "--output=json",
    "--quiet",
    "--no-enable-error-reporting",
    # How fast the page is on a slow telephone is not asked.
    "--throttling-method=provided",
    "--disable-full-page-screenshot",
]


async def test_lighthouse_has_nothing_to_say(fake: FakeServer) -> None:
    node = node_environment()
    lighthouse = node.packages / "lighthouse" / "cli" / "index.js"
    flags = f"--chrome-flags={' '.join(CHROMIUM_ARGS)}"
    process = await asyncio.create_subprocess_exec(
        *(str(node.executable), str(lighthouse), fake.origin, *ASKED, flags),
        env={**os.environ, "CHROME_PATH": chromium_path()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    report = json.loads(output)
    assert "runtimeError" not in report, report["runtimeError"]
    wrong = [audit["title"] for audit in report["audits"].values() if audit["score"] not in (1, None)]
    scores = {name: category["score"] for name, category in report["categories"].items()}
    assert (scores, wrong) == ({"accessibility": 1, "best-practices": 1}, [])
