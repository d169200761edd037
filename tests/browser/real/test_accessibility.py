"""The page without a mouse and without looking at it, with the real server and the default model."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.real.conftest import PATIENCE_MS, exactly, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_chat_by_keys_alone_and_heard_not_seen(context: BrowserContext, page: Page) -> None:
    await set_up(context, **exactly(60) | {"temperature": 0})
    await page.reload()
    field = page.get_by_role("textbox", name="Message")
    await page.keyboard.press("Control+Shift+O")
    await expect(field).to_be_focused()
    await page.keyboard.type("What is the capital of France? Answer in one sentence.")
    await page.keyboard.press("Enter")
    heard = page.locator("body > .announcer p")
    await expect(heard.last).to_have_text(re.compile("End of the answer|Cut at"), timeout=PATIENCE_MS)
    answer = page.get_by_role("article", name="Answer").last
    await page.keyboard.press("F6")
    await expect(answer).to_be_focused()
    await expect(answer.get_by_role("heading", name="Answer", level=2)).to_be_attached()
    words = re.findall(r"\w+", await answer.locator(".prose").inner_text())
    said = re.findall(r"\w+", " ".join(await heard.all_inner_texts()))
    assert said[: len(words)] == words

    await page.keyboard.press("/")
    await expect(field).to_be_focused()
    await page.keyboard.press("Control+Shift+Enter")
    await expect(answer).to_have_attribute("aria-busy", "true")
    await page.keyboard.press("Escape")
    await expect(answer).not_to_have_attribute("aria-busy", "true", timeout=PATIENCE_MS)
    await page.keyboard.press("Alt+Shift+ArrowLeft")
    await expect(heard.last).to_contain_text("1 of 2")
    assert re.findall(r"\w+", await answer.locator(".prose").inner_text()) == words
    await page.keyboard.press("Control+/")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+Shift+Backspace")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
    await expect(heard.last).to_have_text("Deleted")
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    await expect(field).to_be_focused()
