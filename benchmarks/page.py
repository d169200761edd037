"""Whether the page stays responsive while a long answer arrives, and what it weighs.

    python -m benchmarks.page [--tokens N] [--rate N] [--slowdown N] [--answers N] [--json PATH]

A server without a model replays one long answer (paragraphs, lists, tables, code, formulas) to a headless
Chromium. The browser itself measures: its long tasks (over 50 ms on the main thread), its frames, and what it
received. A miss of an aim ends with status 1: no long task while 4,000 tokens arrive at 200 a second, none
while a conversation of many such answers is opened, and less than 200 kB for the first visit. Long tasks are
measured by the clock: on a machine that has other work, they are that work's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import CDPSession, Page, async_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.api.page import page_routes

AIM_TASK_MS = 50.0
AIM_VISIT_KB = 200.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
]
PATIENCE_MS = 120_000

WATCH = """
window.measured = { tasks: [], frames: [], times: [] };
const each = (type, act) =>
  new PerformanceObserver((list) => list.getEntries().forEach(act)).observe({ type, buffered: true });
const told = (s) => `${Math.round(s.duration)} ms ${s.invoker} ${s.sourceURL.split("/").at(-1)}`;
each("longtask", (entry) => measured.tasks.push([entry.startTime, entry.duration]));
each("long-animation-frame", (entry) => measured.frames.push([entry.duration, ...entry.scripts.map(told)]));
requestAnimationFrame(function count(time) { measured.times.push(time); requestAnimationFrame(count); });
"""


def answer_text(num_tokens: int) -> list[str]:
    """The pieces of an answer as a model would give it, of four letters or so."""
    pieces: list[str] = []
    for part in _parts():
        pieces += re.findall(r"\s*\S{1,5}|\s+$", part)
        if len(pieces) >= num_tokens:
            break
    return pieces[:num_tokens]


def _parts() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"## Part {number}: what a scheduler does\n\n"
        for _ in range(3):
            yield (
                "A **scheduler** decides in every step which of the `running` sequences grow, and by how "
                "much; see [the survey](https://example.com/survey). With $n$ sequences of mean length "
                "$\\bar{\\ell}$ the memory it needs is $M = n\\,\\bar{\\ell}\\,b$, "
                "where *b* is what a token costs.\n\n"
            )
        yield "".join(
            f"{i}. Item {i} has a **name**, a value of `{i * i}` and says a little more than one line.\n"
            f"   - a detail of it, with $x_{{{i}}}^2$\n"
            for i in range(1, 9)
        )
        yield "\n$$\n\\operatorname{attention}(Q, K, V) = \\operatorname{softmax}"
        yield "\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right)V\n$$\n\n```python\n"
        yield "".join(
            f"def step_{i}(batch: list[int], width: int = {i}) -> int:\n"
            f'    """Sums what is wider than {i}."""\n'
            f"    return sum(value for value in batch if value > width)  # {i}\n\n"
            for i in range(12)
        )
        yield "```\n\n| policy | rows | tokens/s | p50 ms | p99 ms |\n|:--|--:|--:|--:|--:|\n"
        yield "".join(
            f"| `policy_{i}` | {i} | **{i * 37 % 911}** | {i % 7}.{i % 10} | {i % 70}.1 |\n"
            for i in range(60)
        )
        yield "\n"


class Replay:
    """Answers every question with the same pieces, `rate` of them a second; 0: all at once."""

    def __init__(self, pieces: list[str], rate: float) -> None:
        self.pieces = pieces
        self.rate = rate
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                WebSocketRoute("/v1/responses", self._socket),
                *page_routes(),
            ]
        )
        self._running: set[asyncio.Task[None]] = set()
        self._number = 0

    async def _models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "replay", "object": "model"}]})

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                frame = json.loads(await socket.receive_text())
                if frame["type"] == "ping":
                    await socket.send_json({"type": "pong", "id": frame["id"], "time": 0})
                elif frame["type"] == "response.create" and frame.get("generate") is not False:
                    self._running.add(asyncio.create_task(self._answer(socket, frame.get("stream_id"))))

    async def _answer(self, socket: WebSocket, lane: str | None) -> None:
        self._number += 1
        response = {"id": f"resp_{self._number}", "object": "response", "output": [], "error": None}
        num_sent = 0

        async def send(kind: str, **fields: Any) -> None:
            nonlocal num_sent
            event = {"type": kind, "sequence_number": num_sent, "stream_id": lane} | fields
            num_sent += 1
            await socket.send_text(json.dumps(event))

        await send("response.created", response=response | {"status": "in_progress", "usage": None})
        began = asyncio.get_running_loop().time()
        for i, piece in enumerate(self.pieces):
            if self.rate and (ahead := began + i / self.rate - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(ahead)
            await send(
                "response.output_text.delta", item_id="m", output_index=0, content_index=0, delta=piece
            )
        num = len(self.pieces)
        usage = {"input_tokens": 7, "output_tokens": num, "total_tokens": 7 + num}
        await send("response.completed", response=response | {"status": "completed", "usage": usage})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Ctrl+C belongs to the benchmark.
        yield


@contextlib.asynccontextmanager
async def serving(replay: Replay) -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(replay.app, log_level="warning", ws="websockets-sansio", lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = server.force_exit = True
    await running


@dataclass
class Smoothness:
    """What the main thread did over some time."""

    name: str
    seconds: float
    frames_per_second: float
    tasks_ms: list[float]
    """Of the long ones."""
    longest_frame: list[Any]
    """Its milliseconds, and the scripts in it."""


@dataclass
class Weight:
    """What a visit received, headers included."""

    name: str
    files: dict[str, int] = field(default_factory=dict)

    @property
    def kilobytes(self) -> float:
        return sum(self.files.values()) / 1000


class Scales:
    """Adds up what the browser receives over HTTP."""

    def __init__(self, cdp: CDPSession) -> None:
        self.received: dict[str, int] = {}
        self._paths: dict[str, str] = {}
        cdp.on("Network.responseReceived", self._began)
        cdp.on("Network.loadingFinished", self._ended)

    def _began(self, event: dict[str, Any]) -> None:
        self._paths[event["requestId"]] = event["response"]["url"].split("/", 3)[3]

    def _ended(self, event: dict[str, Any]) -> None:
        path = self._paths.get(event["requestId"])
        if path is not None and not path.startswith("v1/"):
            self.received[path] = self.received.get(path, 0) + int(event["encodedDataLength"])


async def ask(page: Page, num_answers: int) -> None:
    """Asks, and waits for the end of the answer, which is the conversation's so many-th."""
    await page.get_by_role("textbox", name="Message").fill("Go")
    await page.keyboard.press("Enter")
    await page.wait_for_function(
        """(num) => document.querySelectorAll(".turn.assistant").length === num
            && document.querySelectorAll(".turn.assistant[data-state=completed] .figures").length === num""",
        arg=num_answers,
        timeout=PATIENCE_MS,
    )


