"""The real server as a process of its own, over the fake model: `python -m tests.clients.fake_server OPTIONS`

OPTIONS is a JSON object: further fields of the engine's configuration, `sampling`, true for a model that
samples, `never_ends`, false for one that says when it is done, `tick_s`, the seconds that a forward pass
takes, and `settings`, an object of the server's settings. The server listens on a free port, says so on its
first line, and then prints a JSON line for each request that was aborted: the ticks in which the abort came
in and in which the request was over.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from app.logs import configure
from app.server import Server, build_app, listen
from app.settings import Settings
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import Event, FinishedEvent
from tests.app.harness import WatchedEngine, fake_model
from tests.fakes import FakeRunner, SamplingRunner, fake_vocabulary

TICK_S = 0.002
"""How long a forward pass of this model takes, unless the option `tick_s` says."""


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def make_engine(
    publish: Callable[[list[Event]], None],
    *,
    sampling: bool = False,
    never_ends: bool = True,
    tick_s: float = TICK_S,
    **fields: Any,
) -> Engine:
    def watched(events: list[Event]) -> None:
        # The loop hears of it first: who acts on what is said here finds it counted.
        publish(events)
        for event in events:
            if isinstance(event, FinishedEvent) and event.request_id in engine.aborted:
                say(
                    aborted=engine.aborted[event.request_id],
                    ended=engine.stats().num_ticks,
                    reason=event.reason.value,
                    output_tokens=event.num_output_tokens,
                )

    config = EngineConfig(**{"num_blocks": 4096, "max_model_len": 4096 * 16} | fields)
    runner = (SamplingRunner if sampling else FakeRunner)(config.num_blocks, never_ends)
    runner.during = lambda: time.sleep(tick_s)
    engine = WatchedEngine(runner, fake_vocabulary(), config, watched)
    return engine


def main() -> None:
    configure("warning")
    options = json.loads(sys.argv[1])
    settings = Settings(**{"port": 0, "shutdown_timeout_s": 0.3} | options.pop("settings", {}))
    app = build_app(settings, model=fake_model(), make_engine=partial(make_engine, **options))
    with listen(settings.host, settings.port) as listening:
        Server(app, settings, lambda port: say(port=port)).run(sockets=[listening])


if __name__ == "__main__":
    main()
