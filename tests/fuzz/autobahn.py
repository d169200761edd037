"""Runs the Autobahn test suite's fuzzing client against our WebSocket connections, with an echo behind them.

    python2.7 -m pip install --target DIR autobahntestsuite
    python -m tests.fuzz.autobahn --python python2.7 --site DIR [--cases 1.*,2.*]

The suite exists for Python 2.7 only. It says of each case OK, NON-STRICT, INFORMATIONAL or FAILED; the exit
code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from app.server import listen
from app.transport import HttpConnection, SocketConnection, Wire

MAX_MESSAGE = 32 * 1024 * 1024
"""The suite sends messages of 16 MiB."""
FINE = ("OK", "NON-STRICT", "INFORMATIONAL")
RUN = "import site; site.addsitedir({site!r}); from autobahntestsuite.wstest import run; run()"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    with suppress(RuntimeError):  # it was closed under us
        while (message := await receive())["type"] == "websocket.receive":
            answer = {"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")}
            await send(answer)


async def run(python: str, site: str, folder: Path, cases: list[str]) -> None:
    """`folder` gets the suite's reports."""
    wire = Wire(handshake_timeout=10)
    config = uvicorn.Config(
        echo,
        http=functools.partial(HttpConnection, wire=wire),  # type: ignore[arg-type]
        ws=functools.partial(SocketConnection, wire=wire),  # type: ignore[arg-type]
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server._serve([listening]))
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
        servers = [{"agent": "tickwire", "url": url}]
        spec = {"outdir": str(folder), "servers": servers, "cases": cases, "exclude-cases": []}
        _write(folder / "spec.json", spec)
        command = (python, "-c", RUN.format(site=site), "-m", "fuzzingclient", "-s", f"{folder}/spec.json")
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        await client.wait()
        server.should_exit = True
        await serving


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the Autobahn test suite against our connections.")
    parser.add_argument("--python", default="python2.7", help="a Python 2.7")
    parser.add_argument("--site", required=True, help="where autobahntestsuite was installed to")
    # 9 measures speed, 12 and 13 want compression, which is off.
    parser.add_argument("--cases", default="1.*,2.*,3.*,4.*,5.*,6.*,7.*,10.*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uvloop.run(run(arguments.python, arguments.site, folder, arguments.cases.split(",")))
        results = json.loads((folder / "index.json").read_text())["tickwire"]
    behaviours = {case: each["behavior"] for case, each in results.items()}
    print(", ".join(f"{count} {what}" for what, count in Counter(behaviours.values()).most_common()))
    failed = sorted(case for case, what in behaviours.items() if what not in FINE)
    print("\n".join(f"{case}: {behaviours[case]}" for case in failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