async def settled(page: Page) -> None:
    """Nothing has moved on the page for half a second."""
    await page.evaluate(
        """() => new Promise((resolve) => {
            let timer = setTimeout(resolve, 500);
            new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(resolve, 500); })
                .observe(document.querySelector("#transcript"), { childList: true, subtree: true });
        })"""
    )


async def reset(page: Page) -> None:
    await page.evaluate("() => { measured.tasks = []; measured.frames = []; measured.times = []; }")


async def smoothness(page: Page, name: str) -> Smoothness:
    tasks, frames, times = await page.evaluate("[measured.tasks, measured.frames, measured.times]")
    seconds = (times[-1] - times[0]) / 1000
    return Smoothness(
        name,
        seconds,
        (len(times) - 1) / seconds,
        sorted((duration for _, duration in tasks), reverse=True),
        max(frames, default=[0.0]),
    )


async def measure(
    num_tokens: int, rate: float, slowdown: float, num_answers: int
) -> tuple[list[Smoothness], list[Weight]]:
    """Streams at the machine's own speed and at a part of it, opens a long conversation, and weighs."""
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit(f"no Chromium on PATH: looked for {', '.join(CHROMIUM)}")
    replay = Replay(answer_text(num_tokens), rate)
    found: list[Smoothness] = []
    async with async_playwright() as playwright, serving(replay) as origin:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        page = await browser.new_page()
        await page.add_init_script(WATCH)
        cdp = await page.context.new_cdp_session(page)
        await cdp.send("Network.enable")
        scales = Scales(cdp)
        await page.goto(origin)
        await page.locator("body[data-ready]").wait_for()
        await settled(page)
        weights = [Weight("first visit", dict(scales.received))]
        for factor in (1.0, slowdown):
            await cdp.send("Emulation.setCPUThrottlingRate", {"rate": factor})
            await reset(page)
            await ask(page, len(found) + 1)
            await settled(page)
            found.append(await smoothness(page, f"{num_tokens} tokens at {rate:g}/s, CPU 1/{factor:g}"))
        await cdp.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        weights.append(Weight("with code and formulas", dict(scales.received)))
        replay.rate = 0
        for number in range(len(found), num_answers):
            await ask(page, number + 1)
        await page.reload()
        await page.locator("body[data-ready]").wait_for()
        await settled(page)
        found.append(await smoothness(page, f"opening {num_answers} such answers"))
        await browser.close()
    return found, weights


