"""The client: one socket, kept open by a task of its own.

Knows: URLs, the handshake, when to connect again, the tasks of a connection. Does not know: what messages
mean (the session does), what users do with answers (`chat.py`).

There is a connection whenever something needs one. It is not made anew just to be there: one that is lost
while nothing runs comes back with the next request.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl as tls
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, Unpack
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidStatus

from tickwire_client.chat import Answer, Chat, reply_to
from tickwire_client.conversation import Conversation, Message, Settings, checked
from tickwire_client.errors import (
    ClientClosed,
    ConnectionFailed,
    ProtocolViolation,
    TickwireError,
    Unreachable,
    closed,
    handshake,
)
from tickwire_client.reconnect import Reconnect
from tickwire_client.session import Call, Gap, Session, State

log = logging.getLogger("tickwire_client")

PATH = "/v1/responses"
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The last events of an answer with log probabilities repeat all of them."""
NO_CLOSE_FRAME = 1006
FAREWELL_S = 2.0
"""How long a client that closes waits for its answers to be cancelled, and for the closing handshake."""


class Client:
    """An async context manager.

    Args:
        url: the server's, such as "http://127.0.0.1:8000", with or without the path of the API.
        api_key: sent as `Authorization: Bearer KEY`.
        reconnect: when to try again.
        ping_interval: seconds. A connection on which nothing comes for about three times as long is dead.
        open_timeout: seconds that connecting may take.
        ssl: for https; not given: the system's certificates.

    Raises:
        ValueError: `url` is none.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        reconnect: Reconnect | None = None,
        ping_interval: float = 10.0,
        open_timeout: float = 10.0,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self.url = socket_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._reconnect = reconnect or Reconnect()
        self._ping_interval = ping_interval
        self._open_timeout = open_timeout
        self._ssl = ssl
        self._session = Session()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        """Set when a message may wait to be sent."""
        self._received = asyncio.Event()
        self._lanes = itertools.count(1)

    # -- what users do ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Self:
        """What entering it does; `close` is what leaving it does.

        Raises:
            ConnectionFailed: the server cannot be reached, or says no. That is tried once.
            RuntimeError: it was opened before.
        """
        if self._task is not None:
            raise RuntimeError("a client is opened once")
        connection = await self._connect()
        self._task = asyncio.create_task(self._run(connection))
        return self

    async def close(self) -> None:
        """Cancels what runs, and leaves. The server is waited for, but not for long."""
        task = self._task
        if task is None or task.done():
            return
        for call in self._session.calls:
            self._session.cancel(call)
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self._session.is_connected and self._session.has_work:
                    self._received.clear()
                    await self._received.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def chat(self, *, messages: Iterable[Message] = (), **settings: Unpack[Settings]) -> Chat:
        """A new conversation. `messages` are what was said before.

        Raises:
            TypeError: there is no such setting.
        """
        conversation = Conversation(checked(settings), messages)
        return Chat(self, f"chat-{next(self._lanes)}", conversation)

    def resume(self, response_id: str) -> Answer:
        """Take up a response that is known by its id, from its beginning: one of an earlier process, say.

        Raises:
            ClientClosed: the client is not open.
        """
        call = Call(f"resume-{next(self._lanes)}", None, State.LOST, response_id)
        self.session().add(call)
        return Answer(self, call)

    async def ping(self) -> float:
        """The round trip time in seconds.

        Raises:
            ConnectionFailed: there is no connection just now, or the client is not open.
        """
        return await reply_to(lambda tell: self.session().ask_time(time.monotonic(), tell))

    def session(self) -> Session:
        """For chats and answers; see `chat.Line`."""
        if self._task is None or self._task.done():
            raise ClientClosed("the client is not open: use it inside of `async with Client(...)`")
        self._wanted.set()
        return self._session

    # -- the connection ---------------------------------------------------------------------------------

    async def _run(self, connection: ClientConnection) -> None:
        """Until it is cancelled. Whatever ends it, nobody is left waiting."""
        try:
            delays = self._reconnect.delays()
            while True:
                num_taken = self._session.num_taken
                error = await self._use(connection)
                if self._session.num_taken > num_taken:
                    delays = self._reconnect.delays()
                connection, delays = await self._next(error, delays)
        finally:
            self._session.fail(ClientClosed("the client was closed"))

    async def _next(
        self, error: TickwireError, delays: Iterator[float]
    ) -> tuple[ClientConnection, Iterator[float]]:
        """Another connection, once one is needed and can be had; and the delays that are left."""
        while True:
            delay = next(delays, None) if isinstance(error, Unreachable) else None
            if delay is None:
                self._session.fail(error)
                delays = self._reconnect.delays()
            else:
                log.info("%s; %.2f s until the next attempt", error, delay)
                await asyncio.sleep(delay)
            while not self._session.has_work:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                return await self._connect(), delays
            except ConnectionFailed as failed:
                error = failed

    async def _connect(self) -> ClientConnection:
        """Raises ConnectionFailed."""
        # A proxy for the outer world cannot reach this machine's own addresses.
        is_here = urlsplit(self.url).hostname in ("127.0.0.1", "::1", "localhost")
        proxy: Literal[True] | None = None if is_here else True
        try:
            return await connect(
                self.url,
                additional_headers=self._headers,
                user_agent_header="tickwire-client",
                compression=None,
                max_size=MAX_EVENT_BYTES,
                ping_interval=None,  # pings are messages here: they show that the server still serves
                open_timeout=self._open_timeout,
                close_timeout=FAREWELL_S,
                proxy=proxy,
                ssl=self._ssl,
            )
        except InvalidStatus as error:
            body = (error.response.body or b"").decode(errors="replace")
            raise handshake(error.response.status_code, body or error.response.reason_phrase) from error
        except (OSError, EOFError, InvalidHandshake, InvalidProxy) as error:
            raise Unreachable(f"no server at {self.url}: {error or type(error).__name__}") from error

    async def _use(self, connection: ClientConnection) -> TickwireError:
        """Until its end, which is returned."""
        self._session.connected()
        self._wanted.set()
        helpers = [asyncio.create_task(self._write(connection)), asyncio.create_task(self._beat(connection))]
        try:
            while True:
                self._session.receive(await connection.recv(), time.monotonic())
                self._received.set()
                self._wanted.set()
        except ConnectionClosed as error:
            # Whoever closed it: a violation of the WebSocket protocol is found by this side.
            close = error.rcvd or error.sent
            return closed(close.code, close.reason) if close else closed(NO_CLOSE_FRAME, "")
        except Gap as error:
            connection.transport.abort()
            return Unreachable(str(error))
        except ProtocolViolation as error:
            await connection.close(1002, "it makes no sense to the client")
            return error
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await connection.close()
            self._session.lost()
            self._received.set()

    async def _write(self, connection: ClientConnection) -> None:
        with suppress(ConnectionClosed):  # whoever reads is told as well
            while True:
                self._wanted.clear()
                for frame in self._session.outgoing():
                    await connection.send(frame)
                await self._wanted.wait()

    async def _beat(self, connection: ClientConnection) -> None:
        while True:
            await asyncio.sleep(self._ping_interval)
            if not self._session.beat():
                log.info("the server answers no pings")
                connection.transport.abort()
                return
            self._wanted.set()


def socket_url(url: str) -> str:
    """The socket's address, from that of the server, of its API, or of the socket.

    Raises:
        ValueError: it is none of them.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname or parts.port == 0:
        raise ValueError(f"url: got {url!r}, allowed: an address like http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    path = path if path.endswith(PATH) else path.removesuffix("/v1") + PATH
    return parts._replace(scheme=scheme, path=path).geturl()
