"""The page in other languages: every word from one file, room for longer ones, lines from right to left.

The other language is made up: English in brackets, each word longer by two fifths.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from app.api.page import static_directory
from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, says
from tests.browser.views import Tour, last_answer_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

MADE_UP = """
const lengthen = (word) => word + "x".repeat(Math.ceil(word.length * 0.4));
const longer = (words) => words.replace(/[a-z]{2,}/gi, lengthen);
const inBrackets = (words) => `⟦${longer(words)}⟧`;
function other(texts) {
  if (typeof texts === "string") return inBrackets(texts);
  if (typeof texts === "function") return (...values) => inBrackets(texts(...values));
  if (Array.isArray(texts)) return texts.map(other);
  return Object.fromEntries(Object.entries(texts).map(([key, value]) => [key, other(value)]));
}
export default { ...other(english), dir: "DIRECTION" };
"""

# What is somebody's own, and takes its direction from itself, is in nobody's file; nor are names and keys.
NOT_IN_THE_FILE = "[dir=auto], .prose, .wordmark, .model, kbd, code, option, script, style, svg"

OUTSIDE_THE_BRACKETS = """(exempt) => {
  const outside = [];
  const look = (words, element) => {
    let rest = words;
    for (let before = ""; before !== rest; ) [before, rest] = [rest, rest.replace(/⟦[^⟦⟧]*⟧/g, "")];
    if (/\\p{L}/u.test(rest)) outside.push(`${element.tagName} ${element.id || element.className}: ${words}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (!parentElement.closest(exempt)) look(data, parentElement);
  }
  for (const name of ["aria-label", "title", "placeholder", "alt"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      if (!element.closest(exempt)) look(element.getAttribute(name), element);
    }
  }
  return outside;
}"""

CUT_OFF = """() => {
  const cut = [];
  const named = ({ tagName, id, className }) => `${tagName} #${id}.${className}`;
  const hidden = ".visually-hidden, .prose, #skip, option, svg";
  if (document.documentElement.scrollWidth > innerWidth) cut.push("the page scrolls sideways");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest(hidden)) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    range.selectNodeContents(texts.currentNode);
    const { left, right, width } = range.getBoundingClientRect();
    if (!width) continue;
    for (let box = element; box; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (/auto|scroll/.test(style.overflowX) && box.scrollWidth > box.clientWidth) break;
      // A name may end in dots where it is somebody's own.
      if (style.textOverflow === "ellipsis" && box.matches("[dir=auto], .model")) break;
      const frame = box.getBoundingClientRect();
      const [start, end] = style.overflowX === "visible" ? [0, innerWidth] : [frame.left, frame.right];
      if (left < start - 1 || right > end + 1) {
        const words = texts.currentNode.data;
        cut.push(`${named(element)} ${words}: ${left}-${right} of ${start}-${end} by ${named(box)}`);
        break;
      }
    }
  }
  return cut;
}"""


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


@pytest.mark.parametrize(("direction", "width"), [("ltr", 390), ("rtl", 390), ("rtl", 1440)])
async def test_every_word_is_in_the_file_and_has_room(
    context: BrowserContext, fake: FakeServer, watch: Watch, direction: str, width: int
) -> None:
    page = await in_other_words(context, fake, direction, width)
    watch.attach(page)
    found: dict[str, Any] = {}
    async for view in Tour(page, fake).views():
        found[f"{view}, outside the brackets"] = await page.evaluate(OUTSIDE_THE_BRACKETS, NOT_IN_THE_FILE)
        found[f"{view}, cut off"] = await page.evaluate(CUT_OFF)
    assert {what: where for what, where in found.items() if where} == {}


async def test_from_right_to_left_everything_changes_sides(
    context: BrowserContext, fake: FakeServer, watch: Watch
) -> None:
    page = await in_other_words(context, fake, "rtl", 1440)
    watch.attach(page)
    fake.scripts.append(says("Left to right.\n\nنعم."))
    await Tour(page, fake).ask()
    await expect(last_answer_of(page)).to_contain_text("نعم")
    sides = await page.evaluate(
        """() => {
          const box = (selector) => document.querySelector(selector).getBoundingClientRect();
          const middle = ({ x, width }) => x + width / 2;
          return {
            list: innerWidth - box("#sidebar").right,
            question: middle(box(".question")) < middle(box("#transcript")),
            send: middle(box("#composer [type=submit]")) < middle(box("#composer")),
          };
        }"""
    )
    assert sides == {"list": 0, "question": True, "send": True}
    directions = "(ps) => ps.map((p) => getComputedStyle(p).direction)"
    assert await page.locator(".prose p").evaluate_all(directions) == ["ltr", "rtl"]


async def test_words_that_run_the_other_way_do_so_in_an_english_page(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("نعم.\n\n- واحد\n- اثنان"))
    await page.get_by_role("textbox", name="Message").fill("هل تتكلم العربية؟")
    direction = "(element) => getComputedStyle(element).direction"
    assert await page.get_by_role("textbox", name="Message").evaluate(direction) == "rtl"
    await page.keyboard.press("Enter")
    await expect(last_answer_of(page)).to_contain_text("نعم")
    for theirs in (".question", ".prose p", ".prose li >> nth=0", "#conversations .title"):
        assert await page.locator(theirs).evaluate(direction) == "rtl", theirs
    assert await page.locator("body").evaluate(direction) == "ltr"
