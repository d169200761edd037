"""Responses that can be taken up again: running ones, and ended ones for as long as there is room.

Knows: owners, readers, what becomes of a response that nobody reads, the bounds of memory. Does not know:
sockets, formats, how an answer is computed. Everything happens on the loop.

A running response is always here. When its last reader has gone, it is cancelled at once, or goes on for a
grace time, or for ever, as it was asked for. An ended one stays if it is to be stored; another stays while it
has readers, and for the grace time if it was to go on. Of all ended ones the least recently used give way
when there are too many.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Generic, Protocol, TypeVar

from app.protocol.errors import response_gone, response_not_found
from app.store import MESSAGE_OVERHEAD, Conversation
from app.streams import Answer, Cut

REMEMBERED_GONE = 10_000
"""Responses of which nothing is known any more but that they existed."""

RESPONSE_OVERHEAD = 6_000
"""Bytes that an ended response takes beside all that grows with what was said: its answer, its request, its
place here."""


class OnDisconnect(enum.Enum):
    """What becomes of a running response when its last reader has gone."""

    CANCEL = "cancel"
    """It ends within a tick."""
    CONTINUE = "continue"
    """It goes on, and can be taken up, for the grace time; then it ends."""


class View(Protocol):
    """How an API shows a response."""

    @property
    def id(self) -> str:
        """On the wire. Unguessable: under no API key, whoever knows it may read."""
        ...

    @property
    def answer(self) -> Answer: ...


AnyView = TypeVar("AnyView", bound=View)


@dataclass(eq=False, slots=True)
class Kept(Generic[AnyView]):
    """A response and who may read it, for how long."""

    view: AnyView
    owner: str
    """`Caller.key` of whoever asked for it."""
    on_disconnect: OnDisconnect
    stored: bool = False
    """To be kept after its end."""
    background: bool = False
    """It needs no reader at all."""
    conversation: Conversation = ()
    """All messages up to the answer that a next turn inherits."""
    extra_size: int = 0
    """Bytes that the view keeps for good beside these messages and the answer's log."""
    num_readers: int = field(init=False, default=0)
    timer: asyncio.TimerHandle | None = field(init=False, default=None)
    size: int = field(init=False, default=0)

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def answer(self) -> Answer:
        return self.view.answer


class Shelf(Generic[AnyView]):
    """
    Args:
        cut: ends a running answer within a tick.
        grace: seconds.
        max_count: ended responses kept.
        max_bytes: what they may take, about.
        rest: called with the view of an ended response that nobody reads at the moment: it lets go of what it
            can make again.
    """

    def __init__(
        self,
        cut: Callable[[Answer, Cut], None],
        grace: float,
        max_count: int,
        max_bytes: int,
        rest: Callable[[AnyView], None] = lambda view: None,
    ) -> None:
        self._cut = cut
        self._grace = grace
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._rest = rest
        self._by_id: dict[str, Kept[AnyView]] = {}
        self._ended: OrderedDict[str, Kept[AnyView]] = OrderedDict()
        """The least recently used first."""
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Id -> its owner, and why it is not here any more."""
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, kept: Kept[AnyView]) -> None:
        """A response has begun. Unless it needs no reader, whoever adds it reads it before anything else
        happens on the loop."""
        self._by_id[kept.id] = kept
        if kept.answer.has_ended:
            self._keep(kept)
            if kept.background:  # else the reader to come decides the rest
                self._decide(kept)
            return
        for stream in kept.answer.streams:
            stream.on_end(lambda: self._on_end(kept))

    def find(self, response_id: str, owner: str, param: str = "response_id") -> Kept[AnyView]:
        """
        Raises:
            ApiError: 404, there is none of this owner; 410, it was here once. `param` is the client's name
                for the id.
        """
        kept = self._by_id.get(response_id)
        if kept is not None and kept.owner == owner:
            if response_id in self._ended:
                self._ended.move_to_end(response_id)
            return kept
        gone_owner, why = self._gone.get(response_id, (None, ""))
        if gone_owner == owner:
            raise response_gone(response_id, why, param)
        raise response_not_found(response_id, param)

    @contextmanager
    def reading(self, kept: Kept[AnyView]) -> Iterator[None]:
        """Around all that one reader does with a response."""
        kept.num_readers += 1
        self._stop_timer(kept)
        try:
            yield
        finally:
            kept.num_readers -= 1
            self._decide(kept)

    def discard(self, kept: Kept[AnyView], why: str = "it was deleted") -> None:
        """Forget a response; one that runs is cancelled."""
        self._stop_timer(kept)
        if self._by_id.pop(kept.id, None) is None:
            return
        if self._ended.pop(kept.id, None) is not None:
            self.num_bytes -= kept.size
        self._gone[kept.id] = kept.owner, why
        if len(self._gone) > REMEMBERED_GONE:
            self._gone.popitem(last=False)
        if not kept.answer.has_ended:
            self._cut(kept.answer, Cut.CANCELLED)

    # -- what becomes of a response ---------------------------------------------------------------------

    def _on_end(self, kept: Kept[AnyView]) -> None:
        if kept.answer.has_ended and kept.id in self._by_id:
            self._keep(kept)
            self._decide(kept)

    def _keep(self, kept: Kept[AnyView]) -> None:
        """It has ended. From now on it counts."""
        for stream in kept.answer.streams:
            stream.compact()
        kept.size = _size(kept)
        if kept.size > self._max_bytes:
            self.discard(kept, "it was too large to be kept")
            return
        self._ended[kept.id] = kept
        self.num_bytes += kept.size
        while len(self._ended) > self._max_count or self.num_bytes > self._max_bytes:
            self.discard(next(iter(self._ended.values())), "its place was needed for newer ones")

    def _decide(self, kept: Kept[AnyView]) -> None:
        """After its end, and after a reader has left."""
        self._stop_timer(kept)
        if kept.num_readers:
            return
        has_ended = kept.answer.has_ended
        if has_ended:
            self._rest(kept.view)
        stays = kept.stored if has_ended else kept.background
        if stays or kept.id not in self._by_id:
            return
        if kept.on_disconnect is OnDisconnect.CONTINUE:
            loop = asyncio.get_running_loop()
            kept.timer = loop.call_later(self._grace, self._give_up, kept)
        else:
            self._give_up(kept)

    def _give_up(self, kept: Kept[AnyView]) -> None:
        if kept.answer.has_ended:
            self.discard(kept, "it ended, was not stored, and nobody took it up in time")
        elif kept.on_disconnect is OnDisconnect.CONTINUE:
            self._cut(kept.answer, Cut.ABANDONED)
        else:
            self._cut(kept.answer, Cut.CANCELLED)

    @staticmethod
    def _stop_timer(kept: Kept[AnyView]) -> None:
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None


def _size(kept: Kept[AnyView]) -> int:
    messages = sum(getsizeof(message["content"]) + MESSAGE_OVERHEAD for message in kept.conversation)
    logs = sum(stream.size for stream in kept.answer.streams)
    return RESPONSE_OVERHEAD + kept.extra_size + messages + logs
