"""What a model writes, as a reader sees it: formulas, code, tables, lists."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from playwright.async_api import BrowserContext, Page, expect

from app.api.page import static_directory
from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, Reply
from tests.browser.person import answer_to, ask, copied, last_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

PYTHON = "def double(x: int) -> int:\n    return 2 * x  # twice\n"


async def shown(page: Page, text: str) -> list[Any]:
    """What a whole text becomes: how many formulas, how many displayed; what is in code; the words."""
    found: list[Any] = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const root = document.createElement("div");
            document.querySelector("#transcript").append(root);
            await new MarkdownView(root).finish("$z$\\n\\n" + text);
            while (!root.querySelector(".formula")) await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
            root.firstElementChild.remove();
            const formulas = [...root.querySelectorAll(".formula")];
            const displayed = formulas.filter((formula) => formula.matches(".display")).length;
            const sources = Array.from(root.querySelectorAll("code"), (code) => code.textContent);
            const words = root.textContent.trim();
            root.remove();
            return [formulas.length, displayed, sources, words];
        }""",
        text,
    )
    return found


async def test_formulas_are_formulas(page: Page) -> None:
    for text, num, num_displayed in [
        ("Let $x_1 * y_1$ and $x_2 * y_2$ be.", 2, 0),
        ("Let \\(a\\) be \\(b_c\\).", 2, 0),
        ("$$\n\\frac{a}{b}\n$$", 1, 1),
        ("So\n$$\na = b\n= c\n$$\nfollows.", 1, 1),
        ("\\[\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n\\]", 1, 1),
        ("1. First $$a$$ and\n\n   \\[ b \\]\n\n| $c$ | d |\n|--|--|\n| \\(e\\) | $f$ |", 5, 2),
        ("It is $2x$ or $-1$, **$b$** too.", 3, 0),
    ]:
        formulas, displayed, sources, words = await shown(page, text)
        assert (formulas, displayed, sources) == (num, num_displayed, []), text
        assert "$" not in words
        assert "\\" not in words


async def test_prices_are_not_formulas(page: Page) -> None:
    for text in [
        "It costs $5 and $10, or US$5 and CA$7.",
        "From $5/month to $10/month, or $20 per month and 30$.",
        "Set $HOME and $PATH, or ${HOME} and ${PATH}.",
        "I have 5$ and you have 10$.",
        "Escaped \\$a\\$ is text.",
    ]:
        formulas, _, _, words = await shown(page, text)
        assert (formulas, words) == (0, text.replace("\\", ""))


async def test_code_is_not_a_formula(page: Page) -> None:
    text = "Use `$x$` and `\\(y\\)`.\n\n```sh\necho $a $b$ $$\n```"
    formulas, _, sources, _ = await shown(page, text)
    assert (formulas, sources) == (0, ["$x$", "\\(y\\)", "echo $a $b$ $$"])


async def test_a_formula_that_does_not_parse_is_shown_as_it_was_written(page: Page) -> None:
    for source in ["$\\frac{1$", "$\\nosuchcommand{x}$", "\\(a & b\\)", "$$\\def\\a{b}\\a$$"]:
        formulas, _, sources, _ = await shown(page, f"Here: {source}.")
        assert (formulas, sources) == (0, [source])


