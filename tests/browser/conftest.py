"""Chromium, a server in this event loop, and a page that is watched.

Nothing may leave the page's origin, break its policy, or be logged as an error, unless the test allows it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from tests.browser.fake import FakeServer, scripted

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (e) =>
  console.error(`policy violation: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""


def chromium_path() -> str:
    """Skips the test where there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no Chromium on PATH: looked for {', '.join(BROWSERS)}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=15_000)
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        yield chromium
        await chromium.close()


@pytest_asyncio.fixture(loop_scope="session")
async def fake() -> AsyncIterator[FakeServer]:
    async with scripted() as server:
        yield server


class Watch:
    """What a page did that it should not have done."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._allowed: list[str] = []
        self.complaints: list[str] = []

    def allow(self, pattern: str) -> None:
        """Complaints that match are part of the test."""
        self._allowed.append(pattern)

    def attach(self, page: Page) -> None:
        """Watches this page, and all others of its context from now on."""
        context = page.context
        context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        context.on("console", self._console)
        context.on("request", lambda request: self._address(request.url))
        context.on("page", self._sockets)
        self._sockets(page)

    def check(self) -> None:
        left = [c for c in self.complaints if not any(re.search(pattern, c) for pattern in self._allowed)]
        assert left == []

    def _sockets(self, page: Page) -> None:
        page.on("websocket", lambda socket: self._address(re.sub("^ws", "http", socket.url)))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _address(self, url: str) -> None:
        if not url.startswith((f"{self._origin}/", "data:")):
            self.complaints.append(f"left the origin: {url}")


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    # What moves without end keeps a core busy that other tests need.
    context = await browser.new_context(
        permissions=["clipboard-read", "clipboard-write"], reduced_motion="reduce"
    )
    await context.add_init_script(REPORT_VIOLATIONS)
    yield context
    await context.close()


@pytest.fixture
def watch(fake: FakeServer) -> Iterator[Watch]:
    watch = Watch(fake.origin)
    yield watch
    watch.check()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext, fake: FakeServer, watch: Watch) -> Page:
    page = await context.new_page()
    watch.attach(page)
    await page.goto(fake.origin)
    await expect(page.locator("body[data-ready]")).to_be_visible()
    return page
