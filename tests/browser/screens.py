"""Pictures of the page for people who look at it: every view at three widths, light and dark.

    python -m tests.browser.screens --out DIR [--only NAME ...]
    python -m tests.browser.screens --out docs/images --front        those of the README

Knows what is worth a look and how a person comes to it; what is seen is the same each time. Answers are
scripted, earlier chats are put into the browser's store, and the clock stands; the engine is a real one
that does as many ticks as it is told to. The README's engine is that of `tickwire serve` with the default
model.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect

from app.settings import default_cache_dir
from engine.loading.default_model import ensure
from tests.app.harness import RunningServer, eventually, running
from tests.browser.conftest import CHROMIUM_ARGS, chromium_path
from tests.browser.fake import FakeServer, says, scripted
from tests.browser.person import last_answer
from tests.browser.real.conftest import served

NOW = 1_790_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000

EARLIER = [
    ("Names for a sailing boat", 12 * MINUTE, True),
    ("Sourdough that rises in a cold kitchen", 2 * HOUR, False),
    ("Why is the sea salty?", 5 * HOUR, False),
    ("A regular expression for dates, and what it misses", DAY, False),
    ("Packing list for four days in the mountains", 2 * DAY, False),
    ("لماذا السماء زرقاء؟", 3 * DAY, False),
    ("Explain recursion to a ten-year-old", 9 * DAY, False),
    ("Letter to the landlord about the heating", 40 * DAY, False),
]
"""Title, age, whether it is pinned."""

LONG = '''The greatest common divisor of two numbers is the largest one that divides both. Euclid's \
observation is that it does not change when the larger number is replaced by the **remainder** of dividing \
it by the smaller one.

```python
def gcd(a: int, b: int) -> int:
    """The greatest common divisor of two numbers."""
    while b:
        a, b = b, a % b  # the remainder is always smaller
    return abs(a)


print(gcd(1071, 462))  # 21
```

### Why it stops

Each remainder is smaller than the divisor before it, so the sequence $r_0 > r_1 > r_2 > \\dots \\ge 0$ \
ends. In numbers:

| Step | $a$ | $b$ | $a \\bmod b$ |
|-----:|-----:|----:|------------:|
| 1 | 1071 | 462 | 147 |
| 2 | 462 | 147 | 21 |
| 3 | 147 | 21 | 0 |

For numbers below $n$ it takes at most

$$
k \\le \\left\\lfloor \\frac{\\ln(n\\sqrt{5})}{\\ln \\varphi} \\right\\rfloor,
\\qquad \\varphi = \\frac{1 + \\sqrt{5}}{2}
$$

steps, which two neighbouring Fibonacci numbers need. Three things to remember:

1. `gcd(a, 0)` is `a`.
2. The order of the arguments does not matter: the first step swaps them.
3. For very large numbers there is \
[a binary version](https://en.wikipedia.org/wiki/Binary_GCD_algorithm) without division.
'''

SEED = """async (entries) => {
  const { openStore } = await import("/static/model/store.js");
  const { FIRST_SETUP } = await import("/static/model/setup.js");
  const store = await openStore();
  for (const { conversation, messages } of entries) {
    await store.add({ ...conversation, setup: FIRST_SETUP }, messages);
  }
}"""


@dataclass(frozen=True, slots=True)
class Screen:
    width: int
    height: int
    is_phone: bool = False


ROOM_ABOVE = 80
"""Pixels of a screen that the page's header takes, about."""
TICKS, TICK_S = 140, 0.05
FRONT = Screen(1280, 1180)
SCREENS = [Screen(390, 844, is_phone=True), Screen(820, 1180), Screen(1440, 900)]


def earlier_chats() -> list[dict[str, Any]]:
    return [
        _chat(f"earlier{index}", title, NOW - age, pinned=is_pinned)
        for index, (title, age, is_pinned) in enumerate(EARLIER)
    ]


def _chat(id_: str, title: str, at: int, pinned: bool) -> dict[str, Any]:
    conversation = {
        "id": id_,
        "title": title,
        "created": at,
        "updated": at,
        "head": f"{id_}1",
        "pinned": pinned,
    }
    common = {"conversation": id_, "created": at}
    question = {"id": f"{id_}0", "parent": None, "role": "user", "text": title}
    answer = {
        "id": f"{id_}1",
        "parent": f"{id_}0",
        "role": "assistant",
        "text": f"About “{title}”: in short, salt.",
    }
    ended = {"status": "completed", "error": None, "stats": STATS}
    return {"conversation": conversation, "messages": [question | common, answer | common | ended]}


