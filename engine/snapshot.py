"""A picture of the engine between two ticks, for people to look at; and one of a single sequence, for whoever
asked for it.

Knows: the scheduler's books. Does not know: who looks, how it is drawn. Pictures hold no token and no text,
and sessions only as short digests: they may be made of somebody's key.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from engine.blocks import BLOCK_SIZE
from engine.request import Sequence
from engine.scheduler import Scheduler

FREE, CACHED, EMPTY, PARTIAL, FULL, SHARED = ".", "c", "-", "+", "#", "s"

LEGEND = {
    FULL: "full",
    SHARED: "full and shared",
    PARTIAL: "partly filled",
    EMPTY: "held for later",
    CACHED: "kept",
    FREE: "free",
}

_SECRET = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class SequencePicture:
    id: str
    """Its beginning, enough to tell it from others. With a whole one, anybody could take the answer up."""
    row: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of the prompt's: were there already when it first entered."""
    computed_tokens: int
    table: tuple[int, ...]
    """Its blocks, in order. Shared ones stand in several tables."""
    session: str
    preemptions: int
    is_padding: bool
    """It has ended, and holds its memory until its static batch has."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    blocks: str
    """A character per block, see `LEGEND`."""
    running: tuple[SequencePicture, ...]
    """In the order of entry."""
    waiting: tuple[tuple[str, int], ...]
    """Sessions and how many of each wait, most first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sequence is that has not ended."""

    queue_position: int | None
    """See `WaitingQueue.position`; None while it runs."""
    prompt_tokens: int
    computed_tokens: int
    """Of the prompt's."""
    cached_tokens: int
    """Of the prompt's: were there already when it first entered."""
    output_tokens: int
    preemptions: int
    admitted: float | None
    first_token: float | None
    """Both by the engine's clock, in seconds; None: not yet."""


def look_at(scheduler: Scheduler, sequence_id: str) -> Progress | None:
    """To be called between two ticks; None: there is no such sequence, or it has ended. Takes time in the
    number of those that wait, if it is one of them."""
    sequence = scheduler.running.get(sequence_id) or scheduler.waiting.find(sequence_id)
    if sequence is None:
        return None
    return Progress(
        queue_position=scheduler.waiting.position(sequence_id) if sequence_id in scheduler.waiting else None,
        prompt_tokens=sequence.num_prompt_tokens,
        computed_tokens=min(sequence.num_computed, sequence.num_prompt_tokens),
        cached_tokens=sequence.num_cached_tokens,
        output_tokens=sequence.num_output_tokens,
        preemptions=sequence.num_preemptions,
        admitted=sequence.admitted,
        first_token=sequence.first_token,
    )


def take_snapshot(scheduler: Scheduler) -> Snapshot:
    """To be called between two ticks. It takes time in the number of blocks, of running sequences and of
    waiting sessions; what it gives can be used anywhere."""
    holders = [*scheduler.running.values(), *scheduler.padding.values()]
    waiting = [(digest(session), count) for session, count in scheduler.waiting.of_sessions().items()]
    return Snapshot(
        blocks=_block_map(scheduler.pool.usage(), holders),
        running=tuple(_picture(each, each.id in scheduler.padding) for each in holders),
        waiting=tuple(sorted(waiting, key=lambda each: -each[1])),
    )


def runs(table: Iterable[int]) -> list[list[int]]:
    """Block numbers as [first, count] of those that follow each other: memory that was free in one piece is
    given in one piece."""
    found: list[list[int]] = []
    next_one = -1
    for block in table:
        if block == next_one:
            found[-1][1] += 1
        else:
            found.append([block, 1])
        next_one = block + 1
    return found


def digest(session: str) -> str:
    """The same for the same session as long as this process lives, and nothing else can be told from it."""
    return hashlib.blake2b(session.encode(), digest_size=4, key=_SECRET).hexdigest()


def short_id(sequence_id: str) -> str:
    """The request's id cut short, and which of its answers this is, if it has several."""
    request, hash_sign, choice = sequence_id.partition("#")
    return request[:8] + hash_sign + choice


def _block_map(usage: list[int], holders: list[Sequence]) -> str:
    """`usage`: as `BlockPool.usage` gives it."""
    by_count = {-1: CACHED, 0: FREE, 1: EMPTY}
    blocks = [by_count.get(count, SHARED) for count in usage]
    for sequence in holders:
        full, rest = divmod(sequence.num_computed, BLOCK_SIZE)
        for block in sequence.blocks[:full]:
            if blocks[block] == EMPTY:
                blocks[block] = FULL
        if rest:
            blocks[sequence.blocks[full]] = PARTIAL
    return "".join(blocks)


def _picture(sequence: Sequence, is_padding: bool) -> SequencePicture:
    return SequencePicture(
        id=short_id(sequence.id),
        row=sequence.row,
        prompt_tokens=sequence.num_prompt_tokens,
        output_tokens=sequence.num_output_tokens,
        cached_tokens=sequence.num_cached_tokens,
        computed_tokens=sequence.num_computed,
        table=tuple(sequence.blocks),
        session=digest(sequence.request.session),
        preemptions=sequence.num_preemptions,
        is_padding=is_padding,
    )
