"""The engine view over the real engine: work is sent, seen, and gone."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.real.conftest import PATIENCE_MS

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What was seen at its most, while nobody waited for it.
WATCH = """() => {
  const most = { rows: 0, held: 0, worked: false };
  const seen = (selector) => {
    const words = document.querySelector(selector).textContent;
    return Number.parseInt(words.replaceAll(",", "")) || 0;
  };
  new MutationObserver(() => {
    most.rows = Math.max(most.rows, seen("#engine-view .rows dd b"));
    most.worked ||= document.querySelector("#engine-view .head .state").textContent === "Working";
    most.held = Math.max(most.held, seen("#engine-view .blocks .readout"));
  }).observe(document.querySelector("#engine-view"), { subtree: true, childList: true, characterData: true });
  window.most = most;
}"""


async def test_work_is_seen_and_gone(page: Page) -> None:
    await page.get_by_role("link", name="Engine").click()
    panel = page.locator("#engine-view")
    await expect(panel.locator(".free dd")).to_have_text(re.compile(r"^[\d,]+of [\d,]+$"))
    await page.evaluate(WATCH)
    await page.get_by_role("button", name="Send it some work").click()
    await expect(page.get_by_role("button", name="Send it some work")).to_be_visible(timeout=PATIENCE_MS)
    signs = panel.locator(".answers .sign")
    assert len(set(await signs.all_inner_texts())) == 6
    for answer in await panel.locator(".answers li").all():
        await expect(answer.locator(".tail")).to_have_text(re.compile(r"\w{3}"))
        await expect(answer.locator(".state")).to_have_text(re.compile(r"^\d+ tokens?$"))
    most = await page.evaluate("window.most")
    assert most["worked"]
    assert most["rows"] >= 2
    assert most["held"] >= 6
    await expect(panel.locator(".head .state")).to_contain_text("Idle")
    await expect(panel.locator(".rows dd")).to_have_text(re.compile("^0of "))
    await expect(panel.locator(".blocks .readout")).to_have_text(re.compile(r"^0 held, [1-9]\d* kept, "))
    await expect(panel.locator(".verdict")).to_have_text(
        re.compile("^Static batching would have wasted [1-9]")
    )

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/debug/" in request.url else None)
    await page.get_by_role("button", name="Back to the chat").click()
    asked.clear()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await page.evaluate("fetch('/livez').then(() => fetch('/livez'))")
    assert asked == []
