"""What a person does with the page, and looks at."""

from __future__ import annotations

from playwright.async_api import Locator, Page


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


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
    await page.get_by_role("button", name=f"More for “{title}”").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("menuitem", name=entry).click()


async def stop_clock(page: Page) -> None:
    """No delay ends by itself any more."""
    await page.clock.install(time=0)
    await page.clock.pause_at(1000)


def last_answer(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer").last