async def test_half_written_formulas_do_not_flicker(page: Page) -> None:
    """No frame shows a piece of a formula's source, and no formula is taken back."""
    text = (
        "Let $a_i$ be \\(b^2\\):\n\n$$\n\\sum_i a_i\n- b\n$$\n\n- so $\\frac{1}{2}$ is\n- half of \\[ x \\]\n"
    )
    frames = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const frame = () => new Promise(requestAnimationFrame);
            const root = document.createElement("div");
            document.querySelector("#transcript").append(root);
            await new MarkdownView(root).finish("$z$");
            while (!root.querySelector(".formula")) await frame();
            root.replaceChildren();
            const view = new MarkdownView(root), frames = [];
            for (let end = 1; end <= text.length; end += 1) {
                view.grow(text.slice(0, end));
                await frame(); await frame();
                frames.push([root.textContent, root.querySelectorAll(".formula").length]);
            }
            // One frame may not be enough for all of it.
            for (let n = 0; n < 100 && frames.at(-1)[1] < 5; n += 1) {
                await frame();
                frames.push([root.textContent, root.querySelectorAll(".formula").length]);
            }
            return frames;
        }""",
        text,
    )
    counts = [num for _, num in frames]
    assert [words for words, _ in frames if any(mark in words for mark in "$\\^{")] == []
    assert counts == sorted(counts)
    assert counts[-1] == 5


async def test_code_gets_its_colours_when_its_fence_closes(page: Page, fake: FakeServer) -> None:
    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(f"```python\n{PYTHON}")
        await reply.cancelled.wait()
        await reply.text("```\n\nDone.")
        await reply.complete()

    fake.scripts.append(script)
    await ask(page, "Go")
    figure = last_answer(page).locator("figure.code")
    await expect(figure.locator("code")).to_have_text(PYTHON.strip())
    await expect(figure.locator("figcaption span")).to_have_text("python")
    await expect(figure.locator(".hl")).to_have_count(0)
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('figure code'))")
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(figure.locator(".hl.keyword").first).to_have_text("def")
    assert (await page.evaluate("getSelection().toString()")).strip() == PYTHON.strip()


async def test_the_copy_button_copies_the_code_as_it_is_shown(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, f"```python\n{PYTHON}```")
    await expect(prose.locator(".hl").first).to_be_visible()
    assert await copied(page, prose.get_by_role("button", name="Copy code")) == PYTHON.strip()


async def test_long_code_and_that_of_no_language_stay_as_they_are(page: Page, fake: FakeServer) -> None:
    long = "x = 'a'\n" * 2000
    prose = await answer_to(page, fake, f"```python\n{PYTHON}```\n\n```python\n{long}```\n\n```\n{PYTHON}```")
    coloured, long_one, of_no_language = (prose.locator("figure").nth(i) for i in range(3))
    await expect(coloured.locator(".hl").first).to_be_visible()
    await expect(long_one.locator("code")).to_have_text(long.strip())
    for plain in (long_one, of_no_language):
        await expect(plain.locator(".hl")).to_have_count(0)


# In a page: the files of the highlighter that it has asked for.
ASKED_FOR = """() => performance.getEntriesByType("resource").map(({ name }) => name)
    .filter((name) => name.includes("/highlightjs/")).map((name) => name.split("/").at(-1))"""


async def test_every_language_that_is_here_is_loaded_when_it_is_needed(page: Page, fake: FakeServer) -> None:
    files = {path.name for path in (static_directory() / "vendor" / "highlightjs").glob("*.min.js")}
    assert await page.evaluate(ASKED_FOR) == []
    names = (
        "sh c c++ c# css patch docker golang toml java JS json kt md php py rb rs console sql swift ts html"
    )
    fences = [f"```{name}\nx = 'a'\n```" for name in ["nolanguage", *names.split(), "yml"]]
    await answer_to(page, fake, "\n\n".join(fences))
    await page.wait_for_function(f"(num) => ({ASKED_FOR})().length >= num", arg=len(files))
    assert set(await page.evaluate(ASKED_FOR)) == files


async def test_what_cannot_be_seen_in_code_is_shown(page: Page, fake: FakeServer) -> None:
    code = 'if user == "ad\u202emin\u2066": run("a\u200bb", "👩\u200d🚀", "x\U000e0041\x1b[2J")'
    prose = await answer_to(page, fake, f"```python\n{code}\n```\n\nAnd `a\u202eb`.")
    await expect(prose.locator("figure .hl").first).to_be_visible()
    marks = prose.locator("figure .hidden-character")
    told = await marks.evaluate_all("(marks) => marks.map((mark) => mark.dataset.character)")
    assert told == ["U+202E", "U+2066", "U+200B", "U+E0041", "U+001B"]
    await expect(prose.locator("p .hidden-character")).to_have_attribute("data-character", "U+202E")
    # The copy is what was written: it was shown.
    assert await copied(page, prose.get_by_role("button", name="Copy code")) == code


# The contrast of each colour of code with what is behind it.
CONTRASTS = """(prose) => {
    const code = prose.querySelector("figure code");
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const luminance = (...layers) => {
        for (const colour of layers) {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        }
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => linear(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = getComputedStyle(prose.querySelector("figure")).backgroundColor;
    const names = ["", "keyword", "string", "number", "comment", "title", "type", "added", "removed"];
    return names.map((name) => {
        const part = document.createElement("span");
        part.className = name && `hl ${name}`;
        code.append(part);
        const { color, backgroundColor } = getComputedStyle(part);
        const both = [luminance(ground, backgroundColor), luminance(color)].sort((a, b) => a - b);
        return [name, (both[1] + 0.05) / (both[0] + 0.05)];
    });
}"""


async def test_the_colours_of_code_can_be_read(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, "```python\nx = 1\n```\n\nWords")
    schemes: list[Literal["light", "dark"]] = ["light", "dark"]
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)
        contrasts = await prose.evaluate(CONTRASTS)
        assert len(contrasts) == 9
        assert [(name, ratio) for name, ratio in contrasts if ratio < 4.5] == [], scheme


async def test_wide_things_stay_in_their_boxes_on_a_phone(page: Page, fake: FakeServer) -> None:
    await page.set_viewport_size({"width": 390, "height": 800})
    cells = " | ".join(f"a column {i}" for i in range(12))
    formula = "+".join(f"x_{{{i}}}" for i in range(60))
    prose = await answer_to(
        page,
        fake,
        f"https://example.com/{'long' * 60}\n\n`{'code' * 60}`\n\n| {cells} |\n|{'--|' * 12}\n| {cells} |\n\n"
        f"```\n{'wide ' * 60}\n```\n\n$$\n{formula}\n$$",
    )
    await expect(prose.locator(".formula")).to_be_visible()
    for box in (".table-scroll", "pre", ".formula.display"):
        scrolls = "(box) => box.scrollWidth > box.clientWidth && box.tabIndex === 0"
        assert await prose.locator(box).evaluate(scrolls), box
    assert await page.evaluate("document.querySelector('#scroller').scrollWidth") == 390
    assert await prose.evaluate("(prose) => prose.scrollWidth <= prose.clientWidth")


async def test_tables_align_and_tasks_are_ticked(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, "| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n- [x] done\n- [ ] open\n- rest")
    aligned = "(cells) => cells.map((cell) => getComputedStyle(cell).textAlign)"
    assert await prose.locator("td").evaluate_all(aligned) == ["center", "end"]
    await expect(prose.locator("li.task")).to_have_text(["☑ done", "☐ open"])


async def test_without_the_highlighter_code_is_code(context: BrowserContext, fake: FakeServer) -> None:
    """What is loaded later may not arrive: the text is there all the same."""
    watch = Watch(fake.origin)
    page = await context.new_page()
    watch.attach(page)
    watch.allow("Failed to load resource")
    await page.route("**/vendor/highlightjs/**", lambda route: route.abort())
    await page.route("**/vendor/temml/**", lambda route: route.abort())
    await page.goto(fake.origin)
    await expect(page.locator("body[data-ready]")).to_be_visible()
    prose = await answer_to(page, fake, f"```python\n{PYTHON}```\n\nand $x^2$.")
    await expect(prose.locator("figure code")).to_have_text(PYTHON.strip())
    await expect(prose.locator("code.math")).to_have_text("$x^2$")
    watch.check()
    await page.close()


async def test_a_link_defined_at_the_end_is_one_everywhere(page: Page) -> None:
    text = "\n\n".join([f"Paragraph {i} says [more][ref]." for i in range(8)])
    links = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const root = document.createElement("div"), view = new MarkdownView(root);
            for (let end = 0; end < text.length; end += 40) {
                view.grow(text.slice(0, end));
                await new Promise(requestAnimationFrame);
            }
            await view.finish(text);
            return root.querySelectorAll("a[href='https://example.com/ref']").length;
        }""",
        f"{text}\n\n[ref]: https://example.com/ref\n",
    )
    assert links == 8


async def test_headings_stand_below_that_of_the_answer_while_it_grows(page: Page) -> None:
    """Whatever sizes the writer chose: the levels are right in each frame, not only when all is there."""
    text = "# One\n\n### Two\n\n1. first\n2. #### Three\n\n> ## Four\n\nFive\n-----\n\n# Six\n"
    frames = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const root = document.createElement("div"), view = new MarkdownView(root, 2), frames = [];
            const levels = () => Array.from(
                root.querySelectorAll("h1, h2, h3, h4, h5, h6"),
                (heading) => Number(heading.ariaLevel),
            );
            for (let end = 1; end < text.length; end += 1) {
                view.grow(text.slice(0, end));
                await new Promise(requestAnimationFrame);
                frames.push(levels());
            }
            await view.finish(text);
            return [...frames, levels()];
        }""",
        text,
    )
    assert frames[-1] == [3, 4, 5, 4, 4, 3]
    for levels in frames:
        assert all(after <= before + 1 for before, after in zip([2, *levels], levels, strict=False)), levels
        assert all(level > 2 for level in levels)
