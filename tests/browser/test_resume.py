"""An answer goes on where it was, and nothing comes twice: over reloads, cuts, sleep and restarts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, WebSocket, expect

from app.store import Message
from tests.app.harness import RunningServer, continued, eventually, fake_prompt, running, said
from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, Reply, Script, is_saying, says
from tests.browser.person import Tab, ask, copied, is_kept, last_answer, stop_clock

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGE = """async (ms) => {
  const { openStore } = await import("/static/model/store.js");
  const store = await openStore();
  for (const message of await store.messages()) {
    const { created, grown = created } = message;
    await store.update({ ...message, created: created - ms, grown: grown - ms });
  }
}"""
"""Makes all that is kept older."""
AWAY = "wire.connection.state === 'waiting'"


@asynccontextmanager
async def serving(context: BrowserContext, **settings: Any) -> AsyncIterator[tuple[RunningServer, Page]]:
    """A server that computes only what it is told to, and its page."""
    async with running(max_model_len=200, **settings) as server:
        watch = Watch(server.url)
        page = await context.new_page()
        watch.attach(page)
        await page.goto(server.url)
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        server.gate.close()
        yield server, page
        watch.check()
        await page.close()


async def whole_text(page: Page) -> str:
    """Of the last answer, which has ended with all its tokens, of one response."""
    tokens = re.search(r"(\d+) tokens", await last_figures(page))
    assert tokens is not None
    text = await last_words(page)
    assert text == said("Hello", int(tokens[1]))
    return text


async def last_figures(page: Page) -> str:
    """Of the last answer, when it has filled the context."""
    figures = last_answer(page).locator(".figures")
    await expect(figures).to_contain_text("Cut because the context is full")
    return await figures.inner_text()


async def last_words(page: Page) -> str:
    return await copied(page, last_answer(page).get_by_role("button", name="Copy answer"))


def gone_on_with(before: str, length: int) -> str:
    """The answer to "Hello" whose rest was asked for anew after this text."""
    asked: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": before}]
    # The fake model's message that goes on has no end.
    return before + continued(fake_prompt(asked)[:-1], length - len(before))


async def test_a_reload_at_token_20_loses_nothing(context: BrowserContext) -> None:
    async with serving(context) as (server, page):
        await ask(page, "Hello")
        server.gate.step(21)
        await expect(last_answer(page)).to_have_attribute("data-state", "streaming")
        await page.reload()
        await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
        await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
        server.gate.open()
        assert len(await whole_text(page)) > 100
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_reload_before_the_first_token_and_two_tabs(context: BrowserContext) -> None:
    async with serving(context) as (server, page):
        await ask(page, "Hello")
        await is_kept(page)
        await page.reload()
        await expect(last_answer(page)).to_contain_text("Waiting for the first token")
        other = await context.new_page()
        await other.goto(page.url)
        await expect(last_answer(other)).to_contain_text("Waiting for the first token")
        server.gate.open()
        assert await whole_text(page) == await whole_text(other)
        await other.close()


async def test_an_answer_that_nobody_read_for_too_long_goes_on_when_its_reader_is_back(
    context: BrowserContext,
) -> None:
    async with serving(context, resume_grace_s=0) as (server, page):
        await ask(page, "Hello")
        server.gate.step(21)
        await expect(last_answer(page)).to_have_attribute("data-state", "streaming")
        await page.goto("about:blank")
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await page.goto(server.url)
        assert "continued" in await last_figures(page)
        text = await last_words(page)
        assert len(text) > 100
        assert text in [gone_on_with(said("Hello", seen), len(text)) for seen in range(1, 22)]


# -- with a server that tells what the test wants ------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def tab(context: BrowserContext, fake: FakeServer) -> AsyncIterator[Tab]:
    tab = await Tab.open(context, fake.origin)
    yield tab
    assert await tab.do("trouble") == []


half = is_saying("Half ", "an ans")


def asked_to_go_on(request: dict[str, Any], text: str) -> bool:
    last: dict[str, Any] = request["input"][-1]
    return request.get("continue_final_message") is True and last == {"role": "assistant", "content": text}


async def half_written(tab: Tab, fake: FakeServer, *later: Script) -> str:
    fake.scripts += [half, *later]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half an ans")
    await tab.until("chat.answer(chat.path(it.id)[1]).responseId", id=chat)
    return chat


async def test_the_rate_of_an_answer_that_was_taken_up_counts_from_its_first_token(
    tab: Tab, fake: FakeServer
) -> None:
    steps = [asyncio.Event(), asyncio.Event()]

    async def script(reply: Reply) -> None:
        reply.stats = {"tokens_per_s": 50.0}
        await reply.begin()
        await reply.text("Half ", "an ")
        await steps[0].wait()
        await reply.text("ans")
        await steps[1].wait()
        await reply.text("wer.")
        await reply.complete()

    fake.scripts.append(script)
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half an ")
    await is_kept(tab.page)
    await tab.reload()
    steps[0].set()
    await tab.comes_to(chat, "Hello", "Half an ans")
    # The page has asked before: it has its reply first.
    await tab.do("chat.answer(chat.path(it.id)[1]).stats()", id=chat)
    steps[1].set()
    await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")
    rate = await tab.do("chat.path(it.id)[1].stats.tokensPerSecond", id=chat)
    # The third token came 2 / 50 s after the first one, and the fourth later.
    assert 0 < rate < 3 / 0.04


async def test_what_the_server_forgot_goes_on_after_a_reload(page: Page, fake: FakeServer) -> None:
    fake.scripts += [half, says("wer, ", "and more.")]
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half an ans")
    await is_kept(page)
    fake.forget()
    await page.reload()
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an answer, and more.")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_count(2)
    assert asked_to_go_on(fake.requests[1], "Half an ans")


async def test_a_restart_of_the_server_is_not_seen_in_the_text(tab: Tab, fake: FakeServer) -> None:
    chat = await half_written(tab, fake, says("wer, ", "and more."))
    fake.forget()
    await fake.drop(1012)
    await tab.comes_to(chat, "Hello", "Half an answer, and more.", status="completed")
    assert asked_to_go_on(fake.requests[1], "Half an ans")
    answer = await tab.do("chat.path(it.id)[1]", id=chat)
    assert (answer["continued"], answer["error"]) == (1, None)


async def test_an_answer_that_a_server_cut_at_its_end_goes_on_at_the_next_one(
    tab: Tab, fake: FakeServer
) -> None:
    """While a server ends it refuses what is new: the page waits for the next one."""

    async def cut(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half an ans")
        await reply.failed("server_unavailable", "the server is shutting down; the answer was cut short")

    fake.scripts += [cut, says("wer.")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half an ans", status="queued")
    assert len(fake.requests) == 1
    await fake.drop(1012)
    await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")
    assert asked_to_go_on(fake.requests[1], "Half an ans")


async def test_a_few_attempts_that_bring_nothing_are_enough(tab: Tab, fake: FakeServer) -> None:
    async def lost(reply: Reply) -> None:
        await reply.begin()
        await tab.until("chat.path(chat.list[0].id)[1].responseId === it.name", name=reply.id)
        fake.forget()
        await fake.drop(1012)

    chat = await half_written(tab, fake, lost, lost, lost, says("never asked for"))
    fake.forget()
    await fake.drop(1012)
    await tab.comes_to(chat, "Hello", "Half an ans", status="interrupted")
    assert "does not have it any more" in await tab.do("chat.path(it.id)[1].error.message", id=chat)
    fake.scripts = [says("wer.")]
    await tab.do("chat.continue(chat.path(it.id)[1])", id=chat)
    await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")


async def test_what_its_reader_stopped_does_not_go_on(tab: Tab, fake: FakeServer) -> None:
    async def ends(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half an ans")
        await reply.cancelled.wait()
        await reply.failed("server_unavailable", "the server is shutting down; the answer was cut short")

    fake.scripts += [ends, says("never asked for")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half an ans")
    await tab.do("chat.stop(it.id)", id=chat)
    await tab.comes_to(chat, "Hello", "Half an ans", status="stopped")
    # And one that is stopped while the server is away, and which the server then does not know.
    fake.scripts.insert(0, half)
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half an ans")
    await stop_clock(tab.page)
    fake.forget()
    await fake.drop(1012)
    await tab.until(AWAY)
    await tab.do("chat.stop(it.id)", id=chat)
    await tab.comes_to(chat, "Hello", "Half an ans", status="stopped")
    await tab.page.clock.run_for(1000)
    await eventually(lambda: fake.num_connections == 2)
    await tab.reload()
    assert await tab.do("chat.list.some(({ id }) => chat.isBusy(id))") is False
    assert len(fake.requests) == 2


async def test_what_was_left_long_ago_waits_for_its_reader_to_go_on(tab: Tab, fake: FakeServer) -> None:
    chat = await half_written(tab, fake)
    # As the page does when it goes away.
    await tab.do("chat.saveAtOnce()")
    assert "Half an ans" in [message["text"] for message in await tab.kept()]
    await tab.page.goto("about:blank")
    fake.forget()
    await tab.page.goto(f"{fake.origin}/blank")
    await tab.page.evaluate(AGE, 2 * 3600 * 1000)
    await tab.reload()
    await tab.comes_to(chat, "Hello", "Half an ans", status="interrupted")
    assert len(fake.requests) == 1
    fake.scripts.append(says("wer."))
    await tab.do("chat.continue(chat.path(it.id)[1])", id=chat)
    await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")


@pytest.mark.parametrize("hours", [0, 2])
async def test_a_reload_before_the_server_has_named_the_answer(
    tab: Tab, fake: FakeServer, hours: int
) -> None:
    async def silent(reply: Reply) -> None:
        await reply.cancelled.wait()

    fake.scripts += [silent, says("Here.")]
    chat = await tab.ask("Hello")
    await eventually(lambda: fake.requests)
    await tab.page.goto(f"{fake.origin}/blank?left")
    await tab.page.evaluate(AGE, hours * 3600 * 1000)
    await tab.reload()
    if hours:
        await tab.comes_to(chat, "Hello", "", status="interrupted")
        assert len(fake.requests) == 1
    else:
        await tab.comes_to(chat, "Hello", "Here.", status="completed")
        assert fake.requests[0]["input"] == fake.requests[1]["input"]


async def test_a_laptop_that_slept_for_longer_than_the_server_keeps_answers(
    tab: Tab, fake: FakeServer
) -> None:
    chat = await half_written(tab, fake, says("wer."))
    # No timer ends while it sleeps, and the network is gone.
    await stop_clock(tab.page)
    fake.forget()
    await fake.drop(1001)
    await tab.until(AWAY)
    await tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")


async def test_a_network_that_is_away_for_ten_seconds(tab: Tab, fake: FakeServer) -> None:
    """Chromium lets nothing pass and leaves the socket open, as a phone does that has lost its network."""
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Before, ")
        await go_on.wait()
        await reply.text("after.")
        await reply.complete()

    fake.scripts.append(script)
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Before, ")
    await tab.page.clock.install()
    await tab.page.context.set_offline(True)
    await tab.until("!navigator.onLine")
    go_on.set()
    await tab.page.clock.run_for(10_000)
    assert await tab.path(chat) == ["Hello", "Before, "]
    await tab.page.context.set_offline(False)
    await tab.comes_to(chat, "Hello", "Before, after.", status="completed")
    assert fake.num_connections == 2
    assert [resume["starting_after"] for resume in fake.resumes] == [2]


async def test_five_chats_stream_over_one_socket_and_survive_a_reload(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()
    sockets: list[WebSocket] = []
    page.on("websocket", lambda socket: sockets.append(socket))

    async def script(reply: Reply) -> None:
        name = reply.request["input"][0]["content"]
        await reply.begin()
        await reply.text(f"{name} begins, ")
        await go_on.wait()
        await reply.text(f"{name} ends.")
        await reply.complete()

    fake.scripts += [script] * 5
    names = [f"Chat {n}" for n in range(5)]
    for name in names:
        await page.get_by_role("button", name="New chat").first.click()
        await ask(page, name)
        await expect(last_answer(page)).to_contain_text(f"{name} begins,")
    assert fake.num_connections == 1
    assert len({request["stream_id"] for request in fake.requests}) == 5
    await expect(page.get_by_role("img", name="answering")).to_have_count(5)
    await page.reload()
    await expect(page.get_by_role("img", name="answering")).to_have_count(5)
    for name in names:
        await page.locator("#conversations").get_by_text(name, exact=True).click()
        await expect(last_answer(page).locator(".prose")).to_have_text(f"{name} begins,")
    go_on.set()
    for name in names:
        await page.locator("#conversations").get_by_text(name, exact=True).click()
        await expect(last_answer(page).locator(".prose")).to_have_text(f"{name} begins, {name} ends.")
    await expect(page.get_by_role("img", name="answering")).to_have_count(0)
    assert (len(sockets), fake.num_connections) == (1, 2), "the one of the page before, and the one of this"
    assert len(fake.requests) == len(fake.resumes) == 5
