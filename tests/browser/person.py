"""What a person does with the page, and looks at."""

from __future__ import annotations

from typing import Any

from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.fake import FakeServer, says

BEGIN_CHAT = """async () => {
  const names = ["model/chat", "model/store", "model/tabs", "tickwire"];
  const modules = await Promise.all(names.map((name) => import(`/static/${name}.js`)));
  const { Chat, openStore, Tabs, Tickwire } = Object.assign({}, ...modules);
  window.wire = new Tickwire(`ws://${location.host}/v1/responses`);
  window.chat = new Chat(await openStore(), wire, new Tabs());
  window.trouble = [];
  chat.addEventListener("trouble", ({ detail }) => trouble.push(String(detail.error)));
  await chat.load();
}"""


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def answer_to(page: Page, fake: FakeServer, *pieces: str) -> Locator:
    """What is seen of an answer of these pieces."""
    fake.scripts.append(says(*pieces))
    await ask(page, "Go")
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")
    return last_answer(page).locator(".prose")


async def is_kept(page: Page) -> None:
    """Waits until the page has written down what the running answer is called."""
    await page.wait_for_function(
        """async () => {
          const opening = indexedDB.open("tickwire");
          await new Promise((resolve) => (opening.onsuccess = resolve));
          const reading = opening.result.transaction("messages").objectStore("messages").getAll();
          await new Promise((resolve) => (reading.onsuccess = resolve));
          opening.result.close();
          return reading.result.some((message) => message.responseId);
        }"""
    )


async def choose(page: Page, title: str, entry: str) -> None:
    """An entry of the menu that a conversation has in the list."""
    # The list is there before the page has put the focus where it begins.
    await expect(page.locator("body[data-ready]")).to_be_visible()
    await page.get_by_role("button", name=f"More for “{title}”").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("menuitem", name=entry).click()


async def copied(page: Page, button: Locator) -> str:
    """Presses a button that copies; what it has put on the clipboard."""
    await page.evaluate("navigator.clipboard.writeText('')")
    await button.click()
    await page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    text: str = await page.evaluate("navigator.clipboard.readText()")
    return text


async def stop_clock(page: Page) -> None:
    """No delay ends by itself any more."""
    await page.clock.install(time=0)
    await page.clock.pause_at(1000)


def last_answer(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer").last


class Tab:
    """A tab with conversations and no views: in it, `chat` is what views would show, `wire` its socket."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @classmethod
    async def open(cls, context: BrowserContext, origin: str) -> Tab:
        tab = cls(await context.new_page())
        await tab.page.goto(f"{origin}/blank")
        await tab.page.evaluate(BEGIN_CHAT)
        return tab

    async def reload(self) -> None:
        await self.page.reload()
        await self.page.evaluate(BEGIN_CHAT)

    async def do(self, code: str, **values: Any) -> Any:
        """Runs JavaScript, which finds `values` in `it`, messages of the shown path by `said(text)`."""
        return await self.page.evaluate(
            """([code, it]) => {
              const conversation = () => it.id ?? chat.list[0].id;
              const said = (text) => chat.path(conversation()).find((message) => message.text === text);
              return new Function("it", "said", `return ${code}`)(it, said);
            }""",
            [code, values],
        )

    async def ask(self, text: str, conversation: str | None = None) -> str:
        setup = "{ model: null, system: '', sampling: {} }"
        found: str = await self.do(f"chat.ask(it.to, it.text, {setup})", to=conversation, text=text)
        return found

    async def path(self, conversation: str) -> list[str]:
        """What the conversation says, as it is read."""
        texts: list[str] = await self.do("chat.path(it.id).map(({ text }) => text)", id=conversation)
        return texts

    async def comes_to(self, conversation: str, *texts: str, status: str | None = None) -> None:
        """Waits until the conversation says this, and the last answer stands so."""
        await self.page.wait_for_function(
            """([id, texts, status]) => {
              const path = chat.path(id);
              const same = path.length === texts.length && path.every(({ text }, i) => text === texts[i]);
              return same && (!status || path.at(-1)?.status === status);
            }""",
            arg=[conversation, list(texts), status],
            timeout=10_000,
        )

    async def until(self, condition: str, **values: Any) -> None:
        """Waits for JavaScript, which finds `values` in `it`, to hold."""
        await self.page.wait_for_function(
            "([code, it]) => new Function('it', `return ${code}`)(it)",
            arg=[condition, values],
            timeout=10_000,
        )

    async def is_kept(self, conversation: str, text: str) -> None:
        """Waits until the store has that the conversation ends with this."""
        await self.page.wait_for_function(
            """async ([id, text]) => {
              const { openStore } = await import("/static/model/store.js");
              const { conversation, messages } = await (await openStore()).read(id);
              return messages.find((message) => message.id === conversation.head)?.text === text;
            }""",
            arg=[conversation, text],
        )

    async def kept(self) -> list[dict[str, Any]]:
        """All messages that the store has."""
        messages: list[dict[str, Any]] = await self.page.evaluate(
            """async () => {
              const { openStore } = await import("/static/model/store.js");
              return (await openStore()).messages();
            }"""
        )
        return messages
