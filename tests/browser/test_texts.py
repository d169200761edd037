"""The page in other languages: whose lines run the other way, and words of one in a page of another."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, says
from tests.browser.languages import in_other_words
from tests.browser.views import Tour, last_answer_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_from_right_to_left_everything_changes_sides(
    context: BrowserContext, fake: FakeServer, watch: Watch
) -> None:
    page = await in_other_words(context, fake, "rtl", 1440)
    watch.attach(page)
    fake.scripts.append(says("Left to right.\n\nنعم."))
    await Tour(page, fake).ask()
    await expect(last_answer_of(page)).to_contain_text("نعم")
    sides = await page.evaluate(
        """() => {
          const box = (selector) => document.querySelector(selector).getBoundingClientRect();
          const middle = ({ x, width }) => x + width / 2;
          return {
            list: innerWidth - box("#sidebar").right,
            question: middle(box(".question")) < middle(box("#transcript")),
            send: middle(box("#composer [type=submit]")) < middle(box("#composer")),
          };
        }"""
    )
    assert sides == {"list": 0, "question": True, "send": True}
    directions = "(ps) => ps.map((p) => getComputedStyle(p).direction)"
    assert await page.locator(".prose p").evaluate_all(directions) == ["ltr", "rtl"]


async def test_words_that_run_the_other_way_do_so_in_an_english_page(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("نعم.\n\n- واحد\n- اثنان"))
    await page.get_by_role("textbox", name="Message").fill("هل تتكلم العربية؟")
    direction = "(element) => getComputedStyle(element).direction"
    assert await page.get_by_role("textbox", name="Message").evaluate(direction) == "rtl"
    await page.keyboard.press("Enter")
    await expect(last_answer_of(page)).to_contain_text("نعم")
    for theirs in (".question", ".prose p", ".prose li >> nth=0", "#conversations .title"):
        assert await page.locator(theirs).evaluate(direction) == "rtl", theirs
    assert await page.locator("body").evaluate(direction) == "ltr"
