"""What the page does not do twice, what it leaves for later, and what it weighs. None looks at a clock."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.fake import FakeServer, says
from tests.browser.person import ask, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_KB = 200

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
    await frame(); await frame();
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
    assert not [path for path in received if "highlightjs" in path or "temml" in path]
    record_property("first visit, kB", weight(received))

    fake.scripts.append(says("*So* it is:\n\n| a |\n|--|\n| b |\n\n```python\nx = 'y'\n```"))
    await ask(page, "Go")
    await expect(last_answer(page).locator(".hl")).not_to_have_count(0)
    record_property("with code and a table, kB", weight(received))
    assert weight(received) < MOST_KB + 15

    before = weight(received)
    fake.scripts.append(says("And $x' = \\frac{1}{2}$."))
    await ask(page, "Go")
    await expect(last_answer(page).locator(".formula")).to_be_visible()
    await page.wait_for_load_state("networkidle")
    assert weight(received) - before < 70
    record_property("a formula adds, kB", weight(received) - before)
    await page.close()
