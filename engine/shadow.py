"""What the policies that reserve memory would have taken, had they been given the same requests.

Knows: when requests came, how long they and their answers are, blocks and rows as bounds. Does not know: the
real engine's memory or queue, tokens, time; it counts ticks.

Each arm is a simulation: a queue in order of arrival, and memory that is reserved at entry and held to the
end. An answer of n tokens runs for n ticks, the first of which computes the prompt, however long it is. How
long an answer is, is known when the real one has ended; one that entered an arm earlier than the real engine
took it, or got ahead of it, runs on there until then. An answer whose client left before its first token
leaves an arm's queue, too. When the real engine has nothing left, the arms run to their end at once: there
is no tick to wait for.

The simulation moves from event to event: O(log n) for each arrival and each end, O(1) for a tick.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from engine.admission import reserved_blocks
from engine.blocks import BLOCK_SIZE
from engine.config import Admission

MOST_WAITING = 1024
"""Arms are slower than the real engine, so under steady load their queues grow. An arm whose queue is this
long takes no more, and counts what it missed."""


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """One arm: now, and summed up."""

    slots: int
    """Token slots that are reserved."""
    running: int
    waiting: int
    missed: int
    """Requests that it never took, for its queue was full."""
    ticks: int
    """Ticks in which somebody ran."""
    used: int
    """Slots that held computed keys and values, summed over ticks and over all answers whose memory has come
    back. Counted as in `MemoryLedger`: at the end of each tick, when what ended in it is free."""
    allocated: int
    """The same of the slots that were reserved."""

    @property
    def utilisation(self) -> float:
        """Of the slots that were reserved, the share that held keys and values. 1 where none were."""
        return self.used / self.allocated if self.allocated else 1.0


@dataclass(slots=True, eq=False)
class _Answer:
    number: int
    prompt: int
    most_output: int
    length: int | None = None
    """Output tokens; None until the real one has ended."""


class ShadowArms:
    """All arms. Told what the real engine is told, and when it ends an answer.

    Args:
        num_blocks, max_model_len, max_num_seqs: those of the real engine.
    """

    def __init__(self, num_blocks: int, max_model_len: int, max_num_seqs: int) -> None:
        self._arms = {
            policy: _Arm(policy, num_blocks, max_model_len, max_num_seqs)
            for policy in (Admission.STATIC, Admission.RESERVE_MAX, Admission.RESERVE_POW2)
        }
        self._open: dict[str, _Answer] = {}
        self._count = 0

    def arrived(self, sequence_id: str, prompt_tokens: int, max_output_tokens: int) -> None:
        """A sequence was queued. Its id must not be that of another live one."""
        self._count += 1
        answer = _Answer(self._count, prompt_tokens, max_output_tokens)
        self._open[sequence_id] = answer
        for arm in self._arms.values():
            arm.arrived(answer)

    def ended(self, sequence_id: str, output_tokens: int) -> None:
        """A sequence ended in the real engine, for whatever reason, and had so many tokens.

        Raises:
            KeyError: it never arrived, or ended before.
        """
        answer = self._open.pop(sequence_id)
        answer.length = output_tokens
        for arm in self._arms.values():
            arm.ended(answer)

    def tick(self) -> None:
        """The real engine has done a tick; what ended in it has been told."""
        for arm in self._arms.values():
            arm.tick()
        self.rest()

    def rest(self) -> None:
        """To be called when the real engine may have nothing left: if so, the arms run to their end."""
        if not self._open:
            for arm in self._arms.values():
                arm.run_to_the_end()

    def stats(self) -> dict[Admission, ShadowStats]:
        return {policy: arm.stats() for policy, arm in self._arms.items()}


class _Arm:
    """Invariant: every answer that runs and whose length is known stands in `_ends`."""

    def __init__(self, policy: Admission, num_blocks: int, context: int, rows: int) -> None:
        self._policy = policy
        self._context = context
        self._free_blocks = num_blocks
        self._free_rows = rows
        self._now = 0
        self._waiting: OrderedDict[_Answer, None] = OrderedDict()
        self._running: dict[_Answer, int] = {}
        """Answer -> the tick of its entry."""
        self._padding: dict[_Answer, int] = {}
        """The same, of those that ended in a static batch that has not."""
        self._ends: list[tuple[int, int, _Answer]] = []
        """A heap: (the tick after its last one, number, answer)."""
        self._reserved = self._missed = self._ticks = self._used = self._allocated = 0

    def arrived(self, answer: _Answer) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting[answer] = None
        else:
            self._missed += 1

    def ended(self, answer: _Answer) -> None:
        if answer in self._running:
            self._will_end(answer)
        elif not answer.length:
            self._waiting.pop(answer, None)

    def tick(self) -> None:
        self._admit()
        self._advance(1)

    def run_to_the_end(self) -> None:
        """As many ticks as it takes; all lengths must be known."""
        self._admit()
        while self._running:
            self._advance(self._ends[0][0] - self._now)
            self._admit()

    def stats(self) -> ShadowStats:
        return ShadowStats(
            slots=self._reserved * BLOCK_SIZE,
            running=len(self._running),
            waiting=len(self._waiting),
            missed=self._missed,
            ticks=self._ticks,
            used=self._used,
            allocated=self._allocated,
        )

    def _admit(self) -> None:
        if self._policy is Admission.STATIC and self._running:
            return
        while self._waiting and self._free_rows:
            head = next(iter(self._waiting))
            blocks = self._blocks(head)
            if blocks > self._free_blocks:
                return
            del self._waiting[head]
            self._free_rows -= 1
            self._free_blocks -= blocks
            self._reserved += blocks
            self._running[head] = self._now
            if head.length is not None:
                self._will_end(head)

    def _advance(self, ticks: int) -> None:
        """So many ticks pass, and nobody ends in any but the last of them."""
        self._now += ticks
        if self._running:
            self._ticks += ticks
        while self._ends and self._ends[0][0] <= self._now:
            answer = heapq.heappop(self._ends)[2]
            self._padding[answer] = self._running.pop(answer)
        if self._policy is not Admission.STATIC or not self._running:
            for answer, start in self._padding.items():
                self._release(answer, start)
            self._padding.clear()

    def _will_end(self, answer: _Answer) -> None:
        # A tick that computes a prompt for nobody is a tick all the same.
        end = self._running[answer] + max(1, answer.length or 0)
        heapq.heappush(self._ends, (end, answer.number, answer))

    def _release(self, answer: _Answer, start: int) -> None:
        blocks = self._blocks(answer)
        self._free_rows += 1
        self._free_blocks += blocks
        self._reserved -= blocks
        # After its k-th tick, prompt + k - 1 tokens are computed; the last one of all never is.
        counted = self._now - start - 1
        growing = min(counted, max(1, answer.length or 0))
        grown = growing * (growing - 1) // 2 + (counted - growing) * (growing - 1)
        self._used += counted * answer.prompt + grown
        self._allocated += counted * blocks * BLOCK_SIZE

    def _blocks(self, answer: _Answer) -> int:
        return reserved_blocks(self._policy, answer.prompt, answer.most_output, self._context)
