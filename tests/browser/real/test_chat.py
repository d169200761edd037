"""The page with the real server and the default model, as `tickwire serve` starts them."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import Watch
from tests.browser.real.conftest import PATIENCE_MS, exactly, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Counts how often the answer on screen grew: proof that it came piece by piece, whatever the machine's speed.
COUNT_GROWTH = """
addEventListener("DOMContentLoaded", () => {
  let shown = 0;
  const counter = document.documentElement.dataset;
  counter.growth = 0;
  new MutationObserver(() => {
    const length = [...document.querySelectorAll(".prose")].at(-1)?.textContent.length ?? 0;
    if (length > shown) counter.growth = Number(counter.growth) + 1;
    shown = length;
  }).observe(document.querySelector("#transcript"), { childList: true, subtree: true, characterData: true });
});
"""


async def test_ask_watch_stop_and_come_back(context: BrowserContext, origin: str, watch: Watch) -> None:
    await context.add_init_script(COUNT_GROWTH)
    await set_up(context, **exactly(80))
    page: Page = await context.new_page()
    watch.attach(page)
    await page.goto(origin)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await expect(page.locator("#link .model")).not_to_be_empty()
    field = page.get_by_role("textbox", name="Message")
    answers = page.get_by_role("article", name="Answer")

    await field.fill("What is the capital of France? Answer in one sentence.")
    await page.keyboard.press("Enter")
    await expect(answers.last.locator(".figures")).to_contain_text("tokens/s", timeout=PATIENCE_MS)
    await expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=PATIENCE_MS)
    await expect(answers.last.locator(".prose")).to_contain_text(re.compile(r"\w"))
    first = await prose(answers.first)

    await field.fill("Tell me a very long story about a lighthouse keeper.")
    await page.keyboard.press("Enter")
    await page.evaluate("document.documentElement.dataset.growth = 0")
    await page.wait_for_function("() => document.documentElement.dataset.growth >= 5", timeout=PATIENCE_MS)
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(answers.last.locator(".ending")).to_have_text("Stopped")
    second = await prose(answers.last)

    await page.reload()
    await expect(answers).to_have_count(2)
    assert [await prose(answers.first), await prose(answers.last)] == [first, second]
    await expect(answers.last.locator(".ending")).to_have_text("Stopped")


async def prose(answer: Locator) -> str:
    return await answer.locator(".prose").inner_text()
