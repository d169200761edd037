"""The list of chats: its groups, its menu, its keys, its drawer."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.fake import FakeServer, Reply, says
from tests.browser.person import ask, choose, last_answer
from tests.browser.records import conversation, keep

pytestmark = pytest.mark.asyncio(loop_scope="session")


def item(page: Page, title: str) -> Locator:
    return page.locator("#conversations").get_by_role("button", name=title, exact=True)


def titles(page: Page) -> Locator:
    return page.locator("#conversations li .title")


async def test_a_chat_is_renamed_where_it_stands(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Yes."))
    await ask(page, "Old name")
    await expect(last_answer(page)).to_contain_text("Yes.")
    await choose(page, "Old name", "Rename")
    field = page.get_by_role("textbox", name="New title")
    await expect(field).to_be_focused()
    await field.fill("に")
    composing = {"key": "Enter", "isComposing": True, "bubbles": True, "cancelable": True}
    await field.dispatch_event("keydown", composing)
    await expect(field).to_be_visible()
    await field.fill(" New name ")
    await page.keyboard.press("Enter")
    await expect(item(page, "New name")).to_be_focused()
    await expect(page).to_have_title("New name · Tickwire")
    await page.reload()
    await expect(titles(page)).to_have_text(["New name"])

    await choose(page, "New name", "Rename")
    await field.fill("Given up")
    await page.keyboard.press("Escape")
    await expect(item(page, "New name")).to_be_focused()
    await page.keyboard.press("F2")
    await field.fill("  ")
    await page.keyboard.press("Enter")
    await expect(titles(page)).to_have_text(["New name"])
    await page.keyboard.press("F2")
    await field.fill("Left")
    await page.get_by_role("textbox", name="Message").focus()
    await expect(titles(page)).to_have_text(["Left"])


async def test_pinned_chats_come_first_under_a_heading_of_their_own(page: Page) -> None:
    day = 24 * 3600 * 1000
    await keep(page, *(conversation(name, age=age * day) for name, age in (("A", 0), ("B", 1), ("C", 400))))
    headings = page.locator("#conversations h2")
    await expect(titles(page)).to_have_text(["A", "B", "C"])
    last = await headings.last.inner_text()
    await expect(headings).to_have_text(["Today", "Yesterday", last])
    await choose(page, "C", "Pin")
    await expect(headings).to_have_text(["Pinned", "Today", "Yesterday"])
    await expect(titles(page)).to_have_text(["C", "A", "B"])
    await page.reload()
    await expect(titles(page)).to_have_text(["C", "A", "B"])
    await choose(page, "C", "Unpin")
    await expect(headings).to_have_text(["Today", "Yesterday", last])


async def test_the_menu_is_worked_by_keys_and_escape_leaves_the_answer_alone(
    page: Page, fake: FakeServer
) -> None:
    end = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half")
        await end.wait()
        await reply.text(" and whole")
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Busy")
    await expect(last_answer(page)).to_contain_text("Half")
    more = page.get_by_role("button", name="More for “Busy”")
    await item(page, "Busy").focus()
    await page.keyboard.press("Tab")
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(more).to_have_attribute("aria-expanded", "true")
    entry = page.get_by_role("menuitem")
    await expect(entry.first).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await expect(entry.first).to_be_focused()
    await page.keyboard.press("p")
    await expect(page.get_by_role("menuitem", name="Pin")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("menu")).to_be_hidden()
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await page.locator("#transcript").click()
    await expect(page.get_by_role("menu")).to_be_hidden()
    end.set()
    await expect(last_answer(page).locator(".prose")).to_have_text("Half and whole")


async def test_a_menu_stays_while_an_answer_grows_beside_it(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*(f"Line {n}\n\n" for n in range(40)))
        await go_on.wait()
        await reply.text(*(f"Line {n}\n\n" for n in range(40, 80)))
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Count")
    await expect(last_answer(page)).to_contain_text("Line 39")
    await page.get_by_role("button", name="More for “Count”").press("Enter")
    await expect(page.get_by_role("menu")).to_be_visible()
    height = await page.locator("#scroller").evaluate("(scroller) => scroller.scrollHeight")
    go_on.set()
    await page.wait_for_function("(it) => document.querySelector('#scroller').scrollTop > it", arg=height)
    await expect(page.get_by_role("menu")).to_be_visible()
    await expect(page.get_by_role("menuitem").first).to_be_focused()
    # Its own list takes the button away from under it.
    await page.locator("#conversations").dispatch_event("scroll", {"bubbles": False})
    await expect(page.get_by_role("menu")).to_be_hidden()


async def test_a_chat_that_goes_takes_the_focus_from_nowhere_else(page: Page, fake: FakeServer) -> None:
    fake.scripts += [says("Yes."), says("No.")]
    for question in ("First", "Second"):
        await page.get_by_role("button", name="New chat").first.click()
        await ask(page, question)
        await expect(last_answer(page).locator(".figures")).to_contain_text("1 token")
    message = page.get_by_role("textbox", name="Message")
    await choose(page, "Second", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(titles(page)).to_have_text(["First"])
    await expect(item(page, "First")).to_be_focused()
    await item(page, "First").click()
    await expect(message).to_be_focused()

    settings = page.get_by_role("button", name="Settings")
    await settings.focus()
    other = await page.context.new_page()
    await other.goto(page.url)
    await choose(other, "First", "Delete")
    await other.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(other.get_by_role("textbox", name="Message")).to_be_focused()
    await expect(titles(page)).to_have_count(0)
    await expect(settings).to_be_focused()


async def test_an_item_keeps_its_element_and_the_focus(page: Page, fake: FakeServer) -> None:
    end = asyncio.Event()

    async def slow(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Slowly")
        await end.wait()
        await reply.complete()

    fake.scripts += [slow, says("Quick.")]
    await ask(page, "Slow one")
    await expect(last_answer(page)).to_contain_text("Slowly")
    await page.get_by_role("button", name="New chat").first.click()
    await ask(page, "Quick one")
    await expect(last_answer(page)).to_contain_text("Quick.")
    mark = page.locator("#conversations li", has_text="Slow one").locator("i")
    await expect(mark).to_have_attribute("aria-label", "answering")
    await page.locator("#conversations li", has_text="Quick one").evaluate("(line) => (line.kept = true)")
    await item(page, "Quick one").focus()
    end.set()
    await expect(mark).to_have_attribute("aria-label", "new answer")
    await choose(page, "Slow one", "Pin")
    await expect(titles(page)).to_have_text(["Slow one", "Quick one"])
    assert await page.locator("#conversations li", has_text="Quick one").evaluate("(line) => line.kept")
    await expect(page.get_by_role("button", name="More for “Slow one”")).to_be_focused()
    await item(page, "Slow one").click()
    await expect(mark).to_be_hidden()


async def test_hundreds_of_chats_come_in_pieces_and_a_change_touches_one(page: Page) -> None:
    await page.add_init_script(
        """new MutationObserver(() => {
          const count = document.querySelectorAll("#conversations li").length;
          (window.counts ??= []).at(-1) === count || window.counts.push(count);
        }).observe(document, { childList: true, subtree: true });"""
    )
    await keep(page, *(conversation(f"Chat {n}", age=n) for n in range(300)))
    await expect(titles(page)).to_have_count(300)
    counts: list[int] = await page.evaluate("counts")
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) <= 60

    await page.evaluate(
        """new MutationObserver((changes) => (window.changes = (window.changes ?? 0) + changes.length))
          .observe(document.querySelector("#conversations"), { childList: true, subtree: true });"""
    )
    await choose(page, "Chat 7", "Rename")
    await page.get_by_role("textbox", name="New title").fill("Seven")
    await page.keyboard.press("Enter")
    await expect(item(page, "Seven")).to_be_focused()
    assert await page.evaluate("changes") < 10


async def test_arrows_go_through_the_list_and_tab_stops_at_it_once(page: Page) -> None:
    await keep(page, *(conversation(f"Chat {n}", age=n) for n in range(5)))
    await item(page, "Chat 0").focus()
    for key, title in (("ArrowDown", "Chat 1"), ("End", "Chat 4"), ("ArrowUp", "Chat 3"), ("Home", "Chat 0")):
        await page.keyboard.press(key)
        await expect(item(page, title)).to_be_focused()
    assert await page.locator("#conversations .open[tabindex='0']").count() == 1
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(titles(page)).to_have_text(["Chat 0", "Chat 2", "Chat 3", "Chat 4"])
    await expect(item(page, "Chat 2")).to_be_focused()


async def test_the_open_drawer_keeps_the_focus(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    opener = page.get_by_role("button", name="Conversations")
    await opener.click()
    await expect(page.get_by_role("button", name="New chat").first).to_be_focused()
    assert await page.locator("main").evaluate("(main) => main.inert")
    await page.keyboard.press("Escape")
    await expect(opener).to_be_focused()
    await opener.click()
    await page.set_viewport_size({"width": 1440, "height": 900})
    await expect(page.locator("#sidebar")).to_be_visible()
    await expect(page.locator("main[inert]")).to_have_count(0)


async def test_the_list_can_be_folded_away_and_brought_back(page: Page) -> None:
    await page.keyboard.press("Control+Shift+S")
    await expect(page.locator("#sidebar")).to_be_hidden()
    await page.get_by_role("button", name="Conversations").click()
    await expect(page.locator("#sidebar")).to_be_visible()
