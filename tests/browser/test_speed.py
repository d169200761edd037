"""What the page does not do twice, what it leaves for later, and what it weighs. None looks at a clock."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, says
from tests.browser.person import ask, last_answer
from tests.browser.records import conversation, keep

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The whole is to stay below 200.
MOST_KB = 190

ANSWER = "\n\n".join(
    part
    for i in range(6)
    for part in (
        f"## Part {i}",
        f"A paragraph with **bold** {i}, `code` and $x_{i}$. " * 3,
        "\n".join(f"{n}. item {n} of {i}\n   - with a detail" for n in range(1, 9)),
        f"```python\ndef f_{i}(x):\n    return 'text', {i}  # why\n```",
        "| a | b | c |\n|--|--|--|\n" + "\n".join(f"| {n} | {i} | **{n * i}** |" for n in range(20)),
        f"$$\n\\sum_{{k=0}}^{{{i}}} k\n$$",
    )
)

# Streams a text into a view, a few characters a frame, and counts what changes in which of its blocks.
STREAM = """async ([text, step]) => {
    const { MarkdownView } = await import("/static/render/markdown.js");
    const frame = () => new Promise(requestAnimationFrame);
    const root = document.createElement("div");
    document.querySelector("#transcript").append(root);
    // What formulas and code need is there before anything is counted.
    await new MarkdownView(root).finish("$z$\\n\\n```python\\nx = 1\\n```");
    while (!root.querySelector(".formula") || !root.querySelector(".hl")) await frame();
    root.replaceChildren();
    const counts = { late: [], parts: 0, frames: 0, whole: 0 };
    const blockOf = (node) => { while (node.parentNode !== root) node = node.parentNode; return node; };
    const records = [];
    const observer = new MutationObserver((some) => records.push(...some));
    const changes = () =>
        [...records.splice(0), ...observer.takeRecords()].filter(({ target }) => root.contains(target));
    observer.observe(root, { childList: true, subtree: true, characterData: true, attributes: true });
    const view = new MarkdownView(root);
    for (let end = 0; end < text.length; end += step) {
        const num = root.children.length;
        view.grow(text.slice(0, end));
        await frame(); await frame();
        counts.frames += 1;
        for (const { target, addedNodes } of changes()) {
            const added = [...addedNodes];
            counts.parts += added.filter(({ nodeName }) => nodeName === "TR" || nodeName === "LI").length;
            const shown = added.filter((node) => node instanceof Element && node.parentNode);
            const blocks = target === root ? shown : [blockOf(target)];
            for (const block of blocks) {
                const place = [...root.children].indexOf(block);
                if (place < num - 2) counts.late.push(`${place} of ${num}: ${block.textContent}`);
            }
        }
    }
    view.grow(text);
    // One frame may not be enough for all of it.
    for (let still = 0, before; still < 10; still = records.length === before ? still + 1 : 0) {
        before = records.length;
        await frame();
    }
    changes();
    await view.finish(text);
    counts.whole = changes().length;
    return counts;
}"""


async def test_only_the_end_of_a_growing_text_changes(page: Page) -> None:
    counts = await page.evaluate(STREAM, [ANSWER, 23])
    assert counts["frames"] > 200
    # Whatever is two blocks above the end is done with: it is never touched again.
    assert counts["late"] == []


async def test_the_end_of_an_answer_renders_nothing_again(page: Page) -> None:
    counts = await page.evaluate(STREAM, [ANSWER, 400])
    # The last block was open until then.
    assert counts["whole"] <= 3


async def test_tables_and_lists_grow_part_by_part(page: Page) -> None:
    """Not all over again with each frame: a row that is there stays, and so does what is selected in it."""
    table = "| a | b |\n|--|--|\n" + "".join(f"| {n} | **{n}** |\n" for n in range(100))
    items = "".join(f"{n}. item {n} is **{n}**\n" for n in range(1, 101))
    for text in (table, items):
        counts = await page.evaluate(STREAM, [text, 15])
        # A part that is being written is made anew as it grows; all of them, each time, would be thousands.
        assert counts["parts"] < 4 * 100, text


async def test_many_long_answers_come_in_slices_the_last_of_them_first(page: Page) -> None:
    order, at_once = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const order = [], views = [];
            for (let i = 0; i < 40; i += 1) {
                const root = document.createElement("div");
                document.querySelector("#transcript").append(root);
                views.push(new MarkdownView(root).finish(text).then(() => order.push(i)));
            }
            await null; await null; await null;
            const atOnce = order.length;
            await Promise.all(views);
            return [order, atOnce];
        }""",
        ANSWER,
    )
    assert at_once < 40
    assert sorted(order) == list(range(40))
    rest = order[at_once:]
    # One that was half done when its slice was over may come at the very end.
    assert rest[:10] == sorted(rest, reverse=True)[:10]


