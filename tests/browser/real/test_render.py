"""Code that the real model writes, as a reader sees and copies it."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.person import ask, copied, last_answer
from tests.browser.real.conftest import PATIENCE_MS, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")

COLOUR = "(element) => getComputedStyle(element).color"


async def test_code_of_the_model_is_a_figure_that_can_be_copied(context: BrowserContext, page: Page) -> None:
    await set_up(context, temperature=0, max_output_tokens=50)
    await page.reload()
    await ask(page, "Write a Python function that reverses a string. Answer with one short code block.")
    figure = last_answer(page).locator("figure.code")
    await expect(figure.locator("code")).to_contain_text("def reverse_string", timeout=PATIENCE_MS)
    await expect(last_answer(page)).not_to_have_attribute("aria-busy", "true", timeout=PATIENCE_MS)

    await expect(figure).to_have_count(1)
    await expect(figure.locator("figcaption span")).to_have_text("python")
    keyword = figure.locator(".hl.keyword").first
    await expect(keyword).to_have_text("def")
    assert await keyword.evaluate(COLOUR) != await figure.locator("code").evaluate(COLOUR)
    shown = await figure.locator("code").inner_text()
    assert "```" not in shown
    assert "\n    return " in shown, "lines stand as they were written"

    assert await copied(page, figure.get_by_role("button", name="Copy code")) == shown
    await page.reload()
    await expect(keyword).to_be_visible()
    assert await figure.locator("code").inner_text() == shown
