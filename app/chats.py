"""Chats of pages made with the AI SDK, and the answers that belong to them.

Knows: how a turn becomes a running answer, in which order, and where a chat's latest answer is found. Does
not know: sockets, what frames look like.

An answer belongs to its chat, not to the connection that asked for it: when that breaks, the answer goes on,
unless the request says otherwise, for the SDK's clients count on finding it when they come back. They ask for
"this chat's answer" and have no name for it, so only the latest can be taken up.

A user who sends again while an answer runs has no more use for that answer: it is cancelled, unless somebody
reads it over another connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple
from weakref import WeakValueDictionary

from app.caller import Caller
from app.protocol.errors import ApiError
from app.protocol.ui_chat import ChatChunks, Turn
from app.service import Service
from app.settings import Settings
from app.shelf import Kept, OnDisconnect, Shelf

KEPT_ANSWERS = 10_000
KEPT_BYTES = 64 * 1024 * 1024
"""What the ended answers of all chats may take, for the grace time."""
MAX_UNATTENDED = 64
"""Answers about to begin whose clients have gone."""

KeptChat = Kept[ChatChunks]


class Begun(NamedTuple):
    """An answer that runs, and its first reader, who has to close this in the end."""

    kept: KeptChat
    reading: ExitStack


Beginning = asyncio.Task[Begun]


class Chats:
    """The chats of all callers. A caller is an API key; those without one share theirs, and whoever knows the
    id of a chat may read it."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.shelf: Shelf[ChatChunks] = Shelf(
            service.bridge.cut, settings.resume_grace_s, KEPT_ANSWERS, KEPT_BYTES
        )
        self._latest: WeakValueDictionary[tuple[str, str], ChatChunks] = WeakValueDictionary()
        """Owner and chat -> its latest answer, for as long as the shelf or a reader has it."""
        self._beginning: defaultdict[tuple[str, str], set[Beginning]] = defaultdict(set)
        """Owner and chat -> its answers that are about to begin; each waits for those before."""
        self._unattended: set[Beginning] = set()

    def begin(
        self, turn: Turn, caller: Caller, arrival: float, own_readers: Callable[[KeptChat], int]
    ) -> Beginning:
        """A chat's next answer. The task outlives whoever waits for it, who has to `leave` it then, or to
        cancel it.

        `own_readers` says how many of an answer's readers are on this connection. The task raises ApiError as
        `Service.start`, or if there is no such model.
        """
        chat = caller.key, turn.request.id
        tasks = self._beginning[chat]
        task = asyncio.create_task(self._begin(turn, caller, arrival, own_readers, set(tasks)))
        tasks.add(task)

        def forget(task: Beginning) -> None:
            tasks.discard(task)
            if not tasks:
                del self._beginning[chat]

        task.add_done_callback(forget)
        return task

    async def _begin(
        self,
        turn: Turn,
        caller: Caller,
        arrival: float,
        own_readers: Callable[[KeptChat], int],
        before: set[Beginning],
    ) -> Begun:
        if before:
            await asyncio.wait(before)
        service, request, fields = self.service, turn.request, turn.fields
        service.check_model(fields.model)
        prompt = service.chat(turn.conversation, "messages", continue_final_message=turn.goes_on)
        answer = await service.start(prompt, fields, caller, arrival=arrival)
        # Only now: had this one been refused, the earlier one would have been ended for nothing.
        replaced = self._find(caller.key, request.id)
        if replaced is not None and replaced.num_readers == own_readers(replaced):
            service.bridge.cancel(replaced.answer)
        view = ChatChunks(answer, request.continued, service.model.name)
        kept = Kept(view, caller.key, _on_disconnect(turn))
        self.shelf.add(kept)
        self._latest[caller.key, request.id] = view
        with ExitStack() as reading:
            reading.enter_context(self.shelf.reading(kept))
            return Begun(kept, reading.pop_all())

    def leave(self, beginning: Beginning, turn: Turn) -> None:
        """Its client has gone: what is to become of a running answer then becomes of this one too."""
        if _on_disconnect(turn) is OnDisconnect.CANCEL or len(self._unattended) >= MAX_UNATTENDED:
            beginning.cancel()
        self._unattended.add(beginning)
        beginning.add_done_callback(self._left)

    def _left(self, beginning: Beginning) -> None:
        self._unattended.discard(beginning)
        # If it was refused, there is nothing to take up, and that is what whoever comes back is told.
        if answer := outcome_of(beginning):
            answer.reading.close()

    async def latest(self, chat_id: str, caller: Caller) -> KeptChat | None:
        """A chat's latest answer, if it can be taken up; one that is about to begin is waited for."""
        while beginning := self._beginning.get((caller.key, chat_id)):
            await asyncio.wait(beginning)
        return self._find(caller.key, chat_id)

    def _find(self, owner: str, chat_id: str) -> KeptChat | None:
        view = self._latest.get((owner, chat_id))
        try:
            return None if view is None else self.shelf.find(view.id, owner)
        except ApiError:
            return None


def outcome_of(beginning: Beginning) -> Begun | None:
    """What came of it, if it did begin."""
    if not beginning.done() or beginning.cancelled() or beginning.exception():
        return None
    return beginning.result()


def _on_disconnect(turn: Turn) -> OnDisconnect:
    return OnDisconnect(turn.fields.on_disconnect or OnDisconnect.CONTINUE)
