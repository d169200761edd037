"""How a chat is answered: what is chosen is sent, what is not is not, and what is not allowed is said."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.app.harness import running, said
from tests.browser.conftest import Watch
from tests.browser.fake import CONTEXT, MODEL, FakeServer, Reply, says
from tests.browser.person import ask, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLING = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_output_tokens",
    "seed",
    "stop",
}


async def open_settings(page: Page) -> Locator:
    """All of them, sampling in full."""
    await expect(page.locator("#link")).to_contain_text(MODEL)
    await page.keyboard.press("Control+,")
    settings = page.get_by_role("dialog", name="Settings")
    await expect(settings).to_be_visible()
    await settings.get_by_text("More about sampling").click()
    return settings


async def write(settings: Locator, name: str, words: str) -> None:
    """Into a field, and leaves it."""
    field = settings.get_by_role("textbox", name=name, exact=True)
    await field.fill(words)
    await field.press("Tab")


async def request_of(page: Page, fake: FakeServer, question: str = "Hello") -> dict[str, Any]:
    """Asks, and tells what that sent."""
    fake.scripts.append(says("Yes."))
    await ask(page, question)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    return fake.requests[-1]


async def sampling_of(page: Page, fake: FakeServer) -> dict[str, Any]:
    request = await request_of(page, fake)
    return {name: value for name, value in request.items() if name in SAMPLING}


def preset(page: Page) -> Locator:
    """What the header says is in use."""
    return page.locator("#settings-open")


async def test_what_is_set_is_sent_and_the_rest_is_the_servers(page: Page, fake: FakeServer) -> None:
    assert await sampling_of(page, fake) == {"temperature": 0.6, "top_p": 0.95}
    settings = await open_settings(page)
    await write(settings, "Temperature", "1,25")
    await settings.get_by_role("button", name=re.compile("Back to .* default: Top p")).click()
    await write(settings, "Seed", "-7")
    await write(settings, "Longest answer, in tokens", "5")
    await write(settings, "Stop strings", "\\n\\n\nEnd of \\\\n")
    await settings.get_by_role("slider", name="Presence penalty").press("ArrowRight")
    await write(settings, "System prompt", "  Be brief.\n")
    assert await sampling_of(page, fake) == {
        "temperature": 1.25,
        "seed": -7,
        "max_output_tokens": 5,
        "stop": ["\n\n", "End of \\n"],
        "presence_penalty": 0.05,
    }
    assert fake.requests[-1]["instructions"] == "Be brief."
    assert "model" not in fake.requests[-1]
    await settings.get_by_role("combobox", name="Model").select_option(MODEL)
    assert (await request_of(page, fake))["model"] == MODEL
    await page.reload()
    await expect(preset(page)).to_have_text("Changed")
    settings = await open_settings(page)
    await expect(settings.get_by_role("textbox", name="Temperature", exact=True)).to_have_value("1.25")
    await expect(settings.get_by_role("textbox", name="Stop strings")).to_have_value("\\n\\n\nEnd of \\\\n")
    await expect(settings.get_by_role("textbox", name="System prompt")).to_have_value("Be brief.")


REFUSED = [
    ("Temperature", "3", "Got 3. Allowed is a number from 0 to 2."),
    ("Temperature", "hot", "Got hot. Allowed is a number from 0 to 2."),
    ("Top p", "0", "Got 0. Allowed is a number above 0 and at most 1."),
    ("Top k", "1.5", "Got 1.5. Allowed is a whole number from 0 to 2,147,483,647."),
    (
        "Longest answer, in tokens",
        str(CONTEXT + 1),
        f"Got {CONTEXT + 1}. Allowed is a whole number from 1 to {CONTEXT:,}.",
    ),
    ("Stop strings", "\n".join("abcdefghijklmnopq"), "Got 17 lines. Allowed are at most 16."),
    ("Stop strings", "x" * 1025, "Got a line of 1,025 characters. Allowed are at most 1,024."),
]


async def test_what_is_not_allowed_is_said_at_the_field_and_never_sent(page: Page, fake: FakeServer) -> None:
    settings = await open_settings(page)
    problems = settings.locator(".problem:visible")
    for name, words, problem in REFUSED:
        await write(settings, name, words)
        field = settings.get_by_role("textbox", name=name, exact=True)
        await expect(field).to_have_attribute("aria-invalid", "true")
        await expect(problems).to_have_text(problem)
        assert await sampling_of(page, fake) == {"temperature": 0.6, "top_p": 0.95}, name
        await field.fill("1")
        await expect(problems).to_have_count(0)
        await write(settings, name, "")
        await settings.get_by_role("combobox", name="Preset").select_option("Balanced")


async def test_presets_fill_the_setup_and_ones_own_are_kept(page: Page, fake: FakeServer) -> None:
    settings = await open_settings(page)
    presets = settings.get_by_role("combobox", name="Preset")
    await expect(preset(page)).to_have_text("Balanced")
    await presets.select_option("Precise")
    await expect(preset(page)).to_have_text("Precise")
    assert await sampling_of(page, fake) == {"temperature": 0}
    # What was chosen on the empty page is for all new chats, what is chosen in a chat for that one.
    await presets.select_option("server")
    assert await sampling_of(page, fake) == {}

    await write(settings, "Top k", "40")
    await write(settings, "System prompt", "You are a pirate.")
    await expect(preset(page)).to_have_text("Changed")
    await settings.get_by_role("button", name="Save as").click()
    await page.keyboard.press("Escape")
    await expect(settings.get_by_role("textbox", name="Name of the preset")).to_be_hidden()
    await settings.get_by_role("button", name="Save as").click()
    await settings.get_by_role("textbox", name="Name of the preset").fill("Pirate")
    await page.keyboard.press("Enter")
    await expect(presets).to_be_focused()
    await expect(preset(page)).to_have_text("Pirate")

    await page.reload()
    await page.get_by_role("button", name="New chat", exact=True).click()
    await expect(preset(page)).to_have_text("Precise")
    settings = await open_settings(page)
    presets = settings.get_by_role("combobox", name="Preset")
    await presets.select_option("Pirate")
    assert await sampling_of(page, fake) == {"top_k": 40}
    assert fake.requests[-1]["instructions"] == "You are a pirate."
    await settings.get_by_role("button", name="Rename").click()
    await settings.get_by_role("textbox", name="Name of the preset").fill("Corsair")
    await settings.get_by_role("button", name="Save", exact=True).click()
    await expect(preset(page)).to_have_text("Corsair")
    await settings.get_by_role("button", name="Delete", exact=True).click()
    await expect(preset(page)).to_have_text("Changed")
    await expect(presets.get_by_role("option", name="Corsair")).to_have_count(0)
    await expect(settings.get_by_role("textbox", name="System prompt")).to_have_value("You are a pirate.")


async def test_a_chat_keeps_its_own_setup_and_tabs_agree(
    page: Page, context: BrowserContext, fake: FakeServer
) -> None:
    await request_of(page, fake)
    other = await context.new_page()
    await other.goto(page.url)
    settings, same = await open_settings(page), await open_settings(other)
    await write(settings, "Temperature", "1.5")
    await expect(same.get_by_role("textbox", name="Temperature", exact=True)).to_have_value("1.5")
    await expect(preset(other)).to_have_text("Changed")
    assert (await sampling_of(other, fake))["temperature"] == 1.5

    await page.get_by_role("button", name="New chat", exact=True).click()
    await expect(settings.get_by_role("heading", name="New chats")).to_be_visible()
    await expect(settings.get_by_role("textbox", name="Temperature", exact=True)).to_have_value("0.6")
    assert await sampling_of(page, fake) == {"temperature": 0.6, "top_p": 0.95}

    # What is being written when another chat is opened belongs to the one it was written in.
    prompt = same.get_by_role("textbox", name="System prompt")
    await prompt.press_sequentially("Be brief.")
    await other.keyboard.press("Control+Shift+O")
    await expect(prompt).to_have_value("")
    await other.get_by_role("button", name="Hello", exact=True).first.click()
    await other.get_by_role("button", name="Hello", exact=True).last.click()
    await expect(prompt).to_have_value("Be brief.")

    await same.get_by_role("button", name="Use for new chats").click()
    await expect(same.get_by_role("button", name="Use for new chats")).to_be_hidden()
    await page.get_by_role("button", name="New chat", exact=True).click()
    assert (await sampling_of(page, fake))["temperature"] == 1.5
    await other.close()


async def test_the_sheet_lies_beside_the_chat_and_gives_the_focus_back(page: Page, fake: FakeServer) -> None:
    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Once upon")
        await reply.cancelled.wait()
        await reply.cancel()

    fake.scripts.append(script)
    await page.set_viewport_size({"width": 1280, "height": 800})
    await ask(page, "A story?")
    await expect(last_answer(page)).to_contain_text("Once upon")
    settings = await open_settings(page)
    await expect(page.locator("#settings-open")).to_have_attribute("aria-expanded", "true")
    sheet, chat = await settings.bounding_box(), await page.locator("#transcript").bounding_box()
    assert sheet is not None
    assert chat is not None
    assert chat["x"] + chat["width"] <= sheet["x"]
    assert (sheet["y"], sheet["height"]) == (0, 800)
    # What somebody writes when he closes it counts.
    await settings.get_by_role("textbox", name="Temperature", exact=True).press("End")
    await page.keyboard.type("5")
    await page.keyboard.press("Escape")
    await expect(settings).to_be_hidden()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await expect(page.locator("#settings-open")).to_have_attribute("aria-expanded", "false")
    await expect(preset(page)).to_have_text("Changed")
    # The key was the sheet's; the next one is the answer's.
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
    await page.keyboard.press("Escape")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")


async def test_on_a_phone_the_sheet_covers_the_page(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.get_by_role("button", name="Settings: Balanced").click()
    settings = page.get_by_role("dialog", name="Settings")
    assert await settings.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 800}
    wide = await page.evaluate("document.querySelector('.sheet-body').scrollWidth")
    assert wide <= 390
    await page.set_viewport_size({"width": 1280, "height": 800})
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await settings.get_by_role("button", name="Close settings").click()
    await expect(settings).to_be_hidden()
    await expect(page.get_by_role("button", name="Settings: Balanced")).to_be_focused()


async def test_all_chats_can_be_deleted(page: Page, fake: FakeServer) -> None:
    await request_of(page, fake, "One")
    await page.get_by_role("button", name="New chat", exact=True).click()
    await request_of(page, fake, "Two")
    settings = await open_settings(page)
    await expect(settings).to_contain_text("are kept here")
    await settings.get_by_role("button", name="Delete all chats").click()
    asking = page.get_by_role("dialog", name="Delete all chats?")
    await expect(asking).to_contain_text("2 chats")
    await asking.get_by_role("button", name="Delete").click()
    await expect(page.locator("#conversations li")).to_have_count(0)
    await expect(page.locator("body")).to_have_attribute("data-view", "empty")
    await page.reload()
    await expect(page.locator("#conversations li")).to_have_count(0)


async def test_a_server_that_asks_for_a_key_gets_it(context: BrowserContext) -> None:
    async with running(api_keys=("right",), max_model_len=200, never_ends=False) as server:
        watch = Watch(server.url)
        watch.allow("401")
        page = await context.new_page()
        watch.attach(page)
        await page.goto(server.url)
        settings = page.get_by_role("dialog", name="Settings")
        field = settings.get_by_label("API key")
        await expect(field).to_be_focused()
        await expect(settings).to_contain_text("This server asks for an API key.")
        await field.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(settings).to_contain_text("This server does not take this key.")
        # Whoever closes the sheet is led back to it.
        await expect(page.locator("#strip")).to_contain_text("This server asks for an API key.")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Enter the key").click()
        await expect(field).to_be_focused()
        await field.fill("right")
        await page.keyboard.press("Enter")
        await expect(settings.locator(".problem:visible")).to_have_count(0)
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        await page.keyboard.press("Escape")
        await ask(page, "Hello")
        await expect(last_answer(page).locator(".figures")).to_contain_text("token")
        await expect(last_answer(page)).to_contain_text(said("Hello", 1).strip())

        await page.reload()
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        await expect(settings).to_be_hidden()
        await ask(page, "Again")
        await expect(page.get_by_role("article", name="Answer")).to_have_count(2)
        await expect(last_answer(page).locator(".figures")).to_contain_text("token")
        watch.check()
        await page.close()
