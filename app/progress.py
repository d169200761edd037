"""How far a response is, in numbers.

Knows: the engine's books while it runs, its end afterwards. Does not know: who asks, what is said.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.responses import KeptResponse
from app.streams import ends
from engine.engine import Engine
from engine.request import FinishedEvent
from engine.snapshot import Progress, look_at


async def progress(kept: KeptResponse, engine: Engine) -> dict[str, Any]:
    """The statistics of `response.stats`. Waits for the end of the tick that is running."""
    stream = kept.view.stream
    if stream.end is None:
        request_id = kept.answer.request_id
        found = await asyncio.wrap_future(engine.inspect(lambda scheduler: look_at(scheduler, request_id)))
        if found is not None:
            return _running(kept, found, engine.config.max_model_len, time.monotonic())
    # The engine may be done with a response before the loop has been told so.
    async for end in ends([stream]):
        return _ended(kept, end, engine.config.max_model_len)
    raise RuntimeError("a stream came to no end")


def _running(kept: KeptResponse, found: Progress, context: int, now: float) -> dict[str, Any]:
    is_computed = found.computed_tokens == found.prompt_tokens
    is_queued = found.queue_position is not None
    return _stats(
        kept,
        status="queued" if is_queued else "generating" if is_computed else "prefilling",
        queue_position=found.queue_position,
        prompt_tokens=found.prompt_tokens,
        computed_tokens=found.computed_tokens,
        cached_tokens=found.cached_tokens,
        output_tokens=found.output_tokens,
        context=context,
        first_token=found.first_token,
        waited_until=now if found.admitted is None else found.admitted,
        until=now,
        preemptions=found.preemptions,
    )


def _ended(kept: KeptResponse, end: FinishedEvent, context: int) -> dict[str, Any]:
    at = end.timings
    return _stats(
        kept,
        status="ended",
        queue_position=None,
        prompt_tokens=end.num_prompt_tokens,
        # How far it had come before its first token, nobody remembers.
        computed_tokens=end.num_prompt_tokens if end.num_output_tokens else None,
        cached_tokens=end.num_cached_tokens,
        output_tokens=end.num_output_tokens,
        context=context,
        first_token=at.first_token,
        waited_until=at.finished if at.admitted is None else at.admitted,
        until=at.finished,
        preemptions=end.num_preemptions,
    )


def _stats(
    kept: KeptResponse,
    *,
    status: str,
    queue_position: int | None,
    prompt_tokens: int,
    computed_tokens: int | None,
    cached_tokens: int,
    output_tokens: int,
    context: int,
    first_token: float | None,
    waited_until: float,
    until: float,
    preemptions: int,
) -> dict[str, Any]:
    """Times are `time.monotonic()` seconds."""
    request, arrival = kept.view.request, kept.answer.arrival
    room = context - prompt_tokens
    if request.warms_up:  # the token that it samples is told to nobody
        output_tokens, most, first_token = 0, 0, None
    else:
        most = min(room, request.max_output_tokens or room)
    speed = None
    if first_token is not None and output_tokens > 1 and until > first_token:
        speed = round((output_tokens - 1) / (until - first_token), 1)
    return {
        "status": status,
        "queue_position": queue_position,
        "prompt_tokens": prompt_tokens,
        "computed_tokens": computed_tokens,
        "cached_tokens": cached_tokens,
        "output_tokens": output_tokens,
        "max_output_tokens": most,
        "context_left": room - output_tokens,
        "tokens_per_s": speed,
        "waited_ms": _ms(arrival, waited_until),
        "first_token_ms": None if first_token is None else _ms(arrival, first_token),
        "preemptions": preemptions,
        "readers": kept.num_readers,
    }


def _ms(since: float, until: float) -> float:
    return round((until - since) * 1000, 1)
