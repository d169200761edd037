"""The sockets as an AsyncAPI 3 document.

Knows: which messages go which way. Does not know: how any of it is served, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from app import __version__
from app.protocol import responses, ui_chat
from app.protocol.responses import CreateResponse
from app.protocol.socket_messages import (
    IGNORED_IN_SOCKET_MODE,
    LANE_NAME,
    AskStats,
    CancelResponse,
    Ping,
    ResumeResponse,
    SessionAuth,
    SteerResponse,
)
from app.spec.answers import ERRORS, LOGPROBS, RESPONSES, response_events
from app.spec.shapes import Schema, one_of, ref, request_schemas, without_unused
from app.spec.socket_events import UI_FRAMES, responses_socket_events

Document = dict[str, Any]
Messages = Mapping[str, Schema]
"""Type -> what a message of that type is."""

_REQUESTS: dict[str, type[BaseModel]] = {
    "response.create": CreateResponse,
    "response.resume": ResumeResponse,
    "response.cancel": CancelResponse,
    "response.steer": SteerResponse,
    "response.stats": AskStats,
    "session.auth": SessionAuth,
    "ping": Ping,
}
"""Type -> the fields of such a message beside `type`."""


@dataclass(frozen=True)
class Channel:
    """One socket endpoint."""

    address: str
    description: str
    received: Messages
    sent: Messages

    @property
    def messages(self) -> Iterator[tuple[str, str, Schema]]:
        """Direction, type, payload."""
        for direction, messages in (("receive", self.received), ("send", self.sent)):
            for kind, payload in messages.items():
                yield direction, kind, payload


def asyncapi() -> Document:
    requests = request_schemas(
        (model, responses.UNSUPPORTED if model is CreateResponse else {}) for model in _REQUESTS.values()
    )
    chats = request_schemas((model, {}) for model in (*ui_chat.KINDS.values(), ui_chat.ChatFields))
    channels = {"responses": _responses(requests), "chat": _chat(chats)}
    return without_unused(
        {
            "asyncapi": "3.0.0",
            "info": {
                "title": "Tickwire",
                "version": __version__,
                "description": "Chat over WebSockets, in JSON text messages. HTTP is in /openapi.json.",
                "license": {"name": "Apache-2.0"},
            },
            "defaultContentType": "application/json",
            "channels": {name: _channel(name, channel) for name, channel in channels.items()},
            "operations": {
                f"{name}.{direction}": _operation(name, direction, channel)
                for name, channel in channels.items()
                for direction in ("receive", "send")
            },
            "components": {
                "messages": {
                    f"{name}.{direction}.{kind}": {"name": kind, "payload": payload}
                    for name, channel in channels.items()
                    for direction, kind, payload in channel.messages
                },
                "schemas": {**requests, **chats, **ERRORS, **LOGPROBS, **RESPONSES},
            },
        }
    )


def _responses(requests: Mapping[str, Schema]) -> Channel:
    lane: dict[str, Schema] = {
        "stream_id": {
            "type": "string",
            "pattern": f"^({LANE_NAME.pattern})$",
            "description": "the lane: a name for one of several conversations on this socket",
        }
    }
    more = {"response.create": {**lane, **{name: {} for name in IGNORED_IN_SOCKET_MODE}}}
    return Channel(
        "/v1/responses",
        "The Responses WebSocket mode",
        received={
            kind: _typed(kind, requests[model.__name__], more.get(kind, {}))
            for kind, model in _REQUESTS.items()
        },
        sent={**response_events(lane), **responses_socket_events(lane)},
    )


def _chat(requests: Mapping[str, Schema]) -> Channel:
    received = {kind: requests[model.__name__] for kind, model in ui_chat.KINDS.items()}
    turn = received["send"]
    received["send"] = {**turn, "properties": {**turn["properties"], "body": ref("ChatFields")}}
    return Channel("/api/chat", "The AI SDK's WebSocketChatTransport", received, UI_FRAMES)


def _typed(kind: str, fields: Schema, more: Mapping[str, Schema]) -> Schema:
    """A message of a type, with the fields of a request."""
    return {
        **fields,
        "properties": {"type": one_of(kind), **fields["properties"], **more},
        "required": ["type", *fields.get("required", ())],
    }


def _channel(name: str, channel: Channel) -> dict[str, Any]:
    return {
        "address": channel.address,
        "description": channel.description,
        "messages": {
            f"{direction}.{kind}": {"$ref": f"#/components/messages/{name}.{direction}.{kind}"}
            for direction, kind, _ in channel.messages
        },
        "bindings": {"ws": {"method": "GET"}},
    }


def _operation(name: str, direction: str, channel: Channel) -> dict[str, Any]:
    return {
        "action": direction,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [
            {"$ref": f"#/channels/{name}/messages/{each}.{kind}"}
            for each, kind, _ in channel.messages
            if each == direction
        ],
    }
