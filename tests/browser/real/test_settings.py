"""How a chat is answered, with the real server and the default model: what is set is what the model does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Locator, Page, WebSocket, expect

from tests.app.harness import eventually
from tests.browser.conftest import Watch
from tests.browser.person import ask, last_answer
from tests.browser.real.conftest import PATIENCE_MS, exactly, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "Tell me about the sea."
STORY = "The lighthouse stood on a rock far from the land, and nobody had climbed its stairs for many years. "


class Frames:
    """What went over the page's socket."""

    def __init__(self, page: Page) -> None:
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: self.sent.append(json.loads(frame)))
        socket.on("framereceived", lambda frame: self.received.append(json.loads(frame)))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Questions, not warm-ups."""
        return [f for f in self.sent if f["type"] == "response.create" and f.get("generate") is not False]

    def usages(self, *, warm_ups: bool = False) -> list[dict[str, Any]]:
        """Of the answers that have ended, or of the warm-ups."""
        ended = ("response.completed", "response.incomplete")
        usages = [frame["response"]["usage"] for frame in self.received if frame["type"] in ended]
        return [usage for usage in usages if (usage["output_tokens"] == 0) is warm_ups]


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext, watch: Watch) -> Page:
    """Not opened yet: whoever wants to hear all of its socket listens first."""
    page = await context.new_page()
    watch.attach(page)
    return page


async def open_settings(page: Page, origin: str) -> Locator:
    await page.goto(origin)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await page.get_by_role("button", name="Settings: ").click()
    settings = page.get_by_role("dialog", name="Settings")
    await expect(settings.get_by_role("slider", name="Temperature")).to_be_enabled()
    return settings


async def write(settings: Locator, name: str, words: str) -> None:
    field = settings.get_by_role("textbox", name=name, exact=True)
    await field.fill(words)
    await field.press("Tab")


async def answer(page: Page, question: str) -> str:
    """Asks in a new chat, and waits until the answer is cut."""
    await page.get_by_role("button", name="New chat", exact=True).click()
    await ask(page, question)
    await expect(last_answer(page).locator(".ending")).to_be_visible(timeout=PATIENCE_MS)
    return await last_answer(page).locator(".prose").inner_text()


async def test_a_setup_is_what_the_model_does_and_is_there_after_a_reload(page: Page, origin: str) -> None:
    frames = Frames(page)
    settings = await open_settings(page, origin)
    await write(settings, "Temperature", "3")
    await expect(settings).to_contain_text("Got 3. Allowed is a number from 0 to 2.")
    await settings.get_by_role("combobox", name="Preset").select_option("Precise")
    await expect(settings.locator(".problem:visible")).to_have_count(0)
    await write(settings, "System prompt", "You are a sailor.")
    await write(settings, "Longest answer, in tokens", "5")
    await settings.get_by_role("button", name="Save as").click()
    await settings.get_by_role("textbox", name="Name of the preset").fill("Sailor")
    await page.keyboard.press("Enter")

    first = await answer(page, QUESTION)
    assert first
    await expect(last_answer(page).locator(".figures")).to_contain_text("5 tokens")
    await expect(last_answer(page).locator(".ending")).to_have_text("Cut at the token limit")
    assert await answer(page, QUESTION) == first
    for request in frames.requests:
        assert (request["temperature"], request["max_output_tokens"]) == (0, 5)
        assert request["instructions"] == "You are a sailor."
        assert "top_p" not in request

    await page.reload()
    await page.get_by_role("button", name="Settings: Sailor").click()
    await expect(settings.get_by_role("textbox", name="System prompt")).to_have_value("You are a sailor.")


async def test_a_draft_that_was_warmed_up_is_not_computed_again(
    context: BrowserContext, page: Page, origin: str
) -> None:
    await set_up(context, **exactly(2))
    frames = Frames(page)
    settings = await open_settings(page, origin)
    switch = settings.get_by_role("switch", name="Warm up while typing")
    await switch.uncheck()
    await answer(page, f"One. {STORY * 4}")
    await switch.check()

    await page.get_by_role("button", name="New chat", exact=True).click()
    question = f"Two. {STORY * 4}"
    await page.get_by_role("textbox", name="Message").fill(question)
    await eventually(lambda: frames.usages(warm_ups=True))
    await page.keyboard.press("Enter")
    await expect(last_answer(page).locator(".ending")).to_be_visible(timeout=PATIENCE_MS)
    cold, warm = (usage["input_tokens_details"]["cached_tokens"] for usage in frames.usages())
    prompt = frames.usages()[1]["input_tokens"]
    assert cold < prompt / 2 < warm
    # A block that is not full, and what follows the question, are all that was left.
    assert prompt - warm < 32
    await expect(page.locator(".turn")).to_have_count(2)
