"""The page and the whole server over the fake model: what a reload finds, and what another tab."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.app.harness import RunningServer, eventually, running, said
from tests.browser.conftest import Watch
from tests.browser.person import ask, is_kept, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def serving(context: BrowserContext, **settings: Any) -> AsyncIterator[tuple[RunningServer, Page]]:
    """A server that computes only what it is told to, and its page."""
    async with running(max_model_len=200, **settings) as server:
        watch = Watch(server.url)
        page = await context.new_page()
        watch.attach(page)
        await page.goto(server.url)
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        server.gate.close()
        yield server, page
        watch.check()
        await page.close()


async def whole_text(page: Page) -> str:
    """Of the last answer, which has ended with all its tokens."""
    figures = last_answer(page).locator(".figures")
    await expect(figures).to_contain_text("Cut at the token limit")
    tokens = re.search(r"(\d+) tokens", await figures.inner_text())
    assert tokens is not None
    await last_answer(page).get_by_role("button", name="Copy answer").click()
    text: str = await page.evaluate("navigator.clipboard.readText()")
    assert text == said("Hello", int(tokens[1]))
    return text


async def test_a_reload_at_token_20_loses_nothing(context: BrowserContext) -> None:
    async with serving(context) as (server, page):
        await ask(page, "Hello")
        server.gate.step(21)
        await expect(last_answer(page)).to_have_attribute("data-state", "streaming")
        await page.reload()
        await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
        await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
        server.gate.open()
        assert len(await whole_text(page)) > 100
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_reload_before_the_first_token_and_two_tabs(context: BrowserContext) -> None:
    async with serving(context) as (server, page):
        await ask(page, "Hello")
        await is_kept(page)
        await page.reload()
        await expect(last_answer(page)).to_contain_text("Waiting for the first token")
        other = await context.new_page()
        await other.goto(page.url)
        await expect(last_answer(other)).to_contain_text("Waiting for the first token")
        server.gate.open()
        assert await whole_text(page) == await whole_text(other)
        await other.close()


async def test_an_answer_that_nobody_came_back_to_says_so(context: BrowserContext) -> None:
    async with serving(context, resume_grace_s=0) as (server, page):
        await ask(page, "Hello")
        server.gate.step(21)
        await expect(last_answer(page)).to_have_attribute("data-state", "streaming")
        await page.goto("about:blank")
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await page.goto(server.url)
        await expect(last_answer(page).locator(".ending")).to_have_text("Interrupted")
        await expect(last_answer(page).locator(".failure")).to_contain_text("Nobody read the answer")
        await expect(last_answer(page).locator(".prose")).not_to_be_empty()
