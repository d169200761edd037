"""The search over all chats: what it finds, in what order, and where it leads."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.records import conversation, keep

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = 3_600_000
SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"

COUNT_READS = """() => {
  window.reads = 0;
  const { getAll } = IDBObjectStore.prototype;
  IDBObjectStore.prototype.getAll = function (...args) {
    if (this.name === "messages" && !args[0]) window.reads++;
    return getAll.apply(this, args);
  };
}"""


async def search(page: Page, words: str) -> Locator:
    """What is found, once all messages have been looked at."""
    field, state = page.get_by_role("combobox", name="Search"), page.locator("#search .state")
    # What it says of other words is gone then.
    await field.fill("")
    await expect(state).to_be_empty()
    await field.fill(words)
    await expect(state).to_contain_text("result")
    return page.get_by_role("option")


async def test_words_are_found_whatever_their_case_and_accents(page: Page) -> None:
    await keep(
        page,
        conversation(
            "Dessert", "What is this?", "A CRÈME brulée from ﬁne cream, 2㎏, in Île-de-France.", age=HOUR
        ),
        conversation("Crème brûlée at home", "How?", "Slowly.", age=3 * HOUR),
        conversation("CREME BRULEE again", "Why?", "Hm.", age=2 * HOUR),
        conversation("Other", "Only creme", "here.", age=0),
    )
    await page.evaluate(COUNT_READS)
    await page.keyboard.press("Control+k")
    options = await search(page, "brulee creme")
    await expect(options.locator(".title")).to_have_text(
        ["CREME BRULEE again", "Crème brûlée at home", "Dessert"]
    )
    await expect(options.nth(1).locator("mark")).to_have_text(["Crème", "brûlée"])
    await expect(options.nth(2).locator("mark")).to_have_text(["CRÈME", "brulée"])
    await expect(options.nth(2).locator("p")).to_contain_text("Answer A CRÈME brulée")
    options = await search(page, "fin k ile")
    await expect(options.locator("mark")).to_have_text(["ﬁn", "㎏", "Île"])
    # A title may have one word, and the text another.
    options = await search(page, "dessert cream")
    await expect(options.locator(".title")).to_have_text(["Dessert"])
    await page.get_by_role("combobox", name="Search").fill("nowhere")
    await expect(page.locator("#search .state")).to_have_text("Nothing found.")
    assert await page.evaluate("reads") == 1


async def test_a_message_is_opened_where_it_stands_on_its_branch(page: Page) -> None:
    texts = [f"Line {n}\n" * 12 for n in range(10)]
    await keep(page, conversation("Long", *texts, branches={3: "The heron fishes at dawn."}))
    await page.get_by_role("button", name="Search", exact=True).click()
    options = await search(page, "HERON")
    await expect(options).to_have_count(1)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    found = page.locator("#transcript .turn.found")
    await expect(found).to_contain_text("The heron fishes at dawn.")
    await expect(found).to_be_in_viewport()
    await page.keyboard.press("Control+k")
    options = await search(page, "line")
    await page.keyboard.press("ArrowUp")
    await expect(options.last).to_have_attribute("aria-selected", "true")
    chosen = await page.get_by_role("combobox").get_attribute("aria-activedescendant")
    assert chosen == await options.last.get_attribute("id")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    # The newest message: the other branch is back.
    await expect(page.locator("#transcript .turn.found")).to_contain_text("Line 9")
    await expect(page.get_by_text("The heron fishes")).to_have_count(0)


async def test_a_chat_is_found_once_by_the_question_it_is_called_after(page: Page) -> None:
    question = "How does a heron fish at dawn, when the light is low and the river"
    await keep(
        page,
        conversation(f"{question}…", f"{question} is cold?", "A heron waits."),
        conversation("Birds", "What is a heron?", "A bird."),
    )
    await page.keyboard.press("Control+k")
    options = await search(page, "heron")
    await expect(options.locator(".title")).to_have_text([f"{question}…", f"{question}…", "Birds"])
    await expect(options.locator("p")).to_have_text(["Answer A heron waits.", "You What is a heron?"])
    # What the title leaves out is found where it stands.
    options = await search(page, "cold")
    await expect(options.locator("p")).to_contain_text(["is cold?"])


async def test_what_people_wrote_stays_text(page: Page) -> None:
    await keep(page, conversation(f"Title {SCRIPT}", f"Question {SCRIPT}", f"Answer {SCRIPT}"))
    await page.keyboard.press("Control+k")
    options = await search(page, "onerror")
    await expect(options).to_have_count(3)
    await expect(options.first.locator(".title")).to_have_text(f"Title {SCRIPT}")
    assert await page.locator("#search img, #search script").count() == 0
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
