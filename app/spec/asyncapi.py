"""The sockets as an AsyncAPI 3 document.

Knows: which messages go which way, and close codes. Does not know: how any of it is served, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app import __version__
from app.protocol import responses
from app.protocol.responses import CreateResponse
from app.protocol.socket_messages import IGNORED_IN_SOCKET_MODE, LANE_NAME, CancelResponse
from app.spec.answers import ERRORS, LOGPROBS, RESPONSES, response_events
from app.spec.shapes import COUNT, Schema, one_of, record, ref, request_schemas, without_unused

Document = dict[str, Any]
Messages = Mapping[str, Schema]
"""Type -> what a message of that type is."""


@dataclass(frozen=True)
class Channel:
    """One socket endpoint."""

    address: str
    description: str
    from_clients: Messages
    from_server: Messages


def asyncapi() -> Document:
    requests = request_schemas([(CreateResponse, responses.UNSUPPORTED), (CancelResponse, {})])
    channels = {"responses": _responses(requests)}
    document = {
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
            f"{name}.{direction}": _operation(name, direction, messages)
            for name, channel in channels.items()
            for direction, messages in (("receive", channel.from_clients), ("send", channel.from_server))
        },
        "components": {
            "messages": {
                f"{name}.{direction}.{kind}": {"name": kind, "payload": payload}
                for name, channel in channels.items()
                for direction, messages in (("receive", channel.from_clients), ("send", channel.from_server))
                for kind, payload in messages.items()
            },
            "schemas": {**requests, **ERRORS, **LOGPROBS, **RESPONSES},
        },
    }
    return without_unused(document)


# -- /v1/responses --------------------------------------------------------------------------------------

LANE: Schema = {
    "type": "string",
    "pattern": f"^({LANE_NAME.pattern})$",
    "description": "the lane: a name for one of several conversations on this socket",
}


def _responses(requests: Mapping[str, Schema]) -> Channel:
    lane = {"stream_id": LANE}
    ignored: dict[str, Schema] = {name: {} for name in IGNORED_IN_SOCKET_MODE}
    return Channel(
        "/v1/responses",
        "The Responses WebSocket mode",
        from_clients={
            "response.create": _typed("response.create", requests["CreateResponse"], {**lane, **ignored}),
            "response.cancel": _typed("response.cancel", requests["CancelResponse"], lane),
        },
        from_server={
            **response_events(lane),
            "error": record({"type": one_of("error"), "status": COUNT, "error": ref("Error")}, lane),
        },
    )


# -- how AsyncAPI says it -------------------------------------------------------------------------------


def _typed(kind: str, fields: Schema, more: Mapping[str, Schema]) -> Schema:
    """A message of a type, with the fields of a request."""
    return {
        **fields,
        "properties": {"type": one_of(kind), **fields["properties"], **more},
        "required": ["type", *fields.get("required", ())],
    }


def _channel(name: str, channel: Channel) -> dict[str, Any]:
    messages = {
        f"{direction}.{kind}": {"$ref": f"#/components/messages/{name}.{direction}.{kind}"}
        for direction, messages in (("receive", channel.from_clients), ("send", channel.from_server))
        for kind in messages
    }
    return {
        "address": channel.address,
        "description": channel.description,
        "messages": messages,
        "bindings": {"ws": {"method": "GET"}},
    }


def _operation(name: str, direction: str, messages: Messages) -> dict[str, Any]:
    return {
        "action": direction,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{direction}.{kind}"} for kind in messages],
    }
