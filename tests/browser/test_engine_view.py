"""The engine view over a server that computes only what it is told to: each picture lets one tick through."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.app.harness import RunningServer, Socket, eventually, running
from tests.browser.conftest import Watch
from tests.browser.person import ask, last_answer, stop_clock

pytestmark = pytest.mark.asyncio(loop_scope="session")

NONE = "\N{EN DASH}"


@asynccontextmanager
async def engine_of(
    context: BrowserContext, path: str = "/#engine", **settings: Any
) -> AsyncIterator[tuple[RunningServer, Page, Watch]]:
    async with running(**{"num_blocks": 64, "max_num_seqs": 4} | settings) as server:
        watch = Watch(server.url)
        page = await context.new_page()
        watch.attach(page)
        await page.goto(f"{server.url}{path}")
        await expect(page.locator("#link")).to_have_attribute("data-state", "open")
        await expect(page.locator("body[data-ready]")).to_be_attached()
        yield server, page, watch
        watch.check()
        await page.close()


def one_tick_a_picture(server: RunningServer) -> None:
    """The engine stands still but for a tick whenever it is asked for a picture."""
    server.gate.close()
    ask_engine = server.engine.inspect

    def inspect(look: Any) -> Any:
        future = ask_engine(look)
        # Once a test has opened the gate, all goes on by itself.
        with contextlib.suppress(RuntimeError):
            server.gate.step()
        return future

    server.engine.inspect = inspect  # type: ignore[method-assign]


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"#engine-view .headlines .{name} dd")


async def lines(page: Page, caption: str) -> list[list[str]]:
    """The cells of a table, line by line."""
    table = page.get_by_role("table", name=caption)
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    found: list[list[str]] = await table.locator("tbody tr").evaluate_all(cells)
    return found


async def read_to_the_end(socket: Socket, count: int) -> None:
    for _ in range(count):
        await socket.until("response.incomplete")


async def test_an_idle_engine_invites(context: BrowserContext) -> None:
    async with engine_of(context, "/") as (_, page, _):
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/debug/" in request.url else None)
        await expect(page.locator("#engine-view")).to_be_hidden()
        assert asked == []
        await page.get_by_role("link", name="Engine").click()
        await expect(page.get_by_role("heading", name="Inside the engine")).to_be_focused()
        await expect(page).to_have_title("Engine · Tickwire")
        await expect(page.locator("#engine-view .invitation")).to_be_visible()
        await expect(page.locator("#engine-view .head .state")).to_contain_text("Idle")
        await expect(figure(page, "rows")).to_have_text("0of 4")
        await expect(figure(page, "free")).to_have_text("64of 64")
        await expect(page.locator("#engine-view .blocks .readout")).to_have_text("0 held, 0 kept, 64 free.")
        await expect(page.locator("#engine-view .verdict")).to_have_text("Not enough seen yet to compare.")
        await expect(page.locator("#composer")).to_be_hidden()
        await page.get_by_role("button", name="Back to the chat").click()
        await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
        await expect(page).to_have_title("New chat · Tickwire")
        await page.go_back()
        await expect(page.locator("#engine-view")).to_be_visible()


async def test_rows_enter_and_leave_while_others_go_on(context: BrowserContext) -> None:
    async with engine_of(context) as (server, page, _), server.socket() as socket:
        server.gate.close()
        await socket.create("hello", stream_id="a", max_output_tokens=9)
        await eventually(lambda: server.stats().num_running == 1)
        await socket.create("you", stream_id="b", max_output_tokens=3)
        await eventually(lambda: server.holds(2))
        server.gate.open()
        await read_to_the_end(socket, 2)
        await page.get_by_text("The same in tables").click()
        await expect(page.get_by_role("table", name="The last ticks").locator("tbody tr")).to_have_count(9)
        ticks = [line[:1] + line[2:] for line in reversed(await lines(page, "The last ticks"))]
        # Tick, rows, new tokens, prompt tokens read, who entered, who left. What a prompt's last token gives
        # is the first new one.
        one, other = len("user:hello;") - 1, len("user:you;") - 1
        assert ticks == [
            ["1", "1", "1", str(one), "A", NONE],
            ["2", "2", "2", str(other), "B", NONE],
            ["3", "2", "2", "0", NONE, NONE],
            ["4", "2", "2", "0", NONE, "B"],
            *([str(number), "1", "1", "0", NONE, NONE] for number in range(5, 9)),
            ["9", "1", "1", "0", NONE, "A"],
        ]
        slider = page.get_by_role("slider", name="The last ticks")
        await slider.press("Home")
        await expect(slider).to_have_attribute(
            "aria-valuetext", re.compile("^Tick 1: .* 1 row, 1 new token, ")
        )
        await slider.press("ArrowRight")
        await expect(slider).to_have_attribute(
            "aria-valuetext", re.compile("^Tick 2: .* 2 rows, 2 new tokens, ")
        )
        await expect(figure(page, "rows")).to_have_text("0of 4")


async def test_the_map_tells_whose_a_block_is(context: BrowserContext) -> None:
    async with engine_of(context, max_model_len=1000) as (server, page, _), server.socket() as socket:
        one_tick_a_picture(server)
        fields = {"max_output_tokens": 300, "cache_salt": "ours"}
        await socket.create("x" * 27, stream_id="a", **fields)
        # The prompt fills two blocks but for a token; the second one finds them in the cache.
        await expect(figure(page, "rows")).to_have_text("1of 4")
        await eventually(lambda: server.stats().num_ticks > 3)
        await socket.create("x" * 27, stream_id="b", **fields)
        await expect(figure(page, "rows")).to_have_text("2of 4")
        await expect(figure(page, "hits")).to_have_text("48%")
        slider = page.get_by_role("slider", name="Blocks of memory")
        told = page.locator("#engine-view .blocks .readout")
        await slider.press("Home")
        await expect(told).to_have_text(
            re.compile(r"^Block 1: shared, 16 of 16 tokens; row \w and row \w\.$")
        )
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("^Block 1: shared"))
        await slider.press("End")
        await expect(told).to_have_text("Block 64: free.")
        await slider.press("Home")
        await slider.press("ArrowRight")
        await slider.press("ArrowRight")
        await expect(told).to_have_text(
            re.compile(r"^Block 3: being filled, ([1-9]|1[0-5]) of 16 tokens; row A\.$")
        )
        await page.get_by_text("The same in tables").click()
        rows = page.get_by_role("table", name="Rows that run").locator("tbody tr")
        await expect(rows).to_have_count(2)
        # Row, prompt, in the cache, answer, blocks.
        first, second = await lines(page, "Rows that run")
        prompt = str(len("user:;") + 27)
        assert [first[0][:5], first[1:3]] == ["row A", [prompt, "0"]]
        assert [second[0][:5], second[1:3]] == ["row B", [prompt, "32"]]
        server.gate.open()
        await read_to_the_end(socket, 2)
        await expect(figure(page, "free")).to_have_text("64of 64")
        await slider.press("Home")
        await expect(told).to_have_text("Block 1: kept in case it is asked again.")


async def test_the_readers_own_rows_are_known(context: BrowserContext) -> None:
    async with engine_of(context, "/", max_model_len=1000) as (server, page, _), server.socket() as socket:
        one_tick_a_picture(server)
        await ask(page, "Hello")
        await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
        await socket.create("hello", max_output_tokens=900)
        await eventually(lambda: server.holds(2))
        await page.get_by_role("link", name="Engine").click()
        await page.get_by_text("The same in tables").click()
        rows = page.get_by_role("table", name="Rows that run").locator("tbody tr")
        await expect(rows).to_have_count(2)
        names = [line[0] for line in await lines(page, "Rows that run")]
        assert [name.split(" (")[0] for name in names] == ["row A, yours", "row B"]
        server.gate.open()
        await page.get_by_role("button", name="Back to the chat").click()
        await expect(last_answer(page).locator(".ending")).to_have_text("Cut because the context is full")
        await read_to_the_end(socket, 1)


async def test_some_work_comes_and_goes(context: BrowserContext) -> None:
    async with engine_of(context, max_num_seqs=8, num_blocks=512) as (server, page, _):
        one_tick_a_picture(server)
        await page.get_by_role("button", name="Send it some work").click()
        await expect(figure(page, "rows")).to_have_text("6of 8")
        answers = page.locator("#engine-view .answers li")
        await expect(answers).to_have_count(6)
        await expect(answers.locator(".sign")).to_have_text(["A", "B", "C", "D", "E", "F"])
        requests = [request for request, _ in server.engine.submitted]
        assert len({request.sampling.max_tokens for request in requests}) == 6
        server.gate.open()
        await expect(page.get_by_role("button", name="Send it some work")).to_be_enabled()
        ends = [f"{request.sampling.max_tokens} tokens" for request in requests]
        await expect(answers.locator(".state")).to_have_text(
            sorted(ends, key=lambda end: int(end.split()[0]))
        )
        await expect(figure(page, "rows")).to_have_text("0of 8")
        await page.get_by_role("button", name="Back to the chat").click()
        await expect(page.locator("#conversations li")).to_have_count(0)


@pytest.mark.parametrize("leave", ["Stop the work", "Back to the chat"])
async def test_work_can_be_stopped(context: BrowserContext, leave: str) -> None:
    async with engine_of(context, max_num_seqs=8, num_blocks=512) as (server, page, _):
        one_tick_a_picture(server)
        await page.get_by_role("button", name="Send it some work").click()
        await expect(page.locator("#engine-view .answers li[data-state=running]")).to_have_count(6)
        await page.get_by_role("button", name=leave).click()
        await eventually(lambda: len(server.engine.aborted) == 6)
        server.gate.open()


async def test_nobody_asks_where_nobody_looks(context: BrowserContext) -> None:
    async with engine_of(context) as (_, page, _):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/debug/" in request.url else None)
        await expect(page.locator("#engine-view .head .state")).to_contain_text("Idle")
        await page.evaluate(LOOK_AWAY)
        async with page.expect_event("requestfinished", lambda request: request.url.endswith("/livez")):
            await page.evaluate("fetch('/livez')")
        asked.clear()
        await page.clock.install()
        await page.clock.run_for(5000)
        assert asked == []
        async with page.expect_request("**/debug/engine?after=0"):
            await page.evaluate(LOOK_BACK)
        await page.get_by_role("button", name="Back to the chat").click()
        asked.clear()
        await page.clock.run_for(5000)
        assert asked == []


LOOK_AWAY = """
Object.defineProperty(document, "hidden", { value: true, configurable: true });
document.dispatchEvent(new Event("visibilitychange"));
"""
LOOK_BACK = "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'));"


async def test_the_last_picture_stays_when_the_server_is_away(context: BrowserContext) -> None:
    async with engine_of(context) as (server, page, watch), server.socket() as socket:
        watch.allow("ERR_CONNECTION_FAILED|503")
        await socket.answer("hello", max_output_tokens=5)
        await expect(page.locator("#engine-view .ticks .readout")).to_contain_text("Tick 5:")
        away = page.locator("#engine-view .away")
        await page.clock.install()
        await page.route("**/debug/engine*", lambda route: route.abort("connectionfailed"))
        await expect(away).to_contain_text(
            "the server does not answer. This is the last that was seen of it."
        )
        await expect(page.locator("#engine-view .head .state")).to_have_text("Not connected")
        await expect(page.locator("#engine-view .ticks .readout")).to_contain_text("Tick 5:")
        await page.unroute("**/debug/engine*")
        await page.route("**/debug/engine*", lambda route: route.fulfill(status=503))
        await page.clock.fast_forward(2000)
        await expect(away).to_contain_text("status 503")
        await page.unroute("**/debug/engine*")
        await page.clock.fast_forward(2000)
        await expect(away).to_be_hidden()
        await expect(page.locator("#engine-view .head .state")).to_contain_text("Idle")


async def test_savings_are_the_servers_own_numbers(context: BrowserContext) -> None:
    async with engine_of(context) as (server, page, _), server.socket() as socket, server.http() as http:
        verdict = page.locator("#engine-view .verdict")
        await socket.answer("hello", max_output_tokens=8)
        await expect(page.locator("#engine-view .ticks .readout")).to_contain_text("Tick 8:")
        await expect(verdict).to_have_text("Not enough seen yet to compare.")
        for length in (20, 33):
            await socket.answer("hello" * length, max_output_tokens=length)
        shown = (await http.get("/debug/engine")).json()
        sums, static = shown["memory_over_ticks"], shown["shadow"]["static"]
        here = 1 - sums["used"] / (sums["used"] + sums["reserved"] + sums["internal"])
        there = 1 - static["used"] / static["allocated"]
        here_is = f"of the memory it holds; here it is {round(100 * here)}%."
        wasted = f"Static batching would have wasted {round(100 * there)}%"
        await expect(verdict).to_have_text(f"{wasted} {here_is}")
        assert 0 < here < there < 1


async def test_requests_show_the_pages_key(context: BrowserContext) -> None:
    async with engine_of(context, "/") as (_, page, _):
        await page.evaluate(
            "localStorage.setItem('tickwire.preferences', JSON.stringify({ apiKey: 'sk-1' }))"
        )
        await page.reload()
        async with page.expect_request("**/debug/engine*") as asked:
            await page.get_by_role("link", name="Engine").click()
        assert (await asked.value).headers["authorization"] == "Bearer sk-1"


HISTORY = """async (pictures) => {
  const { History } = await import("/static/engine/history.js");
  const history = new History();
  for (const [running, ...ticks] of pictures) {
    history.add({
      running: running.split("").map((id) => ({ id })),
      stats: { ticks: ticks.at(-1)?.[0] ?? history.last },
      ticks: ticks.map(([number, admitted, ended = "", preempted = ""]) => (
        { number, admitted: [...admitted], ended: [...ended], preempted: [...preempted] }
      )),
    });
  }
  const known = (number) => (number === -Infinity ? null : number);
  const stays = history.stays.map(({ id, from, to, end, lane }) => [id, known(from), to, end, lane]);
  return { numbers: history.ticks.map(({ number }) => number), stays };
}"""


async def test_pictures_add_up(page: Page) -> None:
    async def history(*pictures: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = await page.evaluate(HISTORY, list(pictures))
        return found

    # Two at once have lanes of their own; whoever comes after takes the first that is free.
    told = await history(["ab", [1, "a"], [2, "b"]], ["bc", [3, "", "a"], [4, "c"]])
    assert told["numbers"] == [1, 2, 3, 4]
    assert told["stays"] == [["a", 1, 3, "ended", 0], ["b", 2, None, None, 1], ["c", 4, None, None, 0]]
    # Who gives way has no part in that tick, and comes back.
    told = await history(["ab", [1, "ab"], [2, "", "", "b"], [3, "b"]])
    assert told["stays"] == [
        ["a", 1, None, None, 0], ["b", 1, 1, "preempted", 1], ["b", 3, None, None, 1]
    ]  # fmt: skip
    # Whoever ran before the first picture entered at some time; one that is not there any more has left.
    told = await history(["ab", [7, ""], [8, "b"]], ["b", [9, ""]], ["b"])
    assert told["stays"] == [["b", 8, None, None, 0], ["a", None, 9, "ended", 1]]
    # Ticks that were missed, and a server that was started anew, leave nothing to go on with.
    assert (await history(["a", [1, "a"]], ["a", [5, ""]])) == {
        "numbers": [5],
        "stays": [["a", None, None, None, 0]],
    }
    assert (await history(["a", [6, "a"]], ["", [2, "b", "b"]])) == {
        "numbers": [2], "stays": [["b", 2, 2, "ended", 0]]
    }  # fmt: skip


COUNT_FRAMES = """() => {
  const frame = (window.frame ??= window.requestAnimationFrame);
  window.frames = 0;
  window.requestAnimationFrame = (draw) => {
    window.frames += 1;
    return frame(draw);
  };
}"""


@pytest.mark.parametrize(("motion", "slides"), [("no-preference", True), ("reduce", False)])
async def test_nothing_slides_where_motion_is_not_wanted(
    context: BrowserContext, motion: Literal["no-preference", "reduce"], slides: bool
) -> None:
    async with engine_of(context, "/") as (server, page, _), server.socket() as socket:
        await page.emulate_media(reduced_motion=motion)
        await stop_clock(page)
        readout = page.locator("#engine-view .ticks .readout")
        await page.get_by_role("link", name="Engine").click()
        for tick in (5, 10):
            await socket.answer("hello", max_output_tokens=5)
            # Its news may come at any time, and only then there is something to draw.
            async with asyncio.timeout(15):
                is_shown = False
                while not is_shown:
                    await page.evaluate(COUNT_FRAMES)
                    await page.clock.run_for(300)
                    is_shown = f"Tick {tick}:" in "".join(await readout.all_inner_texts())
            await page.clock.run_for(300)
        # Two drawings for each of at most three pictures; where they slide, one for each frame.
        assert (await page.evaluate("window.frames") > 10) is slides
