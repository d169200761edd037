"""How an answer ended: which endings are failures, what the client is told of them, what was used.

Knows: finish reasons, error objects, what both completions APIs have in common. Does not know: any API's
other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from app.protocol.errors import ApiError, generation_failed, unavailable
from engine.request import FinishedEvent, FinishReason


def failure(end: FinishedEvent) -> ApiError | None:
    """What to tell a client that is still there of an answer that it did not get; None if it got one.

    A limit on time that passed before anything was generated is a failure: an empty answer would look like
    the model's own. One that passed later has cut the answer short, as a limit on tokens does.
    """
    match end.reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.TIMEOUT:
            return None if end.num_output_tokens else _nothing_in_time(end)
        case FinishReason.ABORT:
            # The client is still there, so it was not the client's wish.
            return unavailable("the server is shutting down; the answer was cut short")
        case FinishReason.ERROR:
            return generation_failed(end.error or "the answer could not be computed")
    assert_never(end.reason)


def _nothing_in_time(end: FinishedEvent) -> ApiError:
    waited = round((end.timings.finished - end.timings.arrival) * 1000)
    queued = end.timings.admitted is None
    where = "in the queue" if queued else "at its prompt"
    return ApiError(
        503,
        f"{end.stop}: after {waited} ms the request was still {where}, and nothing had been generated",
        code="queue_timeout" if queued else "timeout",
        param=str(end.stop),
        kind="server_error",
    )


def ending(end: FinishedEvent) -> dict[str, Any]:
    """Of an answer that is no failure. A limit on time cuts it short as one on tokens does; `stop_reason`
    names it then."""
    reason = "length" if end.reason is FinishReason.TIMEOUT else end.reason.value
    return {"finish_reason": reason, "stop_reason": end.stop}


def usage(prompts: Sequence[Sequence[FinishedEvent]]) -> dict[str, Any]:
    """All choices together: for each prompt, those that continue it. A prompt counts once."""
    prompt = sum(ends[0].num_prompt_tokens for ends in prompts)
    output = sum(end.num_output_tokens for ends in prompts for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(ends[0].num_cached_tokens for ends in prompts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
