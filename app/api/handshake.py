"""The handshake of a WebSocket: whether it is accepted, and whose it is.

Knows: origins, keys in the handshake, refusals before the upgrade. Does not know: what is said afterwards.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app.api.http import check_origin, error_response
from app.caller import Caller
from app.protocol.errors import ApiError
from app.service import Service
from app.settings import Settings


class Accepted(NamedTuple):
    connection: str
    """A name, which no other open connection has."""
    caller: Caller | None
    """None: keys are asked for, and its client has not shown one yet."""


async def accept(
    service: Service, settings: Settings, scope: Scope, receive: Receive, send: Send, *, for_new_work: bool
) -> Accepted | None:
    """None: it was refused, with an HTTP status and an error object. `for_new_work`: nothing else can be
    asked for, so that it is refused while no work is taken."""
    connection = secrets.token_hex(8)
    try:
        headers = Headers(scope=scope)
        check_origin(headers, settings.allowed_origins)
        caller = service.callers.of_handshake(headers, connection)
        if for_new_work:
            service.check_ready()
    except ApiError as error:
        await error_response(error)(scope, receive, send)
        return None
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    return Accepted(connection, caller)
