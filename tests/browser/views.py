"""All that the page can show, one after the other: for tests that hold everywhere.

Knows how a person comes to each view and dialog, and away from it. It does not know what is looked at there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from playwright.async_api import Locator, Page, expect

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
        return [
            View("welcome", nothing, nothing),
            View("answer", self._answered, nothing),
            View("running", self._running, self._ended),
            View("failure", self._failed, nothing),
            View("drawer", self._drawer, self._escape),
            View("keys", self._keys("?"), self._escape),
            View("removal", self._keys("Control+Shift+Backspace"), self._escape),
            View("link lost", self._cut, nothing),
        ]

    async def ask(self) -> None:
        # Not by its name: the page may speak any language.
        await self.page.locator("#composer textarea").fill("What?")
        await self.page.keyboard.press("Enter")

    async def _answered(self) -> None:
        self.fake.scripts.append(says(EVERYTHING))
        await self.ask()
        await expect(last_answer_of(self.page).locator(".status button").first).to_be_visible()

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

    async def _drawer(self) -> None:
        if await self.page.locator("#menu").is_visible():
            await self.page.locator("#menu").click()
        await expect(self.page.locator("#new-chat")).to_be_in_viewport()

    def _keys(self, keys: str) -> Callable[[], Awaitable[None]]:
        async def press() -> None:
            await self.page.evaluate("document.activeElement.blur()")
            await self.page.keyboard.press(keys)
            await expect(self.page.locator("dialog[open]")).to_be_visible()

        return press

    async def _escape(self) -> None:
        await self.page.keyboard.press("Escape")
        await expect(self.page.locator("dialog[open]")).to_have_count(0)

    async def _cut(self) -> None:
        await self.fake.drop(1008)
        await expect(self.page.locator("#strip")).to_be_visible()


def last_answer_of(page: Page) -> Locator:
    """In any language."""
    return page.locator("#transcript > .assistant").last
