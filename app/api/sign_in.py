"""Sockets whose client has not shown its key in the handshake, as browsers cannot.

Knows: the first message of such a socket, the time it may take, how the socket is closed if it does not come.
Does not know: what is said afterwards.
"""

from __future__ import annotations

import asyncio

import orjson
from starlette.types import Message, Receive, Send

from app.caller import Caller, Callers, invalid_token
from app.protocol.errors import ApiError
from app.protocol.socket_messages import SessionAuth, error_event, understand

NO_KEY = 4401
NO_KEY_IN_TIME = 4408

MAX_MESSAGE = 8192
"""Characters of a message with a key in it. Whoever has shown none is owed no work on more."""


async def sign_in(
    callers: Callers, connection: str, receive: Receive, send: Send, patience: float
) -> Caller | None:
    """The caller of a socket that was accepted without a key, once it has sent one. None: it is gone, or has
    been closed because it did not.

    Args:
        connection: as for `Callers`.
        patience: seconds.
    """
    try:
        async with asyncio.timeout(patience):
            message = await receive()
    except TimeoutError:
        await _close(send, NO_KEY_IN_TIME, f"no key within {patience:g} s")
        return None
    if message["type"] == "websocket.disconnect":
        return None
    try:
        caller = callers.of_token(_token(message), connection)
    except ApiError as error:
        await send({"type": "websocket.send", "text": orjson.dumps(error_event(error, None)).decode()})
        await _close(send, NO_KEY, "no key, or a wrong one")
        return None
    await send({"type": "websocket.send", "text": '{"type":"session.authenticated"}'})
    return caller


def _token(message: Message) -> str:
    """Raises ApiError."""
    text = message.get("text") or ""
    understood = understand(text) if len(text) <= MAX_MESSAGE else None
    if isinstance(understood, SessionAuth):
        return understood.token
    raise invalid_token("another message first")


async def _close(send: Send, code: int, reason: str) -> None:
    await send({"type": "websocket.close", "code": code, "reason": reason})
