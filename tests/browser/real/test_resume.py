"""Real answers that are cut: they go on where they were, and nothing comes twice.

The oracle is the server, which keeps the responses that it has given.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.conftest import Watch
from tests.browser.person import Tab, ask, last_answer
from tests.browser.real.conftest import PATIENCE_MS, exactly, served, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORY = "Tell me a very long story about a lighthouse keeper."


async def opened(context: BrowserContext, address: str) -> Page:
    page = await context.new_page()
    await page.goto(address)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await expect(page.locator("body[data-ready]")).to_be_visible()
    return page


async def is_under_way(page: Page) -> None:
    """About twenty tokens are there, and more are to come."""
    # Looked for in every frame, as a part of it has passed by the time that it is seen.
    await page.wait_for_function(
        "() => [...document.querySelectorAll('.prose')].at(-1)?.textContent.length >= 60", timeout=PATIENCE_MS
    )
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")


async def is_done(page: Page) -> None:
    await expect(last_answer(page)).not_to_have_attribute("aria-busy", "true", timeout=PATIENCE_MS)


async def check_whole(page: Page, origin: str) -> list[dict[str, Any]]:
    """All answers that the page keeps are, to the letter, those that the server has given."""
    answers = [message for message in await Tab(page).kept() if message["role"] == "assistant"]
    async with httpx.AsyncClient(base_url=origin, verify=False) as client:
        for answer in answers:
            response = (await client.get(f"/v1/responses/{answer['responseId']}")).json()
            assert answer["text"] == response["output"][0]["content"][0]["text"]
            assert answer["stats"]["tokens"] == response["usage"]["output_tokens"]
    return answers


async def test_a_reload_in_the_middle_and_a_tab_that_joins(
    context: BrowserContext, page: Page, origin: str
) -> None:
    await set_up(context, **exactly(100))
    await page.reload()
    await ask(page, STORY)
    await is_under_way(page)
    await page.reload()
    other = await opened(context, page.url)
    for tab in (page, other):
        await is_done(tab)
    (answer,) = await check_whole(page, origin)
    assert answer["status"] == "length"
    shown = [await last_answer(tab).locator(".prose").inner_text() for tab in (page, other)]
    assert shown[0] == shown[1]


async def test_ten_seconds_without_a_network(
    context: BrowserContext, page: Page, origin: str, watch: Watch
) -> None:
    # The browser says so of every try.
    watch.allow("ERR_INTERNET_DISCONNECTED")
    await set_up(context, **exactly(250))
    await page.reload()
    await ask(page, STORY)
    await is_under_way(page)
    await context.set_offline(True)
    await page.wait_for_function("!navigator.onLine")
    before = await last_answer(page).locator(".prose").inner_text()
    # Ten real seconds are the point: the server writes on, and its patience and the page's run out or do not.
    await asyncio.sleep(10)
    await expect(page.locator("#link")).not_to_have_attribute("data-state", "open")
    assert await last_answer(page).locator(".prose").inner_text() == before
    await context.set_offline(False)
    await is_done(page)
    (answer,) = await check_whole(page, origin)
    assert len(answer["text"]) > len(before), "the network went while it was being written"


async def test_five_chats_at_once(context: BrowserContext, page: Page, origin: str) -> None:
    await set_up(context, **exactly(150))
    await page.reload()
    animals = ["otters", "herons", "badgers", "lynxes", "toads"]
    for animal in animals:
        await page.get_by_role("button", name="New chat").first.click()
        await ask(page, f"Write a long story about {animal}.")
    await expect(page.get_by_role("img", name="answering")).to_have_count(5)
    await page.reload()
    for animal in animals:
        await page.locator("#conversations").get_by_text(f"Write a long story about {animal}.").click()
        await is_done(page)
    answers = await check_whole(page, origin)
    assert len({answer["text"] for answer in answers}) == 5


async def test_a_server_that_is_killed_and_comes_back(
    context: BrowserContext, default_model_dir: Path
) -> None:
    await set_up(context, **exactly(120) | {"temperature": 0})
    with served(default_model_dir) as (origin, server):
        watch = Watch(origin)
        # The browser says so of every try while the server is away.
        watch.allow("WebSocket connection to|ERR_CONNECTION_REFUSED")
        page = await opened(context, origin)
        watch.attach(page)
        await ask(page, STORY)
        await is_under_way(page)
        server.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
        await expect(page.locator("#link")).not_to_have_attribute("data-state", "open")
        with served(default_model_dir, urlsplit(origin).port or 0) as (again, _):
            assert again == origin
            await is_done(page)
            await expect(last_answer(page).locator(".figures")).to_contain_text("continued")
            await page.get_by_role("button", name="New chat").first.click()
            await ask(page, STORY)
            await is_done(page)
            answers = [each for each in await Tab(page).kept() if each["role"] == "assistant"]
        watch.check()
    cut, uncut = sorted(answers, key=lambda answer: answer["created"])
    assert cut["continued"] == 1
    assert cut["text"].startswith(uncut["text"]), "it went on as if nothing had happened, and further"
