"""What can go wrong, as one tree.

Knows: the exceptions, and which error object or close code becomes which. Does not know: sockets, lanes.

    TickwireError
    |-- ConnectionFailed          there is no connection, and none will come by itself
    |   |-- Unreachable           nobody there, or not in time; later it may work
    |   |-- AuthenticationFailed  no API key, or a wrong one
    |   |-- ConnectionRefused     the server's HTTP answer was no, or a close code that says: do not come back
    |   `-- ClientClosed          the client was closed
    |-- RequestRefused            the server said no before an answer began
    |   `-- Overloaded            too much to do (429, 503); `retry_after` may say when to ask again
    |-- AnswerLost                an answer had begun and did not end well; `partial` is what there was of it
    |   |-- AnswerFailed          the server could not go on with it
    |   |-- ResponseGone          after a break of the connection it could not be taken up any more
    |   `-- AnswerInterrupted     the connection is gone for good; `__cause__` says why
    |-- SteerRefused              this answer cannot be steered
    `-- ProtocolViolation         the server sent something that makes no sense
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})
UNAUTHENTICATED = frozenset({4401, 4408})


class TickwireError(Exception):
    """The root of the tree."""


class ConnectionFailed(TickwireError):
    """There is no connection, and none will come by itself. The next request tries anew."""


class Unreachable(ConnectionFailed):
    """Nobody there, or not in time."""


class AuthenticationFailed(ConnectionFailed):
    """No API key, or a wrong one."""


class ConnectionRefused(ConnectionFailed):
    """
    Attributes:
        code: the close code (1000 and above) or the HTTP status.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ClientClosed(ConnectionFailed):
    """The client is not open: not yet, or not any more."""


class RequestRefused(TickwireError):
    """The server said no before an answer began.

    Attributes:
        status: the HTTP status that it would be.
        code: for programs, such as "out_of_range".
        param: the field at fault, if one is.
    """

    def __init__(self, message: str, status: int, code: str | None, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class Overloaded(RequestRefused):
    """
    Attributes:
        retry_after: seconds after which it is worth another try, if that is known.
    """

    def __init__(
        self, message: str, status: int, code: str | None, param: str | None, retry_after: float | None
    ) -> None:
        super().__init__(message, status, code, param)
        self.retry_after = retry_after


class AnswerLost(TickwireError):
    """
    Attributes:
        partial: the text up to the loss.
        response_id: the server's name of the answer.
    """

    def __init__(self, message: str, partial: str, response_id: str | None) -> None:
        super().__init__(message)
        self.partial = partial
        self.response_id = response_id


class AnswerFailed(AnswerLost):
    """
    Attributes:
        code: for programs, such as "server_error".
    """

    def __init__(self, message: str, partial: str, response_id: str | None, code: str | None) -> None:
        super().__init__(message, partial, response_id)
        self.code = code


class ResponseGone(AnswerLost):
    """After a break of the connection the answer could not be taken up any more."""


class AnswerInterrupted(AnswerLost):
    """The connection is gone for good; `__cause__` is the ConnectionFailed that says why."""


class SteerRefused(TickwireError):
    """This answer cannot be steered."""


class ProtocolViolation(TickwireError):
    """The server sent something that makes no sense."""


def refusal(event: Mapping[str, Any]) -> RequestRefused:
    """An `error` event as an exception.

    Raises:
        ProtocolViolation: it is none.
    """
    error = event.get("error")
    if not isinstance(error, Mapping):
        raise ProtocolViolation(f"got an error event with error={error!r}, expected an object")
    status = event.get("status")
    status = status if isinstance(status, int) else 500
    message, code, param = str(error.get("message")), error.get("code"), error.get("param")
    if status in (429, 503):
        return Overloaded(message, status, code, param, error.get("retry_after"))
    return RequestRefused(message, status, code, param)


def closed(code: int, reason: str) -> ConnectionFailed:
    """A close code as an exception: Unreachable if the client should come back."""
    told = f"the connection was closed with code {code}" + (f": {reason}" if reason else "")
    if code in UNAUTHENTICATED:
        return AuthenticationFailed(told)
    if code in FINAL_CLOSE_CODES or code >= 4000:
        return ConnectionRefused(told, code)
    return Unreachable(told)


def handshake(status: int, reason: str) -> ConnectionFailed:
    """The HTTP status of a handshake that was refused, as an exception."""
    told = f"the server answered the handshake with HTTP {status}: {reason}"
    if status == 401:
        return AuthenticationFailed(told)
    if status == 429 or status >= 500:
        return Unreachable(told)
    return ConnectionRefused(told, status)