async def visit(page: Page, origin: str) -> dict[str, int]:
    """Loads the page; what it receives over HTTP, as it comes in: address -> bytes, headers included."""
    received: dict[str, int] = {}
    addresses: dict[str, str] = {}
    cdp = await page.context.new_cdp_session(page)

    def began(event: dict[str, Any]) -> None:
        addresses[event["requestId"]] = event["response"]["url"]

    def ended(event: dict[str, Any]) -> None:
        if (address := addresses.get(event["requestId"], "")).startswith(("http:", "https:")):
            received[address.removeprefix(origin)] = int(event["encodedDataLength"])

    cdp.on("Network.responseReceived", began)
    cdp.on("Network.loadingFinished", ended)
    await cdp.send("Network.enable")
    await page.goto(origin)
    await expect(page.locator("body[data-ready]")).to_be_visible()
    return received


def weight(received: dict[str, int]) -> float:
    return sum(received.values()) / 1000


async def test_a_first_visit_is_light(
    context: BrowserContext, fake: FakeServer, record_property: pytest.RecordProperty
) -> None:
    page = await context.new_page()
    received = await visit(page, fake.origin)
    await page.wait_for_load_state("networkidle")
    heaviest = sorted(received.items(), key=lambda file: -file[1])[:12]
    assert weight(received) < MOST_KB, heaviest
    later = re.compile(
        "highlightjs|temml|/engine/(?!door)|(search|settings_sheet|fields|help).js|(search|settings|help).css"
    )
    assert not [path for path in received if later.search(path)]
    record_property("first visit, kB", weight(received))

    fake.scripts.append(says("*So* it is:\n\n| a |\n|--|\n| b |\n\n```python\nx = 'y'\n```"))
    await ask(page, "Go")
    await expect(last_answer(page).locator(".hl")).not_to_have_count(0)
    record_property("with code and a table, kB", weight(received))
    assert weight(received) < MOST_KB + 12

    before = weight(received)
    fake.scripts.append(says("And $x' = \\frac{1}{2}$."))
    await ask(page, "Go")
    await expect(last_answer(page).locator(".formula")).to_be_visible()
    await page.wait_for_load_state("networkidle")
    assert weight(received) - before < 70
    record_property("a formula adds, kB", weight(received) - before)
    await page.close()


DOORS = [
    ("Control+k", "**/static/model/search.js", "#search"),
    ("Control+k", "**/static/styles/search.css", "#search"),
    ("Control+,", "**/static/view/fields.js", "#settings"),
    ("Control+/", "**/static/view/help.js", "#help"),
    ("Control+Shift+E", "**/static/engine/blocks.js", "#engine-view > *"),
]


@pytest.mark.parametrize(("keys", "file", "part"), DOORS)
async def test_what_could_not_be_loaded_is_loaded_the_next_time(
    page: Page, watch: Watch, keys: str, file: str, part: str
) -> None:
    # The fake server has no engine to tell of.
    watch.allow("could not be loaded|ERR_FAILED|404")
    await page.route(file, lambda route: route.abort())
    # What the page has loaded ahead of its use must not have come before that.
    await page.reload()
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await page.keyboard.press(keys)
    notice = page.locator("#notice")
    await expect(notice).to_contain_text("This could not be loaded.")
    await page.unroute(file)
    await expect(page.locator(part).first).to_be_hidden()
    await notice.get_by_role("button", name="Dismiss").click()
    await page.keyboard.press(keys)
    await expect(page.locator(part).first).to_be_visible()
    await expect(notice).to_be_hidden()


async def hold(page: Page, file: str) -> asyncio.Event:
    """Lets this file come only when the event is set."""
    released = asyncio.Event()

    async def wait(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await page.route(file, wait)
    return released


async def test_what_is_typed_while_the_search_is_loaded_is_searched_for(page: Page) -> None:
    await keep(page, conversation("Birds", "Which?", "The heron fishes at dawn."))
    released = await hold(page, "**/static/view/search.js")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("heron")
    await expect(page.get_by_role("combobox", name="Search")).to_have_value("heron")
    released.set()
    await expect(page.get_by_role("option")).to_contain_text(["The heron fishes"])
    await expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("")


async def test_settings_that_are_asked_for_twice_while_they_are_loaded_open_once(page: Page) -> None:
    opener = page.get_by_role("button", name="Settings: Balanced")
    await expect(opener).to_have_text("Balanced")
    released = await hold(page, "**/static/view/settings_sheet.js")
    await opener.click()
    await opener.click()
    await expect(opener).to_have_attribute("aria-expanded", "false")
    released.set()
    settings = page.get_by_role("dialog", name="Settings")
    await expect(settings.get_by_role("heading", name="Settings")).to_be_focused()
    await expect(opener).to_have_attribute("aria-expanded", "true")
    await opener.click()
    await expect(settings).to_be_hidden()
    await expect(opener).to_be_focused()
