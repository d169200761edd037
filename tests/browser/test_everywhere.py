"""What holds in every view and every dialog, in a made-up language of longer words, both ways:

every word is in the file of texts, nothing is cut off, fingers find what they press, and axe finds nothing.
"""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.browser.conftest import REPORT_VIOLATIONS, Watch
from tests.browser.fake import FakeServer
from tests.browser.languages import in_other_words
from tests.browser.views import Tour
from tests.clients.node import node_environment

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What is somebody's own, and takes its direction from itself, is in nobody's file; nor are names and keys.
NOT_IN_THE_FILE = """[dir=auto], bdi, #conversations .open, .prose, .announcer p, .wordmark, .model, kbd,
  time, code, option, svg"""

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
  const hidden = ".prose, option, svg";
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
      // It is there to be heard.
      if (style.clipPath !== "none") break;
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


AUDIT = """async (rules) => {
  const only = rules && { runOnly: { type: "rule", values: [rules] } };
  const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false, ...only });
  const told = (id) => ({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`;
  return violations.flatMap(({ id, nodes }) => nodes.map(told(id)));
}"""

TOO_SMALL = """() => {
  const found = [];
  const unseen = "#skip, .visually-hidden";
  // Within a line of text a target may be smaller.
  const targets = "a:not(.prose a), button, input, select, summary";
  for (const element of document.querySelectorAll(targets)) {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.matches(unseen)) continue;
    // Who presses a label presses what it names.
    const boxes = [element, ...(element.labels ?? [])].map((each) => each.getBoundingClientRect());
    const [width, height] = ["width", "height"].map((side) => Math.max(...boxes.map((box) => box[side])));
    const words = `${element.id || element.className}: ${element.ariaLabel ?? element.textContent}`;
    if (Math.min(width, height) < 44) found.push(`${words} ${width}x${height}`);
  }
  for (const field of document.querySelectorAll("textarea, input:not([type=radio], [type=range]), select")) {
    const size = parseFloat(getComputedStyle(field).fontSize);
    if (size < 16) found.push(`an iPhone would zoom in on ${field.id || field.ariaLabel}: ${size} px`);
  }
  return found;
}"""


@pytest.fixture(scope="session")
def axe() -> str:
    return (node_environment().packages / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize(("direction", "width"), [("ltr", 390), ("rtl", 1440)])
async def test_every_view(
    browser: Browser, fake: FakeServer, watch: Watch, axe: str, direction: str, width: int
) -> None:
    phone = width == 390
    context = await browser.new_context(is_mobile=phone, has_touch=phone)
    await context.add_init_script(REPORT_VIOLATIONS)
    page = await in_other_words(context, fake, direction, width)
    watch.attach(page)
    await page.evaluate(axe)
    found: dict[str, list[str]] = {}

    async def look(view: str, what: str, script: str, *arguments: str) -> None:
        for complaint in await page.evaluate(script, *arguments):
            found.setdefault(f"{what}: {complaint}", []).append(view)

    async for view in Tour(page, fake).views():
        await look(view, "not in the file", OUTSIDE_THE_BRACKETS, NOT_IN_THE_FILE)
        await look(view, "cut off", CUT_OFF)
        if phone:
            await look(view, "too small for fingers", TOO_SMALL)
        await look(view, "axe", AUDIT)
        # What is about to change its colour would have them both.
        await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        await look(view, "axe, dark", AUDIT, "color-contrast")
        await page.emulate_media(color_scheme="light")
    await context.close()
    assert not found, "\n".join(f"{complaint} ({', '.join(views)})" for complaint, views in found.items())
