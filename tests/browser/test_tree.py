"""Conversations as trees: edit, answer again, choose, remove, go on."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext

from tests.app.harness import eventually
from tests.browser.fake import FakeServer, Reply, cut_after, is_saying, says
from tests.browser.person import Tab

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def tab(context: BrowserContext, fake: FakeServer) -> AsyncIterator[Tab]:
    tab = await Tab.open(context, fake.origin)
    yield tab
    assert await tab.do("trouble") == []


Message = dict[str, Any]


def grown(seed: int) -> list[Message]:
    """A tree of up to 30 messages, in no order; of two siblings the one with the greater number is newer."""
    chance = random.Random(seed)
    messages: list[Message] = [{"id": "0", "parent": None, "created": 0}]
    for n in range(1, chance.randint(1, 30)):
        messages.append(
            {"id": f"{n}", "parent": chance.choice([*messages, {"id": None}])["id"], "created": n}
        )
    chance.shuffle(messages)
    return messages


def ids(messages: list[Message]) -> list[str]:
    return [message["id"] for message in messages]


async def test_paths_siblings_leaves_and_branches_of_any_tree(tab: Tab) -> None:
    trees = [grown(seed) for seed in range(100)]
    found = await tab.page.evaluate(
        """async (trees) => {
          const { branchFrom, newestLeaf, pathTo, siblingsOf } = await import("/static/model/tree.js");
          const ids = (messages) => messages.map(({ id }) => id);
          return trees.map((messages) => {
            const tree = new Map(messages.map((message) => [message.id, message]));
            return messages.map((message) => [
              ids(pathTo(message.id, tree)),
              ids(siblingsOf(message, tree)),
              newestLeaf(message, tree).id,
              ids(branchFrom(message, tree)).sort(),
            ]);
          });
        }""",
        trees,
    )
    for tree, results in zip(trees, found, strict=True):
        parents = {message["id"]: message["parent"] for message in tree}
        children = {
            key: [each for each in sorted(parents, key=int) if parents[each] == key]
            for key in [None, *parents]
        }
        for message, (path, siblings, leaf, branch) in zip(tree, results, strict=True):
            assert parents[path[0]] is None
            assert path[-1] == message["id"]
            assert all(parents[below] == above for above, below in itertools.pairwise(path))
            assert siblings == children[message["parent"]]
            newest = message["id"]
            while children[newest]:
                newest = children[newest][-1]
            assert leaf == newest
            under = [each for each in parents if message["id"] in ancestry(each, parents)]
            assert branch == sorted(under)


def ancestry(message: str | None, parents: dict[str, Any]) -> list[str]:
    return [message, *ancestry(parents[message], parents)] if message is not None else []


async def test_the_input_joins_what_has_no_answer_between(tab: Tab) -> None:
    path = [
        {"role": "user", "text": "Hello?"},
        {"role": "assistant", "text": ""},
        {"role": "user", "text": "Anybody?"},
        {"role": "assistant", "text": "Yes."},
        {"role": "assistant", "text": ""},
    ]
    given = await tab.page.evaluate(
        "async (path) => (await import('/static/model/tree.js')).toInput(path)", path
    )
    assert given == [
        {"role": "user", "content": "Hello?\n\nAnybody?"},
        {"role": "assistant", "content": "Yes."},
    ]


async def test_edits_and_second_answers_stand_beside_the_first(tab: Tab, fake: FakeServer) -> None:
    fake.scripts += [says("One."), says("Two."), says("And?"), says("Three.")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "One.", status="completed")
    await tab.do("chat.regenerate(said('One.'))")
    await tab.comes_to(chat, "Hello", "Two.", status="completed")
    await tab.ask("More", chat)
    await tab.comes_to(chat, "Hello", "Two.", "More", "And?", status="completed")
    await tab.do("chat.edit(said('Hello'), 'Good day')")
    await tab.comes_to(chat, "Good day", "Three.", status="completed")
    assert [request["input"] for request in fake.requests] == [
        [{"role": "user", "content": "Hello"}],
        [{"role": "user", "content": "Hello"}],
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "More"},
        ],
        [{"role": "user", "content": "Good day"}],
    ]
    # Back in the first question's branch, it is where it was left; and so it is after a reload.
    await tab.do("chat.choose(chat.siblings(said('Good day'))[0])")
    assert await tab.path(chat) == ["Hello", "Two.", "More", "And?"]
    await tab.do("chat.choose(chat.siblings(said('Two.'))[0])")
    assert await tab.path(chat) == ["Hello", "One."]
    await tab.is_kept(chat, "One.")
    await tab.reload()
    await tab.do("chat.open(it.id)", id=chat)
    assert await tab.path(chat) == ["Hello", "One."]
    assert await tab.do("chat.siblings(said('One.')).map(({ text }) => text)") == ["One.", "Two."]


async def test_a_removed_branch_is_gone_and_the_newest_beside_it_shows(tab: Tab, fake: FakeServer) -> None:
    fake.scripts += [says("One."), says("Two."), says("And?"), says("Three.")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "One.", status="completed")
    await tab.do("chat.regenerate(said('One.'))")
    await tab.comes_to(chat, "Hello", "Two.", status="completed")
    await tab.ask("More", chat)
    await tab.comes_to(chat, "Hello", "Two.", "More", "And?", status="completed")
    await tab.do("chat.removeBranch(chat.siblings(said('Two.'))[0])")
    assert await tab.path(chat) == ["Hello", "Two.", "More", "And?"], "what is not shown goes unseen"
    await tab.do("chat.removeBranch(said('And?'))")
    assert await tab.path(chat) == ["Hello", "Two.", "More"], "a question alone"
    await tab.do("chat.edit(said('More'), 'Less')")
    await tab.comes_to(chat, "Hello", "Two.", "Less", "Three.", status="completed")
    await tab.do("chat.removeBranch(said('Less'))")
    assert await tab.path(chat) == ["Hello", "Two.", "More"]
    await tab.reload()
    await tab.do("chat.open(it.id)", id=chat)
    assert await tab.path(chat) == ["Hello", "Two.", "More"]
    assert sorted(each["text"] for each in await tab.kept()) == ["Hello", "More", "Two."]


@pytest.mark.parametrize("also", ["the answer", "the question"])
async def test_what_is_removed_while_it_is_written_is_stopped_and_not_kept(
    tab: Tab, fake: FakeServer, also: str
) -> None:
    fake.scripts += [says("One."), is_saying("Half")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "One.", status="completed")
    await tab.ask("More", chat)
    await tab.comes_to(chat, "Hello", "One.", "More", "Half")
    await tab.do("chat.removeBranch(said(it.text))", text="Half" if also == "the answer" else "More")
    await eventually(lambda: fake.replies[-1].cancelled.is_set())
    left = ["Hello", "One.", "More"] if also == "the answer" else ["Hello", "One."]
    assert await tab.path(chat) == left
    assert await tab.do("chat.isBusy(it.id)", id=chat) is False
    await tab.reload()
    await tab.do("chat.open(it.id)", id=chat)
    assert await tab.path(chat) == left
    assert sorted(each["text"] for each in await tab.kept()) == sorted(left)


async def test_with_its_last_message_a_conversation_goes(tab: Tab, fake: FakeServer) -> None:
    fake.scripts += [is_saying("Half")]
    chat = await tab.ask("Hello")
    await tab.comes_to(chat, "Hello", "Half")
    await tab.do("chat.removeBranch(said('Hello'))")
    assert await tab.do("chat.list") == []
    assert await tab.kept() == []
    await tab.reload()
    assert await tab.do("chat.list") == []


async def test_what_ended_early_goes_on_from_its_last_word(tab: Tab, fake: FakeServer) -> None:
    async def rest(reply: Reply) -> None:
        reply.prompt_tokens = 8
        await reply.begin()
        await reply.text("a ", "time.")
        await reply.complete()

    fake.scripts += [cut_after("Once upon "), rest]
    chat = await tab.ask("A story")
    await tab.comes_to(chat, "A story", "Once upon ", status="length")
    await tab.do("chat.continue(said('Once upon '))")
    await tab.comes_to(chat, "A story", "Once upon a time.", status="completed")
    assert fake.requests[1]["continue_final_message"] is True
    assert fake.requests[1]["input"] == [
        {"role": "user", "content": "A story"},
        {"role": "assistant", "content": "Once upon "},
    ]
    answer = await tab.do("chat.path(chat.list[0].id)[1]")
    assert (answer["continued"], answer["stats"]["tokens"], answer["stats"]["promptTokens"]) == (1, 3, 7)
    assert answer["stats"]["firstTokenMs"] > 0


async def test_a_question_in_another_branch_leaves_a_running_answer_alone(tab: Tab, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def slow(reply: Reply) -> None:
        await reply.begin()
        await reply.text("First, ")
        await go_on.wait()
        await reply.text("second.")
        await reply.complete()

    fake.scripts += [slow, says("Quick.")]
    chat = await tab.ask("Slow")
    await tab.comes_to(chat, "Slow", "First, ")
    await tab.do("chat.edit(said('Slow'), 'Quick')")
    await tab.comes_to(chat, "Quick", "Quick.", status="completed")
    go_on.set()
    await tab.do("chat.choose(chat.siblings(said('Quick'))[0])")
    await tab.comes_to(chat, "Slow", "First, second.", status="completed")


async def test_a_long_question_gives_a_short_title_of_whole_signs(tab: Tab, fake: FakeServer) -> None:
    fake.scripts.append(says("Yes."))
    await tab.ask(f"\n{'a' * 58}\N{BREAD}{'b' * 20}\nand more")
    assert await tab.do("chat.list[0].title") == f"{'a' * 58}…"


async def test_an_answer_without_a_question_is_not_given_again(tab: Tab, fake: FakeServer) -> None:
    answer = {
        "id": "a",
        "conversation": "c",
        "parent": None,
        "role": "assistant",
        "text": "Welcome.",
        "created": 1,
    }
    conversation = {"id": "c", "title": "C", "created": 1, "updated": 1, "head": "a", "pinned": False}
    entry = {"conversation": conversation, "messages": [answer | {"status": "completed"}]}
    await tab.do("chat.addAll([it.entry])", entry=entry)
    await tab.do("chat.open('c').then(([answer]) => chat.regenerate(answer))")
    fake.scripts.append(says("Hello to you."))
    await tab.ask("Hello", "c")
    await tab.comes_to("c", "Welcome.", "Hello", "Hello to you.", status="completed")
    assert [message["role"] for message in fake.requests[0]["input"]] == ["assistant", "user"]


async def test_a_question_waits_for_what_was_said_before_to_be_read(tab: Tab, fake: FakeServer) -> None:
    fake.scripts += [says("Hello."), says("Again.")]
    chat = await tab.ask("Hi")
    await tab.comes_to(chat, "Hi", "Hello.", status="completed")
    await tab.reload()
    await tab.ask("And?", chat)
    await tab.comes_to(chat, "Hi", "Hello.", "And?", "Again.", status="completed")
    assert [said["content"] for said in fake.requests[-1]["input"]] == ["Hi", "Hello.", "And?"]
    assert len(fake.requests) == 2
