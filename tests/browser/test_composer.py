"""The box one writes in: what is written there stays until it is sent."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.fake import FakeServer, is_saying, says
from tests.browser.person import ask, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAFTS = "JSON.parse(localStorage.getItem('tickwire.drafts') ?? '{}')"


async def drafts_are(page: Page, condition: str) -> None:
    """Waits until of all `drafts` this holds."""
    await page.wait_for_function(f"() => {{ const drafts = {DRAFTS}; return {condition}; }}")


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


async def answered(page: Page, fake: FakeServer, question: str) -> None:
    fake.scripts.append(says("Yes."))
    await ask(page, question)
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")


async def test_each_conversation_keeps_its_draft(page: Page, fake: FakeServer) -> None:
    await answered(page, fake, "First")
    await message(page).fill("of the first")
    await page.get_by_role("button", name="New chat").click()
    await expect(message(page)).to_have_value("")
    await message(page).fill("of the next")
    await page.get_by_role("button", name="First", exact=True).click()
    await expect(message(page)).to_have_value("of the first")
    await message(page).fill("of the first, longer")
    # At once: what was typed last must not be lost.
    await page.reload()
    await expect(message(page)).to_have_value("of the first, longer")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await page.get_by_role("button", name="New chat").click()
    await expect(message(page)).to_have_value("of the next")

    await answered(page, fake, "Second")
    await drafts_are(page, "Object.values(drafts).join() === 'of the first, longer'")
    await page.reload()
    await expect(last_answer(page)).to_contain_text("Yes.")
    await expect(message(page)).to_have_value("")


async def test_drafts_take_a_bounded_room(page: Page) -> None:
    await page.evaluate(
        """() => {
          const drafts = Object.fromEntries([0, 1, 2, 3].map((i) => [`chat${i}`, String(i).repeat(150_000)]));
          localStorage.setItem("tickwire.drafts", JSON.stringify(drafts));
        }"""
    )
    await message(page).fill("newest")
    await drafts_are(page, "Object.keys(drafts).at(-1) === 'null'")
    assert await page.evaluate(f"Object.keys({DRAFTS})") == ["chat1", "chat2", "chat3", "null"]
    # Of conversations that are not there nothing is kept.
    await page.reload()
    await drafts_are(page, "Object.keys(drafts).join() === 'null'")
    await expect(message(page)).to_have_value("newest")


async def test_a_long_text_can_be_pasted(page: Page, fake: FakeServer) -> None:
    text = "\n".join(f"Line {i} of a long text that somebody has copied." for i in range(2000))
    await page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    await message(page).press("Control+v")
    await expect(message(page)).to_have_value(text)
    box = await message(page).bounding_box()
    assert box is not None
    assert 150 < box["height"] <= 288
    fake.scripts.append(says("Yes."))
    await page.keyboard.press("Enter")
    await expect(last_answer(page)).to_contain_text("Yes.")
    assert fake.requests[0]["input"][0]["content"] == text


async def test_while_an_answer_runs_a_draft_can_be_written_and_waits(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(is_saying("Once"))
    await ask(page, "A story?")
    await expect(last_answer(page)).to_contain_text("Once")
    await ask(page, "And then?")
    await expect(message(page)).to_have_value("And then?")
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await answered_by_enter(page, fake)


async def answered_by_enter(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("The end."))
    await message(page).press("Enter")
    await expect(last_answer(page)).to_contain_text("The end.")
    assert len(fake.requests) == 2
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()


async def test_arrow_up_in_an_empty_box_edits_the_last_question(page: Page, fake: FakeServer) -> None:
    await answered(page, fake, "2 + 2?")
    await message(page).fill("Something")
    await page.keyboard.press("ArrowUp")
    await expect(message(page)).to_be_focused()
    await message(page).fill("")
    await page.keyboard.press("ArrowUp")
    field = page.get_by_role("log").get_by_role("textbox")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("2 + 2?")
