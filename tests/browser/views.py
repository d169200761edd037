"""All that the page can show, one after the other: for tests that hold everywhere.

Knows how a person comes to each view and dialog, and away from it. It does not know what is looked at there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx
from playwright.async_api import Locator, Page, Route, expect

from tests.app.harness import eventually, running
from tests.browser.fake import FakeServer, Reply, says

EVERYTHING = """# A heading

Some **bold** words, `code`, and a [link](https://example.com/).

### A smaller heading

> Quoted.

1. One
2. Two
   - nested

| Name | Figure |
|------|-------:|
| tick | 1 |

```python
def answer(question: str) -> int:
    return 42  # always
```

$$e^{i\\pi} + 1 = 0$$

![A picture](https://pictures.example/cat.png)
"""


@dataclass(frozen=True, slots=True)
class View:
    name: str
    open: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Nothing is to be done."""


class Tour:
    """Goes through the page that it is given."""

    def __init__(self, page: Page, fake: FakeServer) -> None:
        self.page = page
        self.fake = fake
        self._end = asyncio.Event()

    async def views(self) -> AsyncIterator[str]:
        """The name of each view, while it is open."""
        for view in self._all():
            await view.open()
            yield view.name
            await view.close()

    def _all(self) -> list[View]:
        keys = self._by_keys
        return [
            View("welcome", nothing, nothing),
            View("answer", self._answered, nothing),
            View("running", self._running, self._ended),
            View("failure", self._failed, nothing),
            View("branches", self._branched, nothing),
            View("editor", self._editing, self._away),
            View("drawer", self._drawer, self._away),
            View("renaming", self._renaming, self._away),
            View("menu of a chat", self._menu("#conversations [aria-haspopup]"), self._away),
            View("menu of all chats", self._menu("#chats-menu"), self._away),
            View("removal", keys("Control+Shift+Backspace"), self._away),
            View("search", self._search, self._away),
            View("keys", keys("?"), self._away),
            View("settings", keys("Control+,"), self._away),
            View("engine", self._engine, self._away),
            View("link lost", self._cut, nothing),
        ]

    async def ask(self) -> None:
        # Not by its name: the page may speak any language.
        await self.page.locator("#composer textarea").fill("What?")
        # On a telephone Enter alone begins a new line.
        await self.page.keyboard.press("Control+Enter")

    async def _answered(self) -> None:
        self.fake.scripts.append(says(EVERYTHING))
        await self.ask()
        await expect(last_answer_of(self.page).locator(".buttons button").first).to_be_visible()
        # A long text may take some frames.
        await expect(last_answer_of(self.page)).to_contain_text("A picture")

    async def _running(self) -> None:
        async def script(reply: Reply) -> None:
            await reply.begin()
            await reply.text("Half an answer, and")
            await self._end.wait()
            await reply.incomplete("max_output_tokens")

        self.fake.scripts.append(script)
        await self.ask()
        await expect(last_answer_of(self.page)).to_contain_text("Half an answer")

    async def _ended(self) -> None:
        self._end.set()
        await expect(last_answer_of(self.page).locator(".ending")).to_be_visible()

    async def _failed(self) -> None:
        async def script(reply: Reply) -> None:
            await reply.refuse(429, code="queue_full", type="rate_limit_error", message="Too many wait.")

        self.fake.scripts.append(script)
        await self.ask()
        await expect(last_answer_of(self.page).locator(".failure")).to_be_visible()

    async def _branched(self) -> None:
        self.fake.scripts.append(says("Something else."))
        await self.page.keyboard.press("Control+Shift+Enter")
        await expect(last_answer_of(self.page)).to_contain_text("Something else.")
        self.fake.scripts.append(says("And something else."))
        await self.page.keyboard.press("Control+Shift+Enter")
        await expect(last_answer_of(self.page)).to_contain_text("And something else.")

    async def _editing(self) -> None:
        await self.page.locator("#composer textarea").press("ArrowUp")
        await expect(self.page.locator(".editor textarea")).to_be_focused()

    async def _drawer(self) -> None:
        if await self.page.locator("#menu").is_visible():
            await self.page.locator("#menu").click()
        await expect(self.page.locator("#new-chat")).to_be_in_viewport()

    async def _renaming(self) -> None:
        await self.page.keyboard.press("F2")
        await expect(self.page.locator("#conversations input")).to_be_focused()

    def _menu(self, opener: str) -> Callable[[], Awaitable[None]]:
        async def open_it() -> None:
            await self._drawer()
            await self.page.locator(opener).first.focus()
            await self.page.keyboard.press("Enter")
            await expect(self.page.locator(":popover-open")).to_be_visible()

        return open_it

    def _by_keys(self, keys: str) -> Callable[[], Awaitable[None]]:
        async def press() -> None:
            await self.page.evaluate("document.activeElement.blur()")
            await self.page.keyboard.press(keys)
            await expect(self.page.locator("dialog[open]")).to_be_visible()

        return press

    async def _search(self) -> None:
        await self.page.keyboard.press("Control+K")
        await self.page.keyboard.type("bold")
        await expect(self.page.locator("#search [role=option]").first).to_be_visible()

    async def _engine(self) -> None:
        picture = await picture_of_an_engine()

        async def answer(route: Route) -> None:
            await route.fulfill(body=picture, content_type="application/json")

        await self.page.route("**/debug/engine**", answer)
        await self.page.keyboard.press("Control+Shift+E")
        await expect(self.page.locator("#engine-view [data-state=working]")).to_be_visible()

    async def _away(self) -> None:
        """Escape, until it leads nowhere any more."""
        for _ in range(3):
            await self.page.keyboard.press("Escape")
        await expect(self.page.locator("dialog[open], :popover-open")).to_have_count(0)
        await expect(self.page.locator("#composer textarea")).to_be_visible()

    async def _cut(self) -> None:
        await self.fake.drop(1008)
        await expect(self.page.locator("#strip")).to_be_visible()


async def picture_of_an_engine() -> str:
    """As the server shows it, with two rows at work."""
    async with running(num_blocks=64, max_num_seqs=4) as server, server.socket() as socket:
        server.gate.close()
        for lane in ("a", "b"):
            await socket.create("Hello", stream_id=lane, max_output_tokens=90)
        await eventually(lambda: server.holds(2))
        server.gate.step(4)
        await eventually(lambda: server.stats().num_running == 2)
        async with httpx.AsyncClient(base_url=server.url) as client:
            asking = asyncio.create_task(client.get("/debug/engine?after=0"))
            # The engine lets itself be looked at between ticks.
            await eventually(lambda: server.gate.step() or asking.done())
            picture = (await asking).text
        server.gate.open()
        for _ in range(2):
            await socket.until("response.incomplete")
    return picture


def last_answer_of(page: Page) -> Locator:
    """In any language."""
    return page.locator("#transcript > .assistant").last
