"""The page as a person uses it: ask, read, stop, come back."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.app.harness import eventually
from tests.browser.fake import MODEL, FakeServer, Reply, cut_after, is_saying, says
from tests.browser.person import ask, choose, copied, is_kept, last_answer, stop_clock

pytestmark = pytest.mark.asyncio(loop_scope="session")


OLDER_STORE = """async () => {
  await new Promise((resolve) => (indexedDB.deleteDatabase("tickwire").onsuccess = resolve));
  const opening = indexedDB.open("tickwire", 1);
  opening.onupgradeneeded = () => {
    const conversations = opening.result.createObjectStore("conversations", { keyPath: "id" });
    const messages = opening.result.createObjectStore("messages", { keyPath: "id" });
    messages.createIndex("conversation", "conversation");
    conversations.put({ id: "old", title: "Hello", created: 1, updated: 2, head: "b" });
    messages.put({ id: "a", conversation: "old", parent: null, role: "user", text: "Hello", created: 1 });
    const answer = { role: "assistant", text: "Half", status: "streaming", error: null, stats: null };
    messages.put({ id: "b", conversation: "old", parent: "a", created: 2, ...answer });
  };
  await new Promise((resolve) => (opening.onsuccess = resolve));
  opening.result.close();
  history.replaceState(null, "", "#c=old");
}"""


async def test_a_question_is_answered_token_by_token(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("A **rain", "bow** is ")
        await go_on.wait()
        await reply.text("light.")
        await reply.complete()

    fake.scripts.append(script)
    # Asked before that, it would rightly name no model and leave the choice to the server.
    await expect(page.locator("#link")).to_contain_text(MODEL)
    await ask(page, "What is a rainbow?")
    answer = last_answer(page)
    await expect(answer.locator(".prose")).to_have_text("A rainbow is ")
    await expect(answer).to_have_attribute("aria-busy", "true")
    go_on.set()
    await expect(answer.locator(".prose")).to_have_text("A rainbow is light.")
    await expect(answer.locator(".prose strong")).to_have_text("rainbow")
    await expect(answer.locator(".figures")).to_contain_text(
        re.compile(r"3 tokens.*tokens/s.*first token 0\.\d\d s")
    )
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert fake.requests[0]["input"] == [{"role": "user", "content": "What is a rainbow?"}]
    assert "model" not in fake.requests[0]


async def test_the_whole_conversation_is_sent_each_time(page: Page, fake: FakeServer) -> None:
    fake.scripts += [says("Four."), says("Six.")]
    await ask(page, "2 + 2?")
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")
    await ask(page, "And two more?")
    await expect(last_answer(page)).to_contain_text("Six.")
    assert fake.requests[1]["input"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "And two more?"},
    ]


@pytest.mark.parametrize("how", ["button", "escape"])
async def test_stopping_keeps_what_was_said(page: Page, fake: FakeServer, how: str) -> None:
    fake.scripts.append(is_saying("Once upon"))
    await ask(page, "A story?")
    await expect(last_answer(page)).to_contain_text("Once upon")
    if how == "button":
        await page.get_by_role("button", name="Stop the answer").click()
    else:
        await page.keyboard.press("Escape")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_stop_before_the_response_exists_is_sent_when_it_does(page: Page, fake: FakeServer) -> None:
    stopped = asyncio.Event()

    async def script(reply: Reply) -> None:
        await stopped.wait()
        await reply.begin()
        await reply.cancelled.wait()
        await reply.cancel()

    fake.scripts.append(script)
    await ask(page, "Hello?")
    await page.get_by_role("button", name="Stop the answer").click()
    stopped.set()
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")


async def test_stop_again_and_stop_leave_one_question_and_one_answer(page: Page, fake: FakeServer) -> None:
    fake.scripts += [is_saying("First."), is_saying("Second."), says("Third.")]
    await ask(page, "Hello")
    for text in ("First.", "Second."):
        await expect(last_answer(page).locator(".prose")).to_have_text(text)
        await page.get_by_role("button", name="Stop the answer").click()
        await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")
        await page.get_by_role("button", name="Answer again").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Third.")
    await page.reload()
    await expect(page.get_by_role("article")).to_have_count(2)
    assert all(request["input"] == fake.requests[0]["input"] for request in fake.requests)


async def test_reload_takes_a_half_answer_up_again(page: Page, fake: FakeServer) -> None:
    words = [f"word{n} " for n in range(40)]
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*words[:20])
        await go_on.wait()
        await reply.text(*words[20:])
        await reply.complete()

    fake.scripts += [says("Hello to you."), script]
    await ask(page, "Hello <b>there</b>")
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")
    await ask(page, "Go on")
    await expect(last_answer(page)).to_contain_text("word19")
    await page.reload()
    await expect(page.get_by_role("article")).to_have_count(4)
    await expect(page.get_by_role("article", name="You").first.locator(".question")).to_have_text(
        "Hello <b>there</b>"
    )
    await expect(page.get_by_role("article", name="Answer").first).to_contain_text("Hello to you.")
    await expect(last_answer(page).locator(".prose")).to_have_text("".join(words[:20]))
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    go_on.set()
    await expect(last_answer(page).locator(".figures")).to_contain_text("40 tokens")
    await expect(last_answer(page).locator(".prose")).to_have_text("".join(words))
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert [resume["starting_after"] for resume in fake.resumes] == [21], "the text before was told again"


async def test_reload_before_the_first_token_and_elsewhere(page: Page, fake: FakeServer) -> None:
    """Answers belong to their conversations: one that is not on screen is taken up, too."""
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await go_on.wait()
        await reply.text("At last.")
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Slow one")
    await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
    await is_kept(page)
    await page.get_by_role("button", name="New chat").first.click()
    await page.reload()
    await eventually(lambda: fake.resumes)
    go_on.set()
    await page.get_by_role("button", name="Slow one", exact=True).click()
    await expect(last_answer(page).locator(".prose")).to_have_text("At last.")
    await expect(last_answer(page).locator(".figures span span").first).to_have_text("1 token")
    await expect(last_answer(page).locator(".figures")).not_to_contain_text("first token")


async def test_a_second_tab_reads_along_and_can_stop(
    context: BrowserContext, page: Page, fake: FakeServer
) -> None:
    """The answer is kept as it comes, not only when the page is left in good order."""
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half an ans")
        await go_on.wait()
        await reply.text("wer, and ")
        await reply.cancelled.wait()
        await reply.cancel()

    fake.scripts.append(script)
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half an ans")
    other = await context.new_page()
    await other.goto(page.url)
    await expect(last_answer(other)).to_contain_text("Half an ans")
    go_on.set()
    for tab in (page, other):
        await expect(last_answer(tab).locator(".prose")).to_have_text("Half an answer, and")
    await other.get_by_role("button", name="Stop the answer").click()
    for tab in (page, other):
        await expect(last_answer(tab).locator(".ending")).to_have_text("Stopped")
        await expect(tab.get_by_role("button", name="Send")).to_be_visible()


async def test_a_second_tab_does_not_bring_back_what_was_deleted(
    context: BrowserContext, page: Page, fake: FakeServer
) -> None:
    fake.scripts.append(is_saying("Half"))
    await ask(page, "Delete me")
    await expect(last_answer(page)).to_contain_text("Half")
    other = await context.new_page()
    await other.goto(page.url)
    await expect(last_answer(other)).to_contain_text("Half")
    await choose(page, "Delete me", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(other.get_by_role("heading", name="Say something.")).to_be_visible()
    await page.reload()
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await expect(page.locator("#conversations li")).to_have_count(0)


async def test_what_was_done_last_is_kept_though_the_page_goes_at_once(page: Page, fake: FakeServer) -> None:
    """A new name, another branch, a question: none of them had the time to be compared with what is kept."""
    # The question may reach the server before the page has gone, and again after.
    fake.scripts += [says("One."), says("Two."), says("Three."), says("Three.")]
    await ask(page, "Hello")
    await expect(last_answer(page).locator(".figures")).to_contain_text("1 token")
    await page.keyboard.press("Control+Shift+Enter")
    await expect(last_answer(page)).to_contain_text("Two.")
    await expect(last_answer(page).locator(".figures")).to_contain_text("1 token")
    await page.get_by_role("textbox", name="Message").fill("More")
    await page.keyboard.press("F2")
    await page.get_by_role("textbox", name="New title").fill("New name")
    async with page.expect_event("load"):
        await page.evaluate(
            """() => {
                // A store that is busy for as long as the page is there, and does not answer.
                IDBObjectStore.prototype.get = function () {
                    const work = () => (this.count().onsuccess = work);
                    work();
                    return {};
                };
                document.querySelector("#transcript .assistant .picker button").click();
                document.querySelector("#composer").requestSubmit();
                document.querySelector("#conversations input").blur();
                location.reload();
            }"""
        )
    await expect(page.locator("#conversations .title")).to_have_text("New name")
    await expect(last_answer(page)).to_contain_text("Three.")
    await expect(page.locator("#transcript > .turn")).to_have_count(4)
    await expect(page.locator("#transcript .assistant").first).to_contain_text("One.")


async def test_conversations_of_an_older_page_are_kept(page: Page, fake: FakeServer) -> None:
    await page.evaluate(OLDER_STORE)
    await page.reload()
    await expect(page.locator(".question")).to_have_text("Hello")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half")
    await expect(last_answer(page).locator(".ending")).to_have_text("Interrupted")


async def test_the_bare_address_comes_back_to_the_last_conversation(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Hello to you."))
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Hello to you.")
    await page.goto("about:blank")
    await page.goto(fake.origin)
    await expect(last_answer(page)).to_contain_text("Hello to you.")
    await page.get_by_role("button", name="New chat").first.click()
    await page.goto(fake.origin)
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()


async def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def slow(reply: Reply) -> None:
        await reply.begin()
        await reply.text("First part, ")
        await go_on.wait()
        await reply.text("second part.")
        await reply.complete()

    fake.scripts += [slow, says("Quick.")]
    await ask(page, "Slow one")
    await expect(last_answer(page)).to_contain_text("First part,")
    await page.get_by_role("button", name="New chat").first.click()
    await ask(page, "Quick one")
    await expect(last_answer(page)).to_contain_text("Quick.")
    assert fake.requests[0]["stream_id"] != fake.requests[1]["stream_id"]
    go_on.set()
    await page.get_by_role("button", name="Slow one", exact=True).click()
    await expect(last_answer(page).locator(".prose")).to_have_text("First part, second part.")
    await page.go_back()
    await expect(last_answer(page)).to_contain_text("Quick.")


async def test_deleting_a_conversation_is_asked_for_and_lasts(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Yes."))
    await ask(page, "Delete me")
    await expect(last_answer(page)).to_contain_text("Yes.")
    await choose(page, "Delete me", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    await expect(last_answer(page)).to_contain_text("Yes.")
    await choose(page, "Delete me", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    await page.reload()
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await expect(page.locator("#conversations li")).to_have_count(0)


async def test_a_refused_request_says_why_and_can_be_tried_again(page: Page, fake: FakeServer) -> None:
    async def refuse(reply: Reply) -> None:
        await reply.refuse(
            429, code="queue_full", type="rate_limit_error", message="64 requests wait already."
        )

    fake.scripts += [refuse, says("Now it works.")]
    await ask(page, "Hello")
    failure = last_answer(page).locator(".failure")
    await expect(failure).to_contain_text("64 requests wait already.")
    await expect(failure).to_contain_text("queue_full")
    await failure.get_by_role("button", name="Try again").click()
    await expect(last_answer(page)).to_contain_text("Now it works.")
    await expect(page.get_by_role("article", name="Answer")).to_have_count(1)
    assert fake.requests[1]["input"] == fake.requests[0]["input"]


async def test_a_failure_in_the_middle_keeps_the_text(page: Page, fake: FakeServer) -> None:
    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("So far so")
        await reply.failed("server_error", "The engine stopped.")

    fake.scripts.append(script)
    await ask(page, "Hello")
    await expect(last_answer(page).locator(".failure")).to_contain_text("The engine stopped.")
    await expect(last_answer(page).locator(".prose")).to_have_text("So far so")


async def test_an_answer_cut_by_the_limit_says_so(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(cut_after("One, two"))
    await ask(page, "Count")
    await expect(last_answer(page).locator(".ending")).to_have_text("Cut at the token limit")


async def test_a_conversation_too_long_offers_a_new_one(page: Page, fake: FakeServer) -> None:
    async def refuse(reply: Reply) -> None:
        await reply.refuse(
            400, code="context_length_exceeded", message="9000 tokens, at most 8192.", param="input"
        )

    fake.scripts.append(refuse)
    await ask(page, "Hello")
    await last_answer(page).get_by_role("button", name="New chat").click()
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()


async def test_a_lost_connection_is_said_and_mended(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half, ")
        await go_on.wait()
        await reply.text("and whole.")
        await reply.complete()

    fake.scripts += [script, says("Late.")]
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half,")
    await stop_clock(page)
    await fake.drop(1012)
    await expect(page.locator("#strip")).to_contain_text("The connection is lost.")
    go_on.set()
    # The answer still runs, and a question asked now waits for the connection instead of being lost.
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    await page.get_by_role("button", name="New chat").first.click()
    await ask(page, "Are you there?")
    await expect(last_answer(page)).to_contain_text("Waiting for the connection")
    await page.get_by_role("button", name="Try now").click()
    await expect(last_answer(page)).to_contain_text("Late.")
    await expect(page.locator("#strip")).to_be_hidden()
    await page.get_by_role("button", name="Hello", exact=True).click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Half, and whole.")
    await expect(last_answer(page).locator(".figures")).to_contain_text("2 tokens")


async def test_stopping_without_a_connection_is_told_later(page: Page, fake: FakeServer) -> None:
    told = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("Half")
        await reply.cancelled.wait()
        told.set()
        await reply.text(" too much")
        await reply.cancel()

    fake.scripts += [script, says("Next.")]
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("Half")
    await stop_clock(page)
    await fake.drop(1012)
    await expect(page.locator("#strip")).to_be_visible()
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped")
    await page.get_by_role("button", name="Try now").click()
    async with asyncio.timeout(5):
        await told.wait()
    await ask(page, "And then?")
    await expect(last_answer(page)).to_contain_text("Next.")
    await expect(page.get_by_role("article", name="Answer").first.locator(".prose")).to_have_text("Half")


async def test_a_device_that_is_online_again_does_not_wait(page: Page, fake: FakeServer) -> None:
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await stop_clock(page)
    await fake.drop(1012)
    await expect(page.locator("#link")).to_have_attribute("data-state", "waiting")
    await page.evaluate("dispatchEvent(new Event('online'))")
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")


async def test_a_server_that_says_stay_away_is_not_asked_again(page: Page, fake: FakeServer) -> None:
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    await fake.drop(1008)
    await expect(page.locator("#strip")).to_contain_text("refused")
    await expect(page.locator("#link")).to_have_attribute("data-state", "refused")


async def test_reading_back_is_not_disturbed_by_new_text(page: Page, fake: FakeServer) -> None:
    more = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*(f"Line {n}\n\n" for n in range(60)))
        await more.wait()
        await reply.text(*(f"Late {n}\n\n" for n in range(60)))
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Count")
    await expect(last_answer(page).get_by_text("Line 59")).to_be_in_viewport()
    await page.locator("#scroller").hover()
    await page.mouse.wheel(0, -800)
    jump = page.get_by_role("button", name="Jump to latest")
    await expect(jump).to_be_visible()
    more.set()
    await expect(last_answer(page).locator(".figures")).to_contain_text("120 tokens")
    await expect(last_answer(page).get_by_text("Late 59")).not_to_be_in_viewport()
    await jump.click()
    await expect(last_answer(page).get_by_text("Late 59")).to_be_in_viewport()
    await expect(jump).to_be_hidden()


# Scrolls back from the end: where did the button lie over the answer's figures, and did it come at all?
COVERED = """async () => {
  const [scroller, jump] = ["#scroller", "#jump"].map((selector) => document.querySelector(selector));
  const figures = document.querySelector(".assistant:last-child .figures > span");
  const frame = () => new Promise(requestAnimationFrame);
  const covered = [];
  for (let left = 5; left < 400; left += 15) {
    scroller.scrollTop = scroller.scrollHeight - scroller.clientHeight - left;
    await frame();
    await frame();
    const [over, under] = [jump, figures].map((element) => element.getBoundingClientRect());
    if (over.height && over.top < under.bottom && under.top < over.bottom) covered.push(left);
  }
  return [covered, jump.checkVisibility()];
}"""


@pytest.mark.parametrize("width", [390, 1280])
async def test_the_way_to_the_end_hides_nothing_of_it(page: Page, fake: FakeServer, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    fake.scripts.append(says(*(f"Line {n}\n\n" for n in range(60))))
    await ask(page, "Count")
    await expect(last_answer(page).locator(".figures")).to_contain_text("60 tokens")
    await expect(last_answer(page).get_by_text("Line 59")).to_be_in_viewport()
    assert await page.evaluate(COVERED) == [[], True]


async def test_enter_during_an_input_method_composition_sends_nothing(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("はい"))
    field = page.get_by_role("textbox", name="Message")
    await field.fill("にほん")
    await field.dispatch_event(
        "keydown", {"key": "Enter", "isComposing": True, "bubbles": True, "cancelable": True}
    )
    await expect(field).to_have_value("にほん")
    await page.keyboard.press("Shift+Enter")
    await expect(field).to_have_value("にほん\n")
    await page.keyboard.press("Enter")
    await expect(last_answer(page)).to_contain_text("はい")
    assert [request["input"][0]["content"] for request in fake.requests] == ["にほん"]


async def test_code_and_answers_can_be_copied(page: Page, fake: FakeServer) -> None:
    source = "Do:\n\n```py\nprint('<b>')\n```\n\nThen *rest*."
    fake.scripts.append(says(*source))
    await ask(page, "Code")
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")
    assert await copied(page, page.get_by_role("button", name="Copy code")) == "print('<b>')"
    await expect(page.locator(".announcer p").last).to_have_text("Copied")
    # What says so on a button stays for a moment only.
    await stop_clock(page)
    assert await copied(page, page.get_by_role("button", name="Copy answer")) == source
    await expect(page.get_by_role("button", name="Copy answer")).to_have_attribute("data-copied", "yes")


async def test_the_theme_is_remembered(page: Page) -> None:
    await page.get_by_role("radio", name="Dark").check()
    dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_role("radio", name="Light").check()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    await page.reload()
    await expect(page.get_by_role("radio", name="Light")).to_be_checked()


async def test_on_a_phone_the_list_is_a_drawer(context: BrowserContext, page: Page, fake: FakeServer) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    fake.scripts.append(says("Yes."))
    await ask(page, "Small screen")
    await expect(last_answer(page)).to_contain_text("Yes.")
    entry = page.get_by_role("button", name="Small screen", exact=True)
    await expect(entry).to_be_hidden()
    await page.get_by_role("button", name="Conversations").click()
    await expect(entry).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(entry).to_be_hidden()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
