"""Everything by keys: what each does, when it must not, and the list that explains them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, Reply, is_saying, says
from tests.browser.person import ask, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

AS_A_MAC = "Object.defineProperty(navigator, 'userAgentData', { value: { platform: 'macOS' } });"


async def settled(page: Page, text: str) -> None:
    await expect(last_answer(page).locator(".prose")).to_have_text(text)
    await expect(last_answer(page)).not_to_have_attribute("aria-busy", "true")


async def test_chats_by_keys(page: Page, fake: FakeServer) -> None:
    fake.scripts += [says("To one."), says("To two.")]
    await ask(page, "One")
    await settled(page, "To one.")
    await page.keyboard.press("Control+Shift+O")
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await ask(page, "Two")
    await settled(page, "To two.")
    await page.keyboard.press("Alt+ArrowDown")
    await settled(page, "To one.")
    await page.keyboard.press("Alt+ArrowUp")
    await settled(page, "To two.")
    await page.keyboard.press("Control+Shift+U")
    await expect(page.locator(".announcer p").last).to_have_text("Pinned")
    await expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    await page.keyboard.press("F2")
    await page.keyboard.type("Another name")
    await page.keyboard.press("Enter")
    await expect(page).to_have_title("Another name · Tickwire")
    await page.keyboard.press("Control+Shift+Backspace")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Another name")
    await expect(dialog.get_by_role("button", name="Keep")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await settled(page, "To two.")


async def test_an_answer_by_keys(page: Page, fake: FakeServer) -> None:
    fake.scripts += [is_saying("First"), says("Second.")]
    await ask(page, "Hello")
    await expect(last_answer(page).locator(".prose")).to_have_text("First")
    await page.keyboard.press("Control+Shift+Enter")
    await page.keyboard.press("Escape")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")
    assert len(fake.requests) == 1, "an answer that ran was asked for again"
    await page.keyboard.press("Control+Shift+Enter")
    await settled(page, "Second.")
    await page.keyboard.press("Control+Shift+C")
    await expect(page.locator(".announcer p").last).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "Second."
    await page.keyboard.press("Alt+Shift+ArrowLeft")
    await settled(page, "First")
    await expect(page.locator(".announcer p").last).to_contain_text("1 of 2")
    await page.keyboard.press("Alt+Shift+ArrowRight")
    await settled(page, "Second.")


async def test_going_to_the_latest_answer_and_back_to_the_box(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Hello."))
    await ask(page, "Hi")
    await settled(page, "Hello.")
    field = page.get_by_role("textbox", name="Message")
    for keys in ("F6", "Control+ArrowUp"):
        await page.keyboard.press(keys)
        await expect(last_answer(page)).to_be_focused()
        await page.keyboard.press("/")
        await expect(field).to_be_focused()
        await expect(field).to_have_value("")


async def test_the_list_of_keys_names_those_that_do_something(page: Page) -> None:
    await page.get_by_role("textbox", name="Message").press("Control+/")
    dialog = page.get_by_role("dialog", name="Keyboard")
    await expect(dialog).to_be_visible()
    await expect(dialog.locator("div", has=page.get_by_text("New chat")).last).to_contain_text("CtrlShiftO")
    await page.keyboard.press("Control+Shift+O")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()


async def test_letters_belong_to_the_field_they_are_typed_in(page: Page) -> None:
    field = page.get_by_role("textbox", name="Message")
    await field.press_sequentially("Is 1/2 a half?")
    await expect(field).to_have_value("Is 1/2 a half?")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


async def test_arrows_belong_to_a_field_with_text(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Hello."))
    await ask(page, "Hi")
    await settled(page, "Hello.")
    field = page.get_by_role("textbox", name="Message")
    await field.fill("some words")
    await page.keyboard.press("Control+ArrowUp")
    await expect(field).to_be_focused()
    await page.keyboard.press("Alt+Shift+ArrowLeft")
    await page.keyboard.press("Alt+ArrowDown")
    await settled(page, "Hello.")


COMPOSING = {"key": "Escape", "code": "Escape", "isComposing": True, "bubbles": True, "cancelable": True}


async def test_keys_of_an_input_method_and_of_autofill_are_left_alone(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(is_saying("Half"))
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half")
    field = page.get_by_role("textbox", name="Message")
    await field.dispatch_event("keydown", COMPOSING)
    await field.dispatch_event("keydown", COMPOSING | {"isComposing": False, "keyCode": 229})
    await field.evaluate("(field) => field.dispatchEvent(new Event('keydown', { bubbles: true }))")
    await page.evaluate("new Promise(requestAnimationFrame)")
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
    await page.keyboard.press("Escape")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")


LAYOUTS: list[dict[str, Any]] = [
    {"key": "Щ", "code": "KeyO", "ctrlKey": True, "shiftKey": True},
    {"key": "O", "code": "KeyS", "ctrlKey": True, "shiftKey": True},
]


@pytest.mark.parametrize("keys", LAYOUTS, ids=["Cyrillic", "Dvorak"])
async def test_letters_are_found_on_other_layouts(page: Page, fake: FakeServer, keys: dict[str, Any]) -> None:
    fake.scripts.append(says("Hello."))
    await ask(page, "Hi")
    await settled(page, "Hello.")
    await page.locator("body").dispatch_event("keydown", keys | {"bubbles": True, "cancelable": True})
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()


async def test_a_mac_has_its_own_keys(context: BrowserContext, fake: FakeServer, watch: Watch) -> None:
    await context.add_init_script(AS_A_MAC)
    page = await context.new_page()
    watch.attach(page)
    await page.goto(fake.origin)
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await page.keyboard.press("Control+/")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("Meta+/")
    await expect(page.get_by_role("dialog")).to_contain_text("⌘⇧O")


async def test_escape_closes_what_lies_on_top_and_only_that(page: Page, fake: FakeServer) -> None:
    end = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half")
        await end.wait()
        await reply.complete()

    await page.set_viewport_size({"width": 390, "height": 844})
    fake.scripts.append(script)
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half")
    await page.keyboard.press("Control+/")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.get_by_role("button", name="Conversations").click()
    await expect(page.locator("#new-chat")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#new-chat")).to_be_hidden()
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
    end.set()
    await settled(page, "Half")
