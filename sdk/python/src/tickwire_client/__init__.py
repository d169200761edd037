"""Chats with a Tickwire server over one WebSocket: many at once, typed, and no token lost when the connection
is.

async with Client("http://127.0.0.1:8000") as client:
    chat = client.chat(instructions="Be brief.")
    async for text in chat.send("Hello"):
        print(text, end="")
"""

from tickwire_client.chat import Answer, Chat, Result, Status
from tickwire_client.client import Client
from tickwire_client.conversation import Message, Settings
from tickwire_client.errors import (
    AnswerFailed,
    AnswerInterrupted,
    AnswerLost,
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    ConnectionRefused,
    Overloaded,
    ProtocolViolation,
    RequestRefused,
    ResponseGone,
    SteerRefused,
    TickwireError,
    Unreachable,
)
from tickwire_client.events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    Logprob,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    Response,
    ResponseCompleted,
    ResponseCreated,
    ResponseEnded,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    Stats,
    UnknownEvent,
    Usage,
)
from tickwire_client.reconnect import Reconnect

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerFailed",
    "AnswerInterrupted",
    "AnswerLost",
    "AuthenticationFailed",
    "Chat",
    "Client",
    "ClientClosed",
    "ConnectionFailed",
    "ConnectionRefused",
    "ContentPartAdded",
    "ContentPartDone",
    "Event",
    "Logprob",
    "Message",
    "OutputItemAdded",
    "OutputItemDone",
    "OutputTextDelta",
    "OutputTextDone",
    "Overloaded",
    "ProtocolViolation",
    "Reconnect",
    "RequestRefused",
    "Response",
    "ResponseCompleted",
    "ResponseCreated",
    "ResponseEnded",
    "ResponseEvent",
    "ResponseFailed",
    "ResponseGone",
    "ResponseInProgress",
    "ResponseIncomplete",
    "Result",
    "Settings",
    "Stats",
    "Status",
    "SteerRefused",
    "TickwireError",
    "UnknownEvent",
    "Unreachable",
    "Usage",
]
