"""`tickwire chat`: a conversation in the terminal, over the server's WebSocket.

Knows: the Responses WebSocket mode from a client's side, and the terminal. Does not know: settings, or
anything of the server's inside; any server that speaks this mode will do.

The client is synchronous on purpose: the prompt is Python's own `input`, with line editing, and a
signal interrupts it as everyone expects. The socket library keeps the connection alive in a thread.
"""

from __future__ import annotations

import enum
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

MAX_EVENT_BYTES = 16 * 1024 * 1024
CANCEL_CHECK_S = 0.1
"""How long a Ctrl-C waits at most before the server hears of it."""

_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str) -> str:
    """The text with every control character but newline and tab made visible, so that nothing a model
    or a server says can steer the terminal."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


@dataclass(frozen=True)
class Options:
    """What the command line says. None: the server's own default."""

    url: str
    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    api_key: str | None = None


class Ending(enum.Enum):
    """How an answer ended; the value is what the reader is told about it."""

    COMPLETE = ""
    LENGTH = "the answer reached its length limit"
    STOPPED = "stopped"


class ChatError(Exception):
    """The question was not answered; the message says why, fit to print."""


class _Forgotten(ChatError):
    """The server no longer has the conversation's state; asking again with all of it may work."""


@dataclass
class Conversation:
    """What was said, and the frames that carry it on.

    The server remembers answers by id, so a turn sends only what is new. Where it cannot remember (a
    fresh connection, an answer that was cut off), the turn sends everything.
    """

    options: Options
    messages: list[dict[str, str]] = field(default_factory=list)
    previous_id: str | None = None

    def frame(self, prompt: str) -> dict[str, Any]:
        options = self.options
        optional = {
            "model": options.model,
            "instructions": options.system,
            "temperature": options.temperature,
            "previous_response_id": self.previous_id,
        }
        past = [] if self.previous_id else self.messages
        question = {"role": "user", "content": prompt}
        return {
            "type": "response.create",
            "input": [*past, question],
            **{name: value for name, value in optional.items() if value is not None},
        }

    def record(self, prompt: str, answer: str, response_id: str | None) -> None:
        self.messages.append({"role": "user", "content": prompt})
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        self.previous_id = response_id


@dataclass
class Answer:
    """One answer as it arrives, event by event."""

    id: str | None = None
    text: str = ""
    ending: Ending | None = None
    begun: bool = False

    def take(self, event: dict[str, Any]) -> str:
        """Take one event and return the text that it adds.

        Raises:
            ChatError: the event says that there will be no (more) answer.
        """
        self.begun = True
        kind, response = event.get("type"), event.get("response", {})
        if kind == "response.created":
            self.id = response["id"]
        elif kind == "response.output_text.delta":
            self.text += event["delta"]
            return printable(event["delta"])
        elif kind == "error":
            error = event.get("error") or event
            forgotten = error.get("code") == "previous_response_not_found"
            raise (_Forgotten if forgotten else ChatError)(printable(str(error.get("message"))))
        elif kind == "response.failed":
            raise ChatError(printable(str((response.get("error") or {}).get("message"))))
        elif kind == "response.completed":
            self.ending = Ending.COMPLETE
        elif kind in ("response.incomplete", "response.cancelled"):
            reason = (response.get("incomplete_details") or {}).get("reason")
            self.ending = Ending.LENGTH if reason == "max_output_tokens" else Ending.STOPPED
        return ""


class Client:
    """One conversation with one server. Connects when it must, and again when the connection was lost
    between two questions.

    Raises:
        ChatError: the address is no address of a server.
    """

    def __init__(self, options: Options) -> None:
        self.conversation = Conversation(options)
        self._url = socket_url(options.url)
        self._headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        self._connection: ClientConnection | None = None
        self._resources = ExitStack()

    def connect(self) -> ClientConnection:
        """The open connection. Raises ChatError when there is no server to be reached."""
        if self._connection is None:
            self._connection = self._resources.enter_context(_open(self._url, self._headers))
            self.conversation.previous_id = None
        return self._connection

    def close(self) -> None:
        self._connection = None
        self._resources.close()

    def ask(self, prompt: str, show: Callable[[str], None]) -> Ending:
        """Ask, and call `show` with each piece of the answer as it comes. While it comes, Ctrl-C stops
        the answer; a second one raises KeyboardInterrupt.

        Raises:
            ChatError: there is no answer; the conversation stays as it was before the question.
        """
        try:
            return self._exchange(prompt, show)
        except _Forgotten:
            return self._exchange(prompt, show)

    def _exchange(self, prompt: str, show: Callable[[str], None]) -> Ending:
        idle = self._connection is not None
        connection = self.connect()
        answer = Answer()
        try:
            ending = _receive(connection, self.conversation.frame(prompt), answer, show)
        except ConnectionClosed as error:
            self.close()
            # A server may close an idle connection, and the next question is the first to notice.
            lost = _Forgotten if idle and not answer.begun else ChatError
            raise lost(f"the connection was lost: {_close_reason(error)}") from error
        except _Forgotten:
            self.conversation.previous_id = None
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.close()
            raise ChatError(f"the server sent something that is no event: {error!r}") from error
        # Whether a stopped answer can be built on is the server's affair; sending everything always works.
        self.conversation.record(prompt, answer.text, None if ending is Ending.STOPPED else answer.id)
        return ending


