"""Makes of the requests that Schemathesis draws more that are answered. A wrong request stays wrong: valid
values alone are replaced, by valid ones.
"""

from __future__ import annotations

from typing import Any

import schemathesis

MODEL = "fake-model"
AN_HOUR_MS = 3_600_000


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if isinstance(body.get("previous_response_id"), str):
        body["previous_response_id"] = None
    if body.get("store") is False:
        body["store"] = None
    for limit in ("max_queue_ms", "max_time_ms"):
        if isinstance(body.get(limit), int | float) and body[limit] > 0 and body[limit] is not True:
            body[limit] = AN_HOUR_MS
    if isinstance(body.get("stream_options"), dict) and _may_be_set(body, "stream"):
        body["stream"] = True
    if body.get("top_logprobs") and _may_be_set(body, "logprobs"):
        body["logprobs"] = True
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        if isinstance(message, dict) and message.get("role") == "tool":
            message["role"] = "user"


def _may_be_set(body: dict[str, Any], switch: str) -> bool:
    return body.get(switch) is None or isinstance(body[switch], bool)
