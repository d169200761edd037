"""What the engine is doing, for people: GET /debug/engine and GET /debug/trace.

No text, no token, no whole id and no session's name: a picture that can be shown to anyone who may reach the
server.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.api.http import json_response, told
from app.protocol.errors import ApiError, invalid_value, shown
from app.service import Service
from engine.blocks import BLOCK_SIZE
from engine.engine import Engine, EngineStats
from engine.recorder import TickRecord, chrome_trace, recent
from engine.snapshot import LEGEND, SequencePicture, Snapshot, runs, short_id, take_snapshot

RECENT_S = 5.0
"""Seconds that the rates are taken over."""
MOST_TICKS = 256
"""Ticks told at once: some seconds' worth, for whoever asks several times a second."""
_TICK = re.compile(r"[0-9]{1,18}")


def debug_routes(service: Service) -> list[BaseRoute]:
    async def engine_now(request: Request) -> Response:
        """Waits for the end of the tick that is running."""
        after = _after(request.query_params)
        engine = service.bridge.engine
        snapshot = await asyncio.wrap_future(engine.inspect(take_snapshot))

        def tell() -> Response:
            picture = {"model": service.model.name, **_state(engine), **_picture(snapshot)}
            if after is not None:
                picture["ticks"] = [_tick(record) for record in engine.recorder.since(after, MOST_TICKS)]
            return json_response(picture)

        # Where blocks are many, milliseconds, several times a second: nobody's token should wait for that.
        return await asyncio.to_thread(tell)

    async def trace(request: Request) -> Response:
        """The last ticks, for chrome://tracing or ui.perfetto.dev."""
        records = service.bridge.engine.recorder.records()
        headers = {"content-disposition": 'attachment; filename="tickwire-trace.json"'}
        # A tenth of a second's work for a thousand ticks: nobody's token should wait for that.
        return await asyncio.to_thread(lambda: json_response(chrome_trace(records), headers=headers))

    return [
        Route("/debug/engine", told(engine_now), methods=["GET"]),
        Route("/debug/trace", trace, methods=["GET"]),
    ]


def _after(query: Mapping[str, str]) -> int | None:
    """The tick behind which to tell of ticks; None: of none.

    Raises:
        ApiError: it is no number, or something else is asked for.
    """
    for name in query:
        if name != "after":
            raise ApiError(
                400,
                f"{name[:60]}: unknown parameter; allowed: after",
                code="unknown_parameter",
                param=name[:60],
            )
    after = query.get("after")
    if after is None:
        return None
    if not _TICK.fullmatch(after):
        raise invalid_value("after", f"got {shown(after)}, allowed: the number of a tick, in digits")
    return int(after)


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
        "running": [_sequence(each) for each in snapshot.running],
        "waiting": [{"session": session, "count": count} for session, count in snapshot.waiting],
    }


def _sequence(sequence: SequencePicture) -> dict[str, Any]:
    return {
        "id": sequence.id,
        "row": sequence.row,
        "prompt_tokens": sequence.prompt_tokens,
        "output_tokens": sequence.output_tokens,
        "cached_tokens": sequence.cached_tokens,
        "computed_tokens": sequence.computed_tokens,
        "blocks": len(sequence.table),
        "table": runs(sequence.table),
        "session": sequence.session,
        "preemptions": sequence.preemptions,
        "is_padding": sequence.is_padding,
    }


def _tick(record: TickRecord) -> dict[str, Any]:
    """What is computed and not sampled is reading: prompts, and what a preempted sequence had before."""
    return {
        "number": record.number,
        "start": record.start,
        "ms": sum(record.stages) / 1000,
        "rows": record.rows,
        "prefill_tokens": record.tokens - record.sampled,
        "decode_tokens": record.sampled,
        "waiting": record.waiting,
        "stages": record.stages._asdict(),
        "admitted": [short_id(each) for each in record.admitted],
        "ended": [short_id(each) for each in record.ended],
        "preempted": [short_id(each) for each in record.preempted],
    }
