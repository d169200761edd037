"""Two tabs of one browser: what one does the other shows, live, and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext

from tests.app.harness import eventually
from tests.browser.fake import FakeServer, Reply, Script, cut_after, is_saying, says
from tests.browser.person import Tab

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEAR = """(what) => {
  const channel = new BroadcastChannel("tickwire");
  window.heard = 0;
  channel.onmessage = ({ data }) => (window.heard += what in data);
}"""
"""Counts in `heard` what the other tab says of this kind."""

Tabs = tuple[Tab, Tab]


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(context: BrowserContext, fake: FakeServer) -> AsyncIterator[Tabs]:
    tabs = (await Tab.open(context, fake.origin), await Tab.open(context, fake.origin))
    yield tabs
    for tab in tabs:
        if not tab.page.is_closed():
            assert await tab.do("trouble") == []


def held(first: str, go_on: asyncio.Event, rest: str) -> Script:
    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(first)
        await go_on.wait()
        await reply.text(rest)
        await reply.complete()

    return script


async def opened(tab: Tab, chat: str) -> None:
    await tab.until("chat.has(it.id)", id=chat)
    await tab.do("chat.open(it.id)", id=chat)


async def test_a_question_and_its_answer_show_in_the_other_tab_live(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs
    go_on = asyncio.Event()
    fake.scripts += [held("Half an ", go_on, "answer."), says("And more.")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    await two.comes_to(chat, "Hello", "Half an ", status="streaming")
    go_on.set()
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half an answer.", status="completed")
    # The other way round, in a conversation that both have open.
    await two.ask("More", chat)
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half an answer.", "More", "And more.", status="completed")
    assert [len(request["input"]) for request in fake.requests] == [1, 3]


async def test_a_stop_in_one_tab_stops_the_other(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs
    fake.scripts.append(is_saying("Half"))
    chat = await one.ask("Hello")
    await opened(two, chat)
    await two.comes_to(chat, "Hello", "Half")
    await two.do("chat.stop(it.id)", id=chat)
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half", status="stopped")


async def test_an_answer_that_the_server_has_not_named_yet_is_asked_for_once_and_can_be_stopped(
    tabs: Tabs, fake: FakeServer
) -> None:
    one, two = tabs
    named = asyncio.Event()

    async def late(reply: Reply) -> None:
        await named.wait()
        await is_saying("At last.")(reply)

    fake.scripts += [late, late]
    chat = await one.ask("Hello")
    await one.page.evaluate(HEAR, "who")
    await opened(two, chat)
    assert await two.do("chat.isBusy(it.id)", id=chat)
    # Asked twice, the other tab has twice heard that somebody lives who waits for the server.
    await one.until("heard >= 2")
    assert len(fake.requests) == 1
    named.set()
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "At last.")
    named.clear()
    await one.do("chat.regenerate(said('At last.'))")
    await two.until("chat.path(it.id)[1]?.text === ''", id=chat)
    await two.do("chat.stop(it.id)", id=chat)
    named.set()
    await eventually(lambda: fake.replies[1].cancelled.is_set())
    for tab in tabs:
        await tab.until("chat.path(it.id)[1].status === 'stopped'", id=chat)
    assert len(fake.requests) == 2


async def test_when_the_tab_that_asks_is_closed_the_other_one_asks(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs

    async def never(reply: Reply) -> None:
        await reply.cancelled.wait()

    fake.scripts += [never, says("Here.")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    await eventually(lambda: fake.requests)
    await one.page.close()
    await two.comes_to(chat, "Hello", "Here.", status="completed")
    assert fake.requests[1]["input"] == fake.requests[0]["input"]
    assert await two.do("chat.path(it.id)[1].continued", id=chat) == 0


async def test_what_the_server_forgot_one_tab_asks_for_and_both_read(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs
    go_on = asyncio.Event()
    fake.scripts += [is_saying("Half an ans"), held("wer, ", go_on, "and more.")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half an ans")
    fake.forget()
    await fake.drop(1012)
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half an answer, ", status="streaming")
    go_on.set()
    for tab in tabs:
        await tab.comes_to(chat, "Hello", "Half an answer, and more.", status="completed")
        assert await tab.do("chat.path(it.id)[1].continued", id=chat) == 1
    assert len(fake.requests) == 2


async def test_names_pins_branches_setups_and_removals_show_in_the_other_tab(
    tabs: Tabs, fake: FakeServer
) -> None:
    one, two = tabs
    fake.scripts += [says("One."), says("Two.")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    await one.comes_to(chat, "Hello", "One.", status="completed")
    await two.comes_to(chat, "Hello", "One.", status="completed")
    await two.do("chat.regenerate(said('One.'))")
    await one.comes_to(chat, "Hello", "Two.", status="completed")
    await one.do("chat.choose(chat.siblings(said('Two.'))[0])")
    await two.comes_to(chat, "Hello", "One.")
    await one.do("chat.rename(it.id, 'A name')", id=chat)
    await two.do("chat.pin(it.id, true)", id=chat)
    await one.do("chat.setUp(it.id, { model: null, system: 'Be brief.', sampling: {} })", id=chat)
    for tab in tabs:
        await tab.until(
            "chat.get(it.id).title === 'A name' && chat.get(it.id).pinned && chat.get(it.id).setup.system",
            id=chat,
        )
    await two.do("chat.removeBranch(said('One.'))")
    await one.comes_to(chat, "Hello", "Two.")
    await one.do("chat.remove(it.id)", id=chat)
    await two.until("!chat.has(it.id)", id=chat)
    assert await two.kept() == []


async def test_a_removed_conversation_stays_away_though_it_was_being_written(
    tabs: Tabs, fake: FakeServer
) -> None:
    one, two = tabs
    fake.scripts.append(is_saying("Half"))
    chat = await one.ask("Hello")
    await opened(two, chat)
    await two.comes_to(chat, "Hello", "Half")
    await two.do("chat.remove(it.id)", id=chat)
    await one.until("!chat.has(it.id)", id=chat)
    await eventually(lambda: fake.replies[0].cancelled.is_set())
    # What is late must not bring it back.
    await one.do("chat.saveAtOnce()")
    for tab in tabs:
        await tab.reload()
        assert await tab.do("chat.list") == []
    assert await one.kept() == []


async def test_what_this_tab_writes_is_not_lost_to_what_another_one_tells_meanwhile(
    tabs: Tabs, fake: FakeServer
) -> None:
    """The store is read because another tab has changed something; this one changes something just then."""
    one, two = tabs
    rounds = 20
    fake.scripts += [says("One.")] * (rounds + 1)
    chat = await one.ask("Hello")
    await opened(two, chat)
    await one.comes_to(chat, "Hello", "One.", status="completed")
    lost = await one.page.evaluate(
        """async ([id, rounds]) => {
          const channel = new BroadcastChannel("tickwire");
          const turn = () => new Promise((resolve) => setTimeout(resolve));
          let lost = 0;
          for (let n = 0; n < rounds; n += 1) {
            channel.postMessage({ changed: id });
            // Sometimes before the store is read, sometimes while it is.
            for (let i = 0; i < n % 4; i += 1) await turn();
            const setup = { model: null, system: "", sampling: {} };
            chat.rename(id, `Name ${n}`);
            chat.ask(id, `Question ${n}`, setup);
            for (let i = 0; i < 20; i += 1) {
              await turn();
              lost += chat.get(id).title !== `Name ${n}`;
              lost += !chat.path(id).some(({ text }) => text === `Question ${n}`);
            }
          }
          return lost;
        }""",
        [chat, rounds],
    )
    assert lost == 0
    said = ["Hello", "One."]
    for n in range(rounds):
        said += [f"Question {n}", "One."]
    for tab in tabs:
        await tab.comes_to(chat, *said, status="completed")
        assert await tab.do("chat.get(it.id).title", id=chat) == f"Name {rounds - 1}"


async def test_a_rename_in_one_tab_does_not_undo_a_pin_in_the_other(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs
    fake.scripts += [says("One.")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    await two.comes_to(chat, "Hello", "One.", status="completed")
    await asyncio.gather(
        one.do("chat.rename(it.id, 'A name')", id=chat), two.do("chat.pin(it.id, true)", id=chat)
    )
    for tab in tabs:
        await tab.until("chat.get(it.id).title === 'A name' && chat.get(it.id).pinned", id=chat)


async def test_of_all_that_want_to_ask_anew_the_store_lets_one(tabs: Tabs, fake: FakeServer) -> None:
    one, two = tabs

    fake.scripts += [cut_after("Half")]
    chat = await one.ask("Hello")
    await opened(two, chat)
    await two.comes_to(chat, "Hello", "Half", status="length")
    claims = await one.page.evaluate(
        """async (id) => {
          const { openStore } = await import("/static/model/store.js");
          const stores = await Promise.all([openStore(), openStore()]);
          const answer = chat.path(id)[1];
          return Promise.all(stores.map((store) => store.claim(answer)));
        }""",
        chat,
    )
    assert sorted(claim["won"] for claim in claims) == [False, True]
    assert [claim["record"]["asked"] for claim in claims] == [2, 2]


async def test_the_store_keeps_what_is_further_and_nothing_of_what_was_removed(
    tabs: Tabs, fake: FakeServer
) -> None:
    one, _ = tabs
    fake.scripts += [says("One.")]
    chat = await one.ask("Hello")
    await one.comes_to(chat, "Hello", "One.", status="completed")
    await one.until("chat.path(it.id)[1].stats", id=chat)
    kept = await one.page.evaluate(
        """async (id) => {
          const { openStore } = await import("/static/model/store.js");
          const store = await openStore();
          const [question, answer] = chat.path(id);
          // From a tab that has slept since.
          await store.update({ ...answer, text: "On", status: "streaming" });
          const texts = (await store.messages()).map(({ text }) => text);
          await chat.removeBranch(answer);
          await store.update(answer);
          const added = [{ ...answer, conversation: "gone" }];
          await store.change({ id: "gone" }, { title: "Back" }, { added });
          return [texts.sort(), (await store.messages()).map(({ text }) => text)];
        }""",
        chat,
    )
    assert kept == [["Hello", "One."], ["Hello"]]
