"""The page's texts: all are there and all are said. Lines that run the other way, and other languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, says
from tests.browser.languages import in_other_words
from tests.browser.views import Tour, last_answer_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

STATIC = Path(__file__).parents[2] / "static"
LEAVES = """async () => {
  const { default: english } = await import("/static/texts/en.js");
  const leaves = (branch, way) =>
    Object.entries(branch).flatMap(([name, found]) =>
      typeof found === "object" && !Array.isArray(found) ? leaves(found, `${way}${name}.`) : [way + name]);
  return leaves(english, "");
}"""
"""The keys of all texts."""
SAMPLING = (
    "temperature top_p min_p top_k max_output_tokens repetition_penalty presence_penalty "
    "frequency_penalty seed stop"
)
MADE = {
    "answer.*": "interrupted stopped length failed",
    "branches.*": "question answer",
    "branches.*.*": "previous.question previous.answer next.question next.answer",
    "context.*": "enough little full",
    "context.short.*": "enough little full",
    "engine.*.title": "ticks blocks savings",
    "engine.*.what": "ticks blocks savings",
    "engine.blocks.*": "full partial shared held kept free",
    "engine.figures.*.name": "rate rows waiting tick hits free",
    "engine.figures.*.what": "rate rows waiting tick hits free",
    "engine.policies.*.how": "paged static reserve_max reserve_pow2",
    "engine.policies.*.name": "paged static reserve_max reserve_pow2",
    "engine.savings.*": "verdict tooLittle notEnough here own other",
    "engine.states.*": "working idle",
    "engine.tables.*": (
        "running ticks row prompt cached answer blocks session tick ms rows decoded read entered left"
    ),
    "engine.tick.*": "rows decoded read",
    "engine.ticks.*": "decode prefill",
    "keys.names.*": "mod alt shift enter escape backspace",
    "link.*": "connecting open waiting refused closed",
    "list.*": "live unread",
    "preset.*": "balanced precise lively server",
    "sampling.*": SAMPLING,
    "sampling.help.*": SAMPLING,
    "sampling.without.*": "max_output_tokens seed stop",
    "transfer.*": "added known empty tooLong broken foreign leftOut",
    "transfer.not.*": "zip notJson foreign nothing tooLarge",
}
"""Keys that are put together when they are read -> what stands in the gap."""
SELECTORS = {"code.math"}
"""What looks like a key and is none."""


async def test_every_text_that_is_asked_for_is_there_and_every_text_is_asked_for(page: Page) -> None:
    texts = set(await page.evaluate(LEAVES)) - {"dir"}
    scripts = "".join(
        path.read_text()
        for path in STATIC.rglob("*.js")
        if not {"vendor", "texts"} & set(path.relative_to(STATIC).parts)
    )
    sections = "|".join(sorted({key.split(".")[0] for key in texts}))
    plain = set(re.findall(rf'"((?:{sections})(?:\.\w+)+)"', scripts)) - SELECTORS
    markup = re.findall(
        r'data-(?:text|label|name|placeholder)="([^"]+)"', (STATIC / "index.html").read_text()
    )
    gapped = re.findall(rf"`((?:{sections})\.(?:[\w.]|\$\{{[^}}]*\}})+)`", scripts)
    assert {re.sub(r"\$\{[^}]*\}", "*", template) for template in gapped} == MADE.keys()
    made = {
        template.replace("*.*", "*").replace("*", filling)
        for template, fillings in MADE.items()
        for filling in fillings.split()
    }
    asked = plain | set(markup) | made
    assert asked - texts == set(), "asked for, and not there"
    assert texts - asked == set(), "there, and never asked for"


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