def table(found: list[Smoothness], weights: list[Weight]) -> str:
    lines = [f"{'':36} {'seconds':>8} {'frames/s':>8} {'long tasks':>10} {'longest, ms':>11}"]
    for each in found:
        longest = each.tasks_ms[0] if each.tasks_ms else 0
        figures = f"{each.seconds:8.1f} {each.frames_per_second:8.1f} {len(each.tasks_ms):10} {longest:11.0f}"
        lines.append(f"{each.name:36} {figures}")
        if each.longest_frame[0]:
            lines.append(f"  longest frame: {each.longest_frame}")
    for weight in weights:
        lines.append(f"\n{weight.name}: {weight.kilobytes:.1f} kB in {len(weight.files)} files")
        if weight is weights[-1]:
            heaviest = sorted(weight.files.items(), key=lambda file: -file[1])
            lines += [f"{size / 1000:10.1f} kB  {path or '/'}" for path, size in heaviest]
    return "\n".join(lines)


def verdicts(found: list[Smoothness], weights: list[Weight]) -> Iterator[tuple[bool, str]]:
    """Of those figures that have an aim: not of a machine that was made slower."""
    for each in found:
        if "1/" not in each.name or each.name.endswith("1/1"):
            yield (
                not each.tasks_ms,
                f"{each.name}: {len(each.tasks_ms)} tasks over {AIM_TASK_MS:g} ms, aim: none",
            )
    for weight in weights[:1]:
        met = weight.kilobytes < AIM_VISIT_KB
        yield met, f"{weight.name}: {weight.kilobytes:.1f} kB, aim: less than {AIM_VISIT_KB:g} kB"


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and weigh the page.")
    parser.add_argument("--tokens", type=int, default=4000, help="of the answer")
    parser.add_argument("--rate", type=float, default=200.0, help="tokens per second")
    parser.add_argument("--slowdown", type=float, default=2.0, help="of the CPU, in the second run")
    parser.add_argument(
        "--answers", type=int, default=12, help="of the conversation that is opened; at least 2"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    arguments = parser.parse_args()
    found, weights = asyncio.run(
        measure(arguments.tokens, arguments.rate, arguments.slowdown, arguments.answers)
    )
    print(table(found, weights))
    missed = False
    for met, line in verdicts(found, weights):
        print(f"{'PASS' if met else 'MISS'}: {line}")
        missed = missed or not met
    if arguments.json:
        results = {
            "smoothness": [asdict(each) for each in found],
            "weights": [asdict(each) for each in weights],
        }
        arguments.json.write_text(json.dumps(results, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
