"""What can be done with a question and an answer, and what is said of an answer while it runs and after."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.fake import FakeServer, Reply, cut_after, says
from tests.browser.person import ask, copied, last_answer
from tests.browser.records import conversation, keep

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "\n\n".join(f"Paragraph {n} of a long answer." for n in range(30))


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


async def settled(page: Page) -> None:
    await expect(last_answer(page).get_by_role("button", name="Delete answer")).to_be_visible()


async def ask_all(page: Page, fake: FakeServer, *turns: tuple[str, str]) -> None:
    """A conversation of these questions and answers."""
    for number, (question, answer) in enumerate(turns, 1):
        fake.scripts.append(says(answer))
        await ask(page, question)
        await expect(answers(page)).to_have_count(number)
        await settled(page)


async def test_a_question_is_asked_anew_and_both_stay(page: Page, fake: FakeServer) -> None:
    await ask_all(page, fake, ("Cats?", "Cats purr."), ("And big ones?", "They roar."))
    await questions(page).first.get_by_role("button", name="Edit question").click()
    field = page.get_by_role("textbox", name="Question to ask instead")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("Cats?")
    fake.scripts.append(says("Dogs bark."))
    await field.fill("Dogs?")
    await page.keyboard.press("Enter")
    await expect(last_answer(page).locator(".prose")).to_have_text("Dogs bark.")
    await expect(page.get_by_role("article")).to_have_count(2)
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert fake.requests[-1]["input"] == [{"role": "user", "content": "Dogs?"}]

    await (
        page.get_by_role("group", name="Question 2 of 2")
        .get_by_role("button", name="Previous question")
        .focus()
    )
    await page.keyboard.press("Enter")
    await expect(questions(page).locator(".question")).to_have_text(["Cats?", "And big ones?"])
    await expect(answers(page).locator(".prose")).to_have_text(["Cats purr.", "They roar."])
    # The focus is where one goes on from, even at the end of the row.
    picker = page.get_by_role("group", name="Question 1 of 2")
    await expect(picker.get_by_role("button", name="Previous question")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(picker).to_be_visible()
    await page.reload()
    await expect(answers(page).locator(".prose")).to_have_text(["Cats purr.", "They roar."])
    await expect(picker).to_be_visible()


async def test_a_question_that_is_left_as_it_was(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()
    replies: list[Reply] = []

    async def script(reply: Reply) -> None:
        replies.append(reply)
        await reply.begin()
        await reply.text("Half")
        await go_on.wait()
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "ねこ")
    await expect(last_answer(page)).to_contain_text("Half")
    edit = page.get_by_role("button", name="Edit question")
    await edit.focus()
    await page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name="Question to ask instead")
    await field.fill("いぬ")
    for key in ("Enter", "Escape"):
        composing = {"key": key, "isComposing": True, "bubbles": True, "cancelable": True}
        await field.dispatch_event("keydown", composing)
    await expect(field).to_have_value("いぬ")
    await page.keyboard.press("Escape")
    await expect(page.locator(".question")).to_have_text("ねこ")
    await expect(edit).to_be_focused()
    # Escape was for the field: the answer runs on.
    go_on.set()
    await settled(page)
    assert not replies[0].cancelled.is_set()
    assert len(fake.requests) == 1


async def test_an_earlier_answer_is_given_again_where_the_reader_looks(page: Page, fake: FakeServer) -> None:
    await ask_all(page, fake, ("One?", LONG), ("Two?", "Two."))
    fake.scripts.append(says("Short."))
    first = answers(page).first
    await first.get_by_role("button", name="Answer again").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Short.")
    await settled(page)
    assert fake.requests[-1]["input"] == [{"role": "user", "content": "One?"}]

    async def height_of_picker() -> float:
        box = await page.get_by_role("group", name="Answer").bounding_box()
        assert box is not None
        return box["y"]

    await page.get_by_role("button", name="Previous answer").click()
    await expect(answers(page).locator(".prose").last).to_have_text("Two.")
    before = await height_of_picker()
    await expect(page.get_by_role("button", name="Previous answer")).to_be_focused()
    await page.get_by_role("button", name="Next answer").click()
    await expect(answers(page).locator(".prose")).to_have_text("Short.")
    await page.get_by_role("button", name="Previous answer").click()
    await expect(answers(page).locator(".prose").last).to_have_text("Two.")
    assert await height_of_picker() == pytest.approx(before, abs=2)
    await expect(page.get_by_role("group", name="Answer 1 of 2")).to_be_in_viewport()


async def test_what_was_cut_goes_on(page: Page, fake: FakeServer) -> None:
    async def goes_on(reply: Reply) -> None:
        reply.prompt_tokens += 2  # what is there already
        await says(", three", ".")(reply)

    fake.scripts += [cut_after("One, ", "two"), goes_on]
    await ask(page, "Count")
    await expect(last_answer(page).locator(".ending")).to_have_text("Cut at the token limit")
    await page.get_by_role("button", name="Continue").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("One, two, three.")
    figures = last_answer(page).locator(".figures")
    await expect(figures).to_contain_text("continued")
    await expect(figures).to_contain_text("4 tokens")
    await expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    assert fake.requests[1]["continue_final_message"] is True
    assert fake.requests[1]["input"][-1] == {"role": "assistant", "content": "One, two"}


async def test_what_failed_goes_on_or_is_replaced(page: Page, fake: FakeServer) -> None:
    async def fails(reply: Reply) -> None:
        await reply.begin()
        await reply.text("So far ")
        await reply.failed("server_error", "The engine stopped.")

    async def refuse(reply: Reply) -> None:
        await reply.refuse(429, code="queue_full", message="64 requests wait already.")

    fake.scripts += [fails, says("so good."), refuse, says("Now it works.")]
    await ask(page, "Hello")
    failure = last_answer(page).locator(".failure")
    await expect(failure.get_by_role("button", name="Try again")).to_be_visible()
    await failure.get_by_role("button", name="Continue").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("So far so good.")
    await expect(failure).to_be_hidden()

    await ask(page, "And then?")
    await expect(failure).to_contain_text("64 requests wait already.")
    await expect(failure.get_by_role("button", name="Continue")).to_have_count(0)
    await failure.get_by_role("button", name="Try again").click()
    await expect(last_answer(page)).to_contain_text("Now it works.")
    # An answer without a word is nothing to go back to.
    await expect(page.get_by_role("group", name="Answer")).to_have_count(0)


async def test_a_message_is_deleted_with_what_follows(page: Page, fake: FakeServer) -> None:
    await ask_all(page, fake, ("One?", "First answer."), ("Two?", "Second answer."))
    dialog = page.get_by_role("dialog")
    await answers(page).first.get_by_role("button", name="Delete answer").click()
    await expect(dialog).to_contain_text("First answer.")
    await expect(dialog).to_contain_text("What follows it goes, too.")
    await dialog.get_by_role("button", name="Keep").click()
    await expect(page.get_by_role("article")).to_have_count(4)
    await questions(page).last.get_by_role("button", name="Delete question").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("article")).to_have_count(2)
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await page.reload()
    await expect(answers(page).locator(".prose")).to_have_text(["First answer."])


async def test_the_line_says_what_is_true_now(page: Page, fake: FakeServer) -> None:
    replies: list[Reply] = []
    steps = [asyncio.Event() for _ in range(3)]

    async def script(reply: Reply) -> None:
        replies.append(reply)
        reply.prompt_tokens = 7400
        reply.cached_tokens = 6000
        reply.stats = {"status": "queued", "queue_position": 2}
        await reply.begin()
        await steps[0].wait()
        reply.stats = {"status": "prefilling", "computed_tokens": 3700}
        await steps[1].wait()
        reply.stats = {"tokens_per_s": 54.32}
        await reply.text("A ", "rain", "bow.")
        await steps[2].wait()
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "What?")
    answer = last_answer(page)
    await expect(answer).to_contain_text("3rd in the queue")
    replies[0].stats = {"status": "queued", "queue_position": 0}
    await expect(answer).to_contain_text("Next in the queue")
    steps[0].set()
    await expect(answer).to_contain_text("Reading your message: 50%")
    height = (await answer.bounding_box() or {})["height"]
    steps[1].set()
    figures = answer.locator(".figures")
    await expect(figures.locator("span > span")).to_have_text(["3 tokens", "54.3 tokens/s"])
    await expect(page.locator("#context")).to_contain_text("789 of 8,192 tokens left")
    await expect(answer.locator(".bar").get_by_role("button")).to_have_count(0)
    steps[2].set()
    await settled(page)
    await expect(figures).to_contain_text("first token")
    await expect(figures).to_contain_text("7,400 prompt tokens, 6,000 cached")
    await expect(page.locator("#context")).to_contain_text("789 of 8,192 tokens left")
    # One line of text where the dots were: nothing below has moved.
    assert (await answer.bounding_box() or {})["height"] == pytest.approx(height, abs=3)


async def test_each_message_can_be_copied_as_it_was_written(page: Page, fake: FakeServer) -> None:
    await ask_all(page, fake, ("a *b*", "**Bold** and `code`."), ("Two?", "Two."))
    copy_answer = answers(page).first.get_by_role("button", name="Copy answer")
    assert await copied(page, copy_answer) == "**Bold** and `code`."
    copy_question = questions(page).first.get_by_role("button", name="Copy question")
    assert await copied(page, copy_question) == "a *b*"
    await expect(page.locator("#context")).to_contain_text("8 of 8,192 tokens")


async def test_the_buttons_of_earlier_messages_wait_until_somebody_comes_near(
    page: Page, fake: FakeServer
) -> None:
    await ask_all(page, fake, ("One?", "First answer."), ("Two?", "Second answer."))
    buttons = answers(page).first.locator(".buttons")
    await page.get_by_role("textbox", name="Message").hover()
    await expect(buttons).to_have_css("opacity", "0")
    await expect(last_answer(page).locator(".buttons")).to_have_css("opacity", "1")
    await answers(page).first.hover()
    await expect(buttons).to_have_css("opacity", "1")
    await page.get_by_role("textbox", name="Message").hover()
    await expect(buttons).to_have_css("opacity", "0")
    await buttons.get_by_role("button", name="Answer again").focus()
    await expect(buttons).to_have_css("opacity", "1")


async def test_an_answer_without_a_question_can_be_read_and_not_given_again(page: Page) -> None:
    entry = conversation("Imported", "", "Welcome.")
    (answer,) = entry["messages"] = entry["messages"][1:]
    answer["parent"] = None
    await keep(page, entry)
    await page.locator("#conversations").get_by_text("Imported").click()
    await expect(answers(page).locator(".prose")).to_have_text("Welcome.")
    await settled(page)
    await expect(page.get_by_role("button", name="Copy answer")).to_be_visible()
    await expect(page.get_by_role("button", name="Answer again")).to_be_hidden()