STATS = {"tokens": 412, "promptTokens": 96, "cachedTokens": 64, "firstTokenMs": 84, "tokensPerSecond": 71.4}


def long_chat() -> dict[str, Any]:
    """One question with three answers, the last of which is long; a second question has two versions."""
    id_, at = "long", NOW - 3 * MINUTE
    common = {"conversation": id_, "created": at}
    ended = {"role": "assistant", "status": "completed", "error": None, "stats": STATS}
    messages = [
        {
            "id": "q1",
            "parent": None,
            "role": "user",
            "text": "How does Euclid's algorithm work? Show me code, please.",
        },
        {"id": "a1", "parent": "q1", "text": "By subtraction, at first.", **ended},
        {"id": "a2", "parent": "q1", "text": "By remainders.", **ended},
        {"id": "a3", "parent": "q1", "text": LONG, **ended},
        {"id": "q2", "parent": "a3", "role": "user", "text": "And in Rust?"},
        {"id": "q3", "parent": "a3", "role": "user", "text": "And for three numbers?"},
        {
            "id": "a4",
            "parent": "q3",
            "text": "Take it twice: `gcd(gcd(a, b), c)`. The order is free.",
            **ended,
        },
    ]
    conversation = {"id": id_, "title": "How does Euclid's algorithm work?", "created": at, "updated": at}
    return {
        "conversation": conversation | {"head": "a4", "pinned": False},
        "messages": [common | message for message in messages],
    }


# -- scenes -----------------------------------------------------------------------------------------------


async def empty(page: Page) -> None:
    await expect(page.locator("#welcome")).to_be_visible()


async def drawer(page: Page) -> None:
    if await page.locator("#menu").is_visible():
        await page.locator("#menu").click()
    await expect(page.locator("#conversations").get_by_text("Sourdough")).to_be_in_viewport()


async def beginning(page: Page) -> None:
    """Of a long answer: code, and a heading."""
    await _open_long(page)
    await page.evaluate("document.querySelector('#scroller').scrollTop = 0")


async def answer(page: Page) -> None:
    """Its table, its formula, and what is said under it."""
    await _open_long(page)
    await page.evaluate(
        """() => document.querySelector("[data-message=a3]").scrollIntoView({ block: "end" })"""
    )


async def branches(page: Page) -> None:
    await _open_long(page)
    await last_answer(page).hover()


async def editing(page: Page) -> None:
    await _open_long(page)
    await page.locator("#composer textarea").press("ArrowUp")
    await expect(page.locator(".editor textarea")).to_be_focused()


async def streaming(page: Page) -> None:
    await _ask(page)
    await expect(last_answer(page)).to_contain_text("keeper")


async def failure(page: Page) -> None:
    await _ask(page)
    await expect(last_answer(page).locator(".failure")).to_be_visible()


async def settings(page: Page) -> None:
    await page.locator("#settings-open").click()
    await expect(page.locator("dialog[open]")).to_be_visible()


async def search(page: Page) -> None:
    await page.keyboard.press("Control+K")
    await page.keyboard.type("sea")
    await expect(page.locator("#search [role=option]").first).to_be_visible()


async def keys(page: Page) -> None:
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("?")
    await expect(page.locator("dialog[open]")).to_be_visible()


async def menu(page: Page) -> None:
    await drawer(page)
    await page.locator("#conversations [aria-haspopup]").nth(1).focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(":popover-open")).to_be_visible()


async def _ask(page: Page) -> None:
    # Not by Enter, which begins a line on phones.
    await page.get_by_role("textbox", name="Message").fill("Tell me about lighthouses.")
    await page.get_by_role("button", name="Send").click()


async def _open_long(page: Page) -> None:
    await page.evaluate("location.hash = '#c=long'")
    await expect(page.locator("[data-message=a4]")).to_be_visible()
    # What makes formulas and colours is loaded when it is needed, and moves what lies below.
    await expect(page.locator("code.math")).to_have_count(0)
    await expect(page.locator("math").first).to_be_attached()
    await expect(page.locator(".prose .hl").first).to_be_attached()


async def _half(reply: Any) -> None:
    await reply.begin()
    await reply.text("A lighthouse keeper trims the lamp at dusk, winds the clockwork, and writes down ")
    await reply.text("the weather. Then")
    await asyncio.Event().wait()


async def _refused(reply: Any) -> None:
    await reply.refuse(429, code="queue_full", type="rate_limit_error", message="Too many requests wait.")


Scene = Callable[[Page], Awaitable[None]]
SCENES: list[Scene] = [
    empty, drawer, beginning, answer, branches, editing, streaming, failure, settings, search, keys, menu,
]  # fmt: skip
SCRIPTS = {streaming: _half, failure: _refused}


