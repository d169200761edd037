"""Chats and answers: what a user of this package holds in hand.

Knows: iterating, waiting, leaving early. Does not know: sockets, lanes, numbers (the session does).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar, Unpack

from tickwire_client.conversation import Conversation, Message, Settings, Turn, checked
from tickwire_client.errors import SteerRefused, TickwireError
from tickwire_client.events import Event, OutputTextDelta, Response, Stats, Usage
from tickwire_client.session import Call, Session

Reply = TypeVar("Reply")
Tell = Callable[[Reply | TickwireError], None]


class Line(Protocol):
    """What chats and answers need of the client."""

    def session(self) -> Session:
        """To say something with, which is sent as soon as the loop is free.

        Raises:
            ClientClosed: the client is not open.
        """
        ...


class Status(enum.Enum):
    """How an answer ended."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    """It reached a limit, or was steered: `Result.reason` says which."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Result:
    """An answer that has ended."""

    text: str
    status: Status
    reason: str | None
    """Why it is incomplete, such as "max_output_tokens"."""
    id: str | None
    """The server's name of it. None: it was cancelled before it had one."""
    usage: Usage | None


class Chat:
    """A conversation. Its turns are answered one after the other, whenever they are sent; those of other
    chats meanwhile."""

    def __init__(self, line: Line, lane: str, conversation: Conversation) -> None:
        self._line = line
        self._lane = lane
        self._conversation = conversation
        self._warm_up: Answer | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, up to the last answer that has ended. `Client.chat` can go on from them."""
        return tuple(self._conversation.messages)

    def send(self, content: str, **settings: Unpack[Settings]) -> Answer:
        """Ask. `settings` are for this turn alone, and go before those of the chat. The request goes out at
        once, or as soon as the chat's earlier ones are answered.

        Raises:
            ClientClosed: the client is not open.
            TypeError: there is no such setting.
        """
        turn = Turn(self._conversation, content, checked(settings))
        self._stop_warming()
        return self._ask(self._lane, turn)

    async def warm_up(self, draft: str | None = None) -> Usage | None:
        """Have the server compute what is said so far, and the prompt that `draft` would make, beside
        everything else. Returns when that is done: what it took, or None if a turn, or another warming up,
        came before its end. A turn that begins with the same text is then answered sooner.

        Raises:
            TickwireError: as the answer of a turn.
        """
        self._stop_warming()
        turn = Turn(self._conversation, draft, {}, warms_up=True)
        # In a lane of its own: no turn should wait for it.
        self._warm_up = self._ask(f"{self._lane}.warm", turn)
        result = await self._warm_up
        return result.usage if result.status is Status.COMPLETED else None

    def _stop_warming(self) -> None:
        """What is computed stays computed, and what is asked for next will use it."""
        if self._warm_up:
            self._warm_up.cancel()

    def _ask(self, lane: str, turn: Turn) -> Answer:
        call = Call(lane, turn)
        self._line.session().add(call)
        return Answer(self._line, call)


class Answer:
    """An answer as it comes.

    Iterate over it for its text, over `events()` for typed events, await it for its `Result`; all of these
    as often as you like, each from the beginning. Who leaves early (`break`, a cancelled task), and is the
    last one to read, has the answer cancelled.

    All of them raise, when the answer ends badly:
        RequestRefused: the server said no before it began.
        AnswerLost: it broke off; the exception has the text up to there.
        ConnectionFailed: it had not begun, and there is no connection.
    """

    def __init__(self, line: Line, call: Call) -> None:
        self._line = line
        self._call = call
        self._num_readers = 0

    @property
    def text(self) -> str:
        """So far."""
        return self._call.text

    @property
    def id(self) -> str | None:
        """The server's name of it, once it has begun."""
        return self._call.id

    @property
    def has_ended(self) -> bool:
        return self._call.has_ended

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return self._texts()

    async def _texts(self) -> AsyncGenerator[str, None]:
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, OutputTextDelta) and event.delta:
                    yield event.delta

    async def events(self) -> AsyncGenerator[Event, None]:
        """Each exactly once, in order, whatever becomes of the connection."""
        call, number = self._call, 0
        with self._reading() as news:
            while True:
                news.clear()
                while number < len(call.events):
                    number += 1
                    yield call.events[number - 1]
                if call.has_ended:
                    break
                await news.wait()
        if call.error:
            raise call.error

    def __await__(self) -> Generator[object, None, Result]:
        return self.result().__await__()

    async def result(self) -> Result:
        """Waits for the end."""
        call = self._call
        with self._reading() as news:
            while not call.has_ended:
                news.clear()
                await news.wait()
        if call.error:
            raise call.error
        if call.response is None:
            return Result(call.text, Status.CANCELLED, None, call.id, None)
        response = call.response
        return Result(call.text, _status(response), response.reason, call.id, response.usage)

    def cancel(self) -> None:
        """End it at the next token, with the status CANCELLED. One that has ended stays as it is."""
        if not self._call.has_ended:
            self._line.session().cancel(self._call)

    def steer(self, content: str) -> Answer:
        """End it at the next token, and go on from there with a new message; the answer to that is returned.
        If it ends before the server hears of it, the message is simply what is said next.

        Raises:
            SteerRefused: it has ended, was cancelled or was steered before; or was taken up by its id, so
                that there is no chat to go on with.
            ClientClosed: the client is not open.
        """
        call = self._call
        if call.turn is None:
            raise SteerRefused("this answer was taken up by its id: there is no chat to go on with")
        turn = Turn(call.turn.conversation, content, call.turn.settings)
        return Answer(self._line, self._line.session().steer(call, turn))

    async def stats(self) -> Stats:
        """How far it is. Waits until the server has its request.

        Raises:
            RequestRefused: the server does not know it any more.
            Unreachable: there is no connection just now.
            TickwireError: it ended before the server had it.
        """
        call = self._call
        with self._news() as news:
            while call.id is None and not call.has_ended:
                news.clear()
                await news.wait()
        response_id = call.id
        if response_id is None:
            raise call.error or TickwireError("this answer was cancelled before it began")
        return await reply_to(lambda tell: self._line.session().ask_stats(response_id, tell))

    @contextmanager
    def _news(self) -> Iterator[asyncio.Event]:
        news = asyncio.Event()
        self._call.listeners.append(news.set)
        try:
            yield news
        finally:
            self._call.listeners.remove(news.set)

    @contextmanager
    def _reading(self) -> Iterator[asyncio.Event]:
        self._num_readers += 1
        try:
            with self._news() as news:
                yield news
        finally:
            self._num_readers -= 1
            if not self._num_readers:
                self.cancel()


def _status(response: Response) -> Status:
    if response.status in (Status.COMPLETED.value, Status.CANCELLED.value):
        return Status(response.status)
    return Status.INCOMPLETE


async def reply_to(ask: Callable[[Tell[Reply]], None]) -> Reply:
    """Ask, and wait for what is told."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def tell(reply: Reply | TickwireError) -> None:
        if future.done():
            return  # whoever asked has left
        if isinstance(reply, TickwireError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    ask(tell)
    return await future
