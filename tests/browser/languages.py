"""A language that nobody speaks, for tests: English in brackets, each word longer by two fifths."""

from __future__ import annotations

from playwright.async_api import BrowserContext, Page, Route, expect

from app.api.page import static_directory
from tests.browser.fake import FakeServer

MADE_UP = """
const lengthen = (word) => word + "x".repeat(Math.ceil(word.length * 0.4));
// What is in brackets already has been a text of its own.
const longer = (words) => words.replace(/⟦.*⟧|[a-z]{2,}/gi, (it) => (it[0] === "⟦" ? it : lengthen(it)));
const inBrackets = (words) => `⟦${longer(words)}⟧`;
function other(texts) {
  if (typeof texts === "string") return inBrackets(texts);
  if (typeof texts === "function") return (...values) => inBrackets(texts(...values));
  if (Array.isArray(texts)) return texts.map(other);
  return Object.fromEntries(Object.entries(texts).map(([key, value]) => [key, other(value)]));
}
export default { ...other(english), dir: "DIRECTION" };
"""


async def in_other_words(context: BrowserContext, fake: FakeServer, direction: str, width: int) -> Page:
    english = (static_directory() / "texts" / "en.js").read_text()
    made_up = english.replace("export default", "const english =") + MADE_UP.replace("DIRECTION", direction)

    async def answer(route: Route) -> None:
        await route.fulfill(body=made_up, content_type="text/javascript")

    await context.route("**/static/texts/en.js", answer)
    page = await context.new_page()
    await page.set_viewport_size({"width": width, "height": 844})
    await page.emulate_media(reduced_motion="reduce")
    await page.goto(fake.origin)
    await expect(page.locator("body[data-ready]")).to_be_visible()
    return page