# -- taking them ------------------------------------------------------------------------------------------


@asynccontextmanager
async def page_of(browser: Browser, screen: Screen, scheme: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(
        viewport={"width": screen.width, "height": screen.height},
        color_scheme=scheme,
        reduced_motion="reduce",
        has_touch=screen.is_phone,
        is_mobile=screen.is_phone,
        device_scale_factor=2 if screen.is_phone else 1,
        locale="en-GB",
        timezone_id="UTC",
    )
    page = await context.new_page()
    await page.clock.set_fixed_time(NOW / 1000)
    yield page
    await context.close()


async def take(page: Page, out: Path, name: str, screen: Screen, scheme: str) -> None:
    await page.evaluate("document.fonts.ready")
    path = out / f"{name}-{screen.width}-{scheme}.png"
    await page.screenshot(path=path)
    print(path, flush=True)


async def open_page(page: Page, fake: FakeServer) -> None:
    await page.goto(f"{fake.origin}/blank")
    await page.evaluate(SEED, [*earlier_chats(), long_chat()])
    await page.goto(f"{fake.origin}/")
    await expect(page.locator("body[data-ready]")).to_be_visible()


async def take_scenes(browser: Browser, out: Path, scenes: list[Scene], screen: Screen, scheme: str) -> None:
    async with scripted() as fake:
        for scene in scenes:
            async with page_of(browser, screen, scheme) as page:
                fake.scripts = [SCRIPTS.get(scene, says("Hello."))]
                await open_page(page, fake)
                await scene(page)
                await take(page, out, scene.__name__, screen, scheme)


async def take_engine(browser: Browser, out: Path, screen: Screen, scheme: str) -> None:
    """Twelve long questions, most of which begin alike, for eight rows."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(num_blocks=240, max_num_seqs=8, prefill_chunk=64))
        socket = await stack.enter_async_context(server.socket())
        page = await stack.enter_async_context(page_of(browser, screen, scheme))
        server.gate.close()
        for index in range(12):
            text = f"{'the same beginning ' * (index % 3)}and then number {index}"
            await socket.create(text, stream_id=str(index), max_output_tokens=40 + 30 * (index % 5))
        await eventually(lambda: server.holds(12))
        ticking = asyncio.create_task(_tick(server))
        stack.callback(ticking.cancel)
        await page.goto(f"{server.url}/#engine")
        await expect(page.locator("#engine-view [data-state=working]")).to_be_visible()
        await eventually(ticking.done)
        # All of it at once: it is longer than any screen.
        height = await page.evaluate("document.querySelector('#engine-view').scrollHeight")
        await page.set_viewport_size({"width": screen.width, "height": height + ROOM_ABOVE})
        await take(page, out, "engine", screen, scheme)
        server.gate.open()


async def take_front(browser: Browser, out: Path) -> None:
    """What the README shows."""
    async with scripted() as fake, page_of(browser, FRONT, "light") as page:
        await open_page(page, fake)
        await beginning(page)
        await page.screenshot(path=out / "page.png")
    with served(ensure(default_cache_dir(), print)) as (origin, _):
        async with page_of(browser, FRONT, "light") as page:
            await page.goto(f"{origin}/#engine")
            work = page.get_by_role("button", name="Send it some work")
            await work.click()
            await expect(work).to_be_visible()
            await work.click()
            # When the first have ended and the others go on.
            await page.wait_for_function(
                """() => [...document.querySelectorAll("#engine-view .answers .state")]
                  .some((state) => state.textContent)"""
            )
            await page.set_viewport_size({"width": FRONT.width, "height": 1680})
            await page.screenshot(path=out / "engine.png")


async def _tick(server: RunningServer) -> None:
    """At a pace that the page can follow: it looks a few times a second."""
    for _ in range(TICKS):
        server.gate.step()
        await asyncio.sleep(TICK_S)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the pictures")
    parser.add_argument(
        "--only", nargs="+", help="their names", choices=[*(s.__name__ for s in SCENES), "engine"]
    )
    parser.add_argument("--front", action="store_true", help="the pictures of the README instead")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=30_000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        if chosen.front:
            await take_front(browser, chosen.out)
        for screen in [] if chosen.front else SCREENS:
            for scheme in ("light", "dark"):
                scenes = [scene for scene in SCENES if chosen.only is None or scene.__name__ in chosen.only]
                await take_scenes(browser, chosen.out, scenes, screen, scheme)
                if chosen.only is None or "engine" in chosen.only:
                    await take_engine(browser, chosen.out, screen, scheme)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
