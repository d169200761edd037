"""One real server with the default model, as `tickwire serve` starts it, and pages of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.conftest import Watch

PATIENCE_MS = 120_000
"""How long an answer of the model may take on a busy machine."""


@contextlib.contextmanager
def served(model: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of its own process: where it is, and the process, which may be ended before."""
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--model", str(model)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TICKWIRE_")}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.search(r"http://[^\s/]+", line):
                yield found[0], server
                break
        else:
            pytest.fail(f"the server ended with {server.wait()} before it was ready")
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


@pytest.fixture(scope="session")
def origin(default_model_dir: Path) -> Iterator[str]:
    with served(default_model_dir) as (origin, _):
        yield origin


@pytest.fixture
def watch(origin: str) -> Iterator[Watch]:
    watch = Watch(origin)
    yield watch
    watch.check()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext, origin: str, watch: Watch) -> Page:
    page = await context.new_page()
    watch.attach(page)
    await page.goto(origin)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await expect(page.locator("body[data-ready]")).to_be_visible()
    return page


def exactly(tokens: int) -> dict[str, Any]:
    """For `set_up`: answers drawn as the page's first preset has it, so long whatever is drawn."""
    return {"temperature": 0.6, "top_p": 0.95, "min_tokens": tokens, "max_output_tokens": tokens}


async def set_up(context: BrowserContext, **sampling: Any) -> None:
    """What this browser has chosen for its new chats, once its pages are opened or reloaded."""
    setup = {"model": None, "system": "", "sampling": sampling}
    chosen = json.dumps(json.dumps({"setup": setup}))
    # A page that has no address yet has no storage either.
    keep = f"localStorage.setItem('tickwire.preferences', {chosen})"
    await context.add_init_script(f"if (location.origin !== 'null') {keep}")
