"""What is being typed is computed ahead: one draft at a time, and never what nobody would miss."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.app.harness import eventually
from tests.browser.fake import MODEL, FakeServer, Reply, says
from tests.browser.person import ask, last_answer, stop_clock
from tests.browser.test_resume import serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAFT = "What is a rainbow made of, "


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)


async def test_a_pause_in_typing_has_the_draft_computed(page: Page, fake: FakeServer) -> None:
    await expect(page.locator("#link")).to_contain_text(MODEL)
    await stop_clock(page)
    await write(page, DRAFT)
    await page.clock.run_for(399)
    await write(page, DRAFT + "and why")
    await page.clock.run_for(399)
    # Its reply shows that everything before it has come.
    await asked_and_answered(page, fake, DRAFT + "and why?")
    assert fake.warm_ups == []

    await write(page, DRAFT)
    await page.clock.run_for(400)
    await eventually(lambda: fake.warm_ups)
    (warm_up,) = fake.warm_ups
    await write(page, DRAFT + "and")  # hardly more
    await page.clock.run_for(400)
    await asked_and_answered(page, fake, DRAFT)
    assert len(fake.warm_ups) == 1
    same = ("input", "temperature", "top_p", "model", "instructions")
    assert [warm_up.get(name) for name in same] == [
        value.strip() if isinstance(value, str) else value for value in map(fake.requests[-1].get, same)
    ]
    assert len(warm_up["input"]) == 3
    await expect(page.locator(".turn")).to_have_count(4)
    await page.reload()
    await expect(page.locator(".turn")).to_have_count(4)


async def asked_and_answered(page: Page, fake: FakeServer, question: str) -> None:
    fake.scripts.append(says("Light."))
    await ask(page, question)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_nothing_is_warmed_up_that_is_short_or_unwanted(page: Page, fake: FakeServer) -> None:
    await expect(page.locator("#link")).to_contain_text(MODEL)
    await stop_clock(page)
    await write(page, "What is it?")
    await page.clock.run_for(1000)
    await page.keyboard.press("Control+,")
    switch = page.get_by_role("switch", name="Warm up while typing")
    await expect(switch).to_be_checked()
    await switch.uncheck()
    await write(page, DRAFT)
    await page.clock.run_for(1000)
    await asked_and_answered(page, fake, "Done?")
    assert fake.warm_ups == []
    await page.reload()
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await page.keyboard.press("Control+,")
    await expect(switch).not_to_be_checked()
    await switch.check()
    await write(page, DRAFT)
    await page.clock.run_for(1000)
    await eventually(lambda: fake.warm_ups)


async def test_a_draft_waits_for_the_answer_that_runs(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Light")
        await go_on.wait()
        await reply.text(" of all colours.")
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "What is a rainbow?")
    await expect(last_answer(page)).to_contain_text("Light")
    await stop_clock(page)
    await write(page, "And where does it begin?")
    await page.clock.run_for(1000)
    go_on.set()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert fake.warm_ups == []
    await page.clock.run_for(400)
    await eventually(lambda: fake.warm_ups)
    said = [each["content"] for each in fake.warm_ups[0]["input"]]
    assert said == ["What is a rainbow?", "Light of all colours.", "And where does it begin?"]


async def test_one_that_is_overtaken_ends_before_the_next_begins(context: BrowserContext) -> None:
    async with serving(context) as (server, page):
        sent: list[str] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
        await page.reload()
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        await expect(page.locator("body[data-ready]")).to_be_visible()
        await stop_clock(page)
        await write(page, DRAFT)
        await page.clock.run_for(400)
        # In its forward pass it is held, and leaves with its end.
        await eventually(lambda: server.runner.batches)
        await write(page, DRAFT + "and where does it begin, and where does it end?")
        await page.clock.run_for(1000)
        await eventually(lambda: len(server.engine.aborted) == 1)
        assert len([frame for frame in sent if '"response.create"' in frame]) == 1
        server.gate.step()
        await eventually(lambda: len(server.engine.submitted) == 2)
        # The question itself overtakes, too.
        await page.get_by_role("textbox", name="Message").press("Enter")
        await eventually(lambda: len(server.engine.aborted) == 2)
        await eventually(lambda: len(server.engine.submitted) == 3)
        server.gate.open()
        await page.clock.resume()
        await expect(last_answer(page).locator(".ending")).to_have_text("Cut because the context is full")