def _receive(
    connection: ClientConnection, frame: dict[str, Any], answer: Answer, show: Callable[[str], None]
) -> Ending:
    connection.send(json.dumps(frame))
    with _interrupts() as stop_wanted:
        while answer.ending is None:
            if stop_wanted and answer.id:
                connection.send(json.dumps({"type": "response.cancel", "response_id": answer.id}))
                stop_wanted.clear()
            with suppress(TimeoutError):
                text = answer.take(json.loads(connection.recv(timeout=CANCEL_CHECK_S)))
                if text:
                    show(text)
    return answer.ending


@contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """Within it the first Ctrl-C puts a mark into the list, so that no socket call is torn apart; the
    next one interrupts as always."""
    marks: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        marks.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield marks
    finally:
        signal.signal(signal.SIGINT, before)


def socket_url(url: str) -> str:
    """The socket's address; the page's address will do as well (http://127.0.0.1:8000).

    Raises:
        ChatError: it is neither.
    """
    try:
        parts = urlsplit(url)
        usable = parts.hostname is not None and parts.port != 0
    except ValueError:
        usable = False
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme) if usable else ""
    if scheme not in ("ws", "wss"):
        raise ChatError(f"--url: got {url!r}, allowed: an address like ws://127.0.0.1:8000/v1/responses")
    path = "/v1/responses" if parts.path in ("", "/") else parts.path
    return parts._replace(scheme=scheme, path=path).geturl()


def _open(url: str, headers: dict[str, str]) -> ClientConnection:
    # A proxy for the outer world cannot reach this machine's own addresses.
    proxy: Literal[True] | None = (
        None if urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost") else True
    )
    try:
        return connect(
            url, additional_headers=headers, max_size=MAX_EVENT_BYTES, compression=None, proxy=proxy
        )
    except InvalidURI as error:
        raise ChatError(f"--url: {error}") from error
    except InvalidStatus as error:
        status = error.response.status_code
        raise ChatError(f"the server at {url} refuses the connection: HTTP status {status}") from error
    except (InvalidHandshake, EOFError) as error:
        raise ChatError(f"what listens at {url} is no chat server: {error}") from error
    except OSError as error:
        raise ChatError(f"no server at {url} ({error}); start one with: tickwire serve") from error


def _close_reason(error: ConnectionClosed) -> str:
    if error.rcvd is None:
        return "the server is gone"
    return f"the server closed it with code {error.rcvd.code} {printable(error.rcvd.reason)}".rstrip()


def chat(options: Options, prompt: str | None) -> int:
    """Ask `prompt`, or what is piped in, and return 0 (answered), 1 (not answered) or 130 (stopped).
    With neither of them, converse until the end of input, and return 0."""
    # Text that the terminal's encoding lacks must not end the chat.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with closing(Client(options)) as client:
            if prompt is None and sys.stdin.isatty():
                return _converse(client)
            return _ask_once(client, sys.stdin.read() if prompt is None else prompt)
    except ChatError as error:
        _remark(str(error))
    except UnicodeDecodeError as error:
        _remark(f"the prompt is not valid {error.encoding}: {error.reason} at byte {error.start}")
    return 1


def _ask_once(client: Client, prompt: str) -> int:
    if not prompt.strip():
        raise ChatError("the prompt is empty")
    ending = client.ask(prompt, _show)
    print()
    if ending is not Ending.COMPLETE:
        _remark(ending.value)
    return 130 if ending is Ending.STOPPED else 0


def _converse(client: Client) -> int:
    client.connect()
    with suppress(ImportError):
        import readline  # noqa: F401  (gives `input` line editing and a history)
    print("Ctrl-C stops an answer, Ctrl-D leaves.")
    while True:
        try:
            prompt = input("\n> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not prompt.strip():
            continue
        try:
            ending = client.ask(prompt, _show)
        except ChatError as error:
            _remark(str(error))
            continue
        print()
        if ending is not Ending.COMPLETE:
            _remark(ending.value)


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _remark(text: str) -> None:
    print(f"tickwire: {text}", file=sys.stderr, flush=True)
