"""Questions asked anew, answers given again and gone on with, by the real server and model."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.person import ask, copied, last_answer
from tests.browser.real.conftest import PATIENCE_MS, exactly, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ended(page: Page) -> None:
    await expect(last_answer(page).get_by_role("button", name="Delete answer")).to_be_visible(
        timeout=PATIENCE_MS
    )


async def test_ask_anew_go_back_and_forth_and_answer_again(context: BrowserContext, page: Page) -> None:
    await set_up(context, **exactly(20))
    await page.reload()
    prose = last_answer(page).locator(".prose")
    await ask(page, "What is the capital of France? Answer in one short sentence.")
    await ended(page)
    figures = last_answer(page).locator(".figures")
    await expect(figures).to_contain_text(
        re.compile(r"\d+ tokens.*tokens/s.*first token \d.*\d+ prompt tokens")
    )
    await expect(page.locator("#context")).to_contain_text(re.compile(r"\d+ of [\d,]+ tokens"))
    france = await prose.inner_text()

    await page.get_by_role("button", name="Edit question").click()
    await page.get_by_role("textbox", name="Question to ask instead").fill(
        "What is the capital of Italy? Answer in one short sentence."
    )
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("group", name="Question 2 of 2")).to_be_visible()
    await ended(page)
    italy = await prose.inner_text()
    await page.get_by_role("button", name="Previous question").click()
    await expect(prose).to_have_text(france, use_inner_text=True)
    await page.get_by_role("button", name="Next question").click()
    await expect(prose).to_have_text(italy, use_inner_text=True)

    await page.get_by_role("button", name="Answer again").click()
    await expect(page.get_by_role("group", name="Answer 2 of 2")).to_be_visible()
    await ended(page)
    await page.get_by_role("button", name="Previous answer").click()
    await expect(prose).to_have_text(italy, use_inner_text=True)


async def test_stop_go_on_and_ask_more(context: BrowserContext, page: Page) -> None:
    await set_up(context, **exactly(300))
    await page.reload()
    answer = last_answer(page)
    await ask(page, "Tell me a very long story about a lighthouse keeper.")
    await expect(answer.locator(".figures")).to_contain_text(
        re.compile(r"\d+ tokens.*tokens/s"), timeout=PATIENCE_MS
    )
    await page.keyboard.press("Escape")
    await expect(answer.locator(".ending")).to_have_text("Stopped")
    copy = answer.get_by_role("button", name="Copy answer")
    before = await copied(page, copy)

    await answer.get_by_role("button", name="Continue").click()
    # From now on its figures are of what is added.
    await expect(answer).to_have_attribute("aria-busy", "true")
    await expect(answer.locator(".figures")).to_contain_text("tokens/s", timeout=PATIENCE_MS)
    await page.keyboard.press("Escape")
    await expect(answer.locator(".ending")).to_have_text("Stopped")
    await expect(answer.locator(".figures")).to_contain_text("continued")
    after = await copied(page, copy)
    assert after.startswith(before)
    assert len(after) > len(before)
    assert after.count(before) == 1

    await ask(page, "Say goodbye in one word.")
    await expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    await expect(answer.locator(".prose")).not_to_be_empty(timeout=PATIENCE_MS)
    await page.keyboard.press("Escape")
    await ended(page)
    await expect(answer.locator(".figures")).to_contain_text(re.compile(r"\d+ prompt tokens, \d+ cached"))
