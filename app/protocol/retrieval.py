"""What a GET for an answer asks for: all of it at its end, or its events from some number on.

Knows: the query's parameters, the header with which browsers go on. Does not know: HTTP, which numbers an
answer has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.protocol.errors import ApiError, invalid_value, shown

_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Retrieval:
    stream: bool
    starting_after: int | None
    """The last number that the client has seen; None: it wants the answer from its beginning."""

    @property
    def start(self) -> int:
        return 0 if self.starting_after is None else self.starting_after + 1


def parse_retrieval(query: Mapping[str, str], last_event_id: str | None) -> Retrieval:
    """
    Args:
        last_event_id: the header of that name. An EventSource sends it when it connects again to the same
            address, so it is newer than what the query says.

    Raises:
        ApiError: a parameter is unknown or has no value that is allowed.
    """
    for name in query:
        if name not in ("stream", "starting_after"):
            raise ApiError(
                400,
                f"{name[:60]}: unknown parameter; allowed: stream, starting_after",
                code="unknown_parameter",
                param=name[:60],
            )
    stream = query.get("stream", "false")
    if stream not in ("true", "false"):
        raise invalid_value("stream", f"got {shown(stream)}, allowed: true or false")
    number = query.get("starting_after") if last_event_id is None else last_event_id
    if number is None:
        return Retrieval(stream == "true", None)
    param = "starting_after" if last_event_id is None else "Last-Event-ID"
    if not _NUMBER.fullmatch(number):
        raise invalid_value(param, f"got {shown(number)}, allowed: the number of an event, in digits")
    if stream == "false":
        raise invalid_value(param, f"got {shown(number)}, allowed: only together with stream=true")
    return Retrieval(True, int(number))


def check_start(retrieval: Retrieval, num_events: int) -> None:
    """`num_events`: those that anybody was given so far.

    Raises:
        ApiError: nobody can have seen the number that the client names.
    """
    if retrieval.start > num_events:
        last = (
            f"at most {num_events - 1}, the last one so far"
            if num_events
            else "none, for there is no event yet"
        )
        raise invalid_value("starting_after", f"got {shown(retrieval.starting_after)}, allowed: {last}")
