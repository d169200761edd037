"""What the engine is doing, for people: GET /debug/engine and GET /debug/trace.

No text, no token, no whole id and no session's name: a picture that can be shown to anyone who may reach the
server.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.api.http import json_response
from app.service import Service
from engine.blocks import BLOCK_SIZE
from engine.engine import Engine, EngineStats
from engine.recorder import chrome_trace, recent
from engine.snapshot import LEGEND, Snapshot, take_snapshot

RECENT_S = 5.0
"""Seconds that the rates are taken over."""


def debug_routes(service: Service) -> list[BaseRoute]:
    async def engine_now(request: Request) -> Response:
        """Waits for the end of the tick that is running."""
        engine = service.bridge.engine
        snapshot = await asyncio.wrap_future(engine.inspect(take_snapshot))
        return json_response({"model": service.model.name, **_state(engine), **_picture(snapshot)})

    async def trace(request: Request) -> Response:
        """The last ticks, for chrome://tracing or ui.perfetto.dev."""
        records = service.bridge.engine.recorder.records()
        headers = {"content-disposition": 'attachment; filename="tickwire-trace.json"'}
        # A tenth of a second's work for a thousand ticks: nobody's token should wait for that.
        return await asyncio.to_thread(lambda: json_response(chrome_trace(records), headers=headers))

    return [
        Route("/debug/engine", engine_now, methods=["GET"]),
        Route("/debug/trace", trace, methods=["GET"]),
    ]


def _state(engine: Engine) -> dict[str, Any]:
    stats, config = engine.stats(), engine.config
    last = recent(engine.recorder.records(), time.monotonic(), RECENT_S)
    sums = stats.memory_over_ticks
    return {
        "config": {
            "admission": config.admission.value,
            "block_size": BLOCK_SIZE,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "token_budget": config.token_budget,
            "prefill_chunk": config.prefill_chunk,
        },
        "stats": _counts(stats),
        "recent": asdict(last) | {"stages": last.stages._asdict()},
        "memory": asdict(stats.memory),
        "memory_over_ticks": asdict(sums) | {"external": sums.external, "utilisation": sums.utilisation},
        "shadow": {
            policy.value: asdict(arm) | {"utilisation": arm.utilisation}
            for policy, arm in stats.shadow.items()
        },
    }


def _counts(stats: EngineStats) -> dict[str, Any]:
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "blocks": stats.num_blocks,
        "free_blocks": stats.num_free_blocks,
        "preemptions": stats.num_preemptions,
        "ticks": stats.num_ticks,
        "restarts": stats.num_restarts,
        "queried_tokens": stats.num_queried_tokens,
        "hit_tokens": stats.num_hit_tokens,
        "failure": stats.failure,
    }


def _picture(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "blocks": {"map": snapshot.blocks, "legend": LEGEND},
        "running": [asdict(each) for each in snapshot.running],
        "waiting": [{"session": session, "count": count} for session, count in snapshot.waiting],
    }
