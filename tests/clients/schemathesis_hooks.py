"""Makes of the requests that Schemathesis draws more that are answered. A wrong request stays wrong: valid
values alone are replaced, by valid ones. Every other question about an answer is about one that there was.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import schemathesis

MODEL = "fake-model"
AN_HOUR_MS = 3_600_000


NAMES = {
    "response_id": re.compile(r"\bresp_[0-9a-f]{32}\b"),
    "completion_id": re.compile(r"\bchatcmpl-[0-9a-f]{32}\b"),
}
"""Path parameter -> what it looks like in answers."""

seen: dict[str, list[str]] = {}
"""Path parameter -> its values in answers."""
turns = itertools.count()


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    for parameter, pattern in NAMES.items():
        if found := pattern.search(response.text):
            values = seen.setdefault(parameter, [])
            if found.group() not in values:
                values.append(found.group())


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    for parameter in seen.keys() & (case.path_parameters or {}).keys():
        if next(turns) % 2 and (values := seen[parameter]):
            is_last = case.method.upper() == "DELETE"
            case.path_parameters[parameter] = values.pop() if is_last else values[-1]
    if isinstance(case.body, dict):
        _make_likelier(case.body)


def _make_likelier(body: dict[str, Any]) -> None:
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if isinstance(body.get("previous_response_id"), str):
        body["previous_response_id"] = None
    if body.get("store") is False:
        body["store"] = None
    if body.get("on_disconnect") == "cancel":
        body["on_disconnect"] = None
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
