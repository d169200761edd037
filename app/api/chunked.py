"""What Chat Completions and Completions share: an answer as server-sent chunks, or in one piece.

Knows: the order of chunks, how a choice that fails ends an answer, [DONE]. Does not know: what chunks look
like, who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from starlette.responses import Response

from app.api import sse
from app.api.http import error_response
from app.logs import get_logger
from app.protocol.endings import failure
from app.protocol.errors import ApiError, server_failed
from app.streams import Delta, Log, News, Stream, ends, read
from app.worker import Worker
from engine.request import FinishedEvent

log = get_logger()

DONE = b"data: [DONE]\n\n"


class Chunks(Protocol):
    """How an API shows the events of an answer. Choices are numbered as in its log."""

    def opening(self) -> list[dict[str, Any]]:
        """What comes before all events."""
        ...

    def text(self, choice: int, delta: Delta) -> dict[str, Any]: ...

    def finish(self, choice: int, end: FinishedEvent) -> dict[str, Any]: ...

    def usage(self) -> dict[str, Any] | None:
        """What comes after all events, if it was asked for. All choices have ended."""
        ...


async def send_chunks(
    stream: sse.EventStream,
    answers: Log,
    chunks: Chunks,
    *,
    start: int = 0,
    opened: bool = False,
    numbered: bool = False,
) -> bool:
    """The events of a log from number `start` on, in a stream whose head was sent. If one choice fails, or
    we do, the stream ends with the error, and False is returned: [DONE] would call the answer complete.

    Args:
        opened: the client has had the opening before.
        numbered: events carry their numbers, so that the client can name the last one it saw. An error has
            none: who takes the answer up behind it must be told of it again.

    Raises:
        ClientGone: the client took nothing for too long.
        StreamError: `start` is a number that nobody was ever given.
    """
    if not opened and (opening := chunks.opening()):
        await stream.write(b"".join(map(sse.event, opening)))
    async with aclosing(read(answers, start, idle=stream.keep_alive)) as events:
        async for news in events:
            body, error = _written(news, chunks, numbered)
            if error is not None:
                await stream.write(body + sse.event({"error": error.body()}), more=False)
                return False
            await stream.write(body or sse.KEEP_ALIVE)
    usage = chunks.usage()
    await stream.write((sse.event(usage) if usage else b"") + DONE, more=False)
    return True


def _written(news: News, chunks: Chunks, numbered: bool) -> tuple[bytes, ApiError | None]:
    """Some events, up to the first that is a failure."""
    body = b""
    try:
        for number, (choice, event) in news:
            if isinstance(event, Delta):
                chunk = chunks.text(choice, event)
            elif error := failure(event):
                return body, error
            else:
                chunk = chunks.finish(choice, event)
            body += sse.event(chunk, number=number if numbered else None)
    except Exception:
        log.exception("request_failed")
        return body, server_failed()
    return body, None


async def failure_among(streams: Sequence[Stream]) -> Response | None:
    """Waits for all choices to end. If one fails, nobody waits for the others: an answer with a part missing
    is none."""
    async with aclosing(ends(streams)) as each_end:
        async for end in each_end:
            if error := failure(end):
                response = error_response(error)
                if end.num_output_tokens or any(stream.num_deltas for stream in streams):
                    response.headers["x-should-retry"] = "false"
                return response
    return None


async def in_one_piece(
    streams: Sequence[Stream], body: Callable[[], dict[str, Any]], json: Worker
) -> Response:
    """The answer of choices that have all ended well. `json` is for what is large."""
    # Log probabilities make it so.
    size = sum(64 * (1 + len(each.top)) for stream in streams for each in stream.logprobs)
    content = await json.do(size, lambda: orjson.dumps(body()))
    return Response(content, headers={"x-should-retry": "false"}, media_type="application/json")
