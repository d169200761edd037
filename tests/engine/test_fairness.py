"""What the bound on waiting means to somebody beside a flood: counted in ticks, on a whole engine.

Rows are scarce, memory and budget are not. The longest answer has L tokens, so within any L ticks each of the
R rows is given away at least once, and whoever has m requests before it enters within ceil((m + 1) / R) * L.
"""

from itertools import count
from random import Random

import pytest

from engine.engine import Engine
from engine.request import Priority, Request
from engine.sampling import SamplingParams
from tests.fakes import ALPHABET, make_engine

ROWS, TURN_TOKENS = 4, 100
PROMPT, LEAST_OUTPUT, MOST_OUTPUT = 8, 4, 16
LARGEST_COST, LEAST_COST = PROMPT + MOST_OUTPUT, PROMPT + LEAST_OUTPUT
FLOOD = 200


class Beside:
    """An engine with floods of FLOOD requests each, and a visitor who reads each answer for a while and then
    asks again.

    Args:
        as_one: all of them are one session.
    """

    def __init__(
        self,
        floods: int,
        as_one: bool = False,
        flood: Priority = Priority.INTERACTIVE,
        visitor: Priority = Priority.INTERACTIVE,
    ) -> None:
        self.engine: Engine = make_engine(
            num_blocks=100, max_model_len=32, max_num_seqs=ROWS, token_budget=64, turn_tokens=TURN_TOKENS,
            max_queue=2000, max_queue_per_session=2000, prefix_cache=False,
        )[0]  # fmt: skip
        self._rng = Random(floods)
        self._numbers = count()
        self._as_one = as_one
        self._visitor = visitor
        for number in range(FLOOD * floods):
            self._submit(f"flood{number % floods}", flood)

    def waits(self) -> list[int]:
        """Of each of the visitor's requests, as long as others wait, too: how many ticks passed it over."""
        scheduler, waits = self.engine.scheduler, []
        name, passed = self._submit("visitor", self._visitor), 0
        pause = -1  # until its answer is there
        while True:
            self.engine.tick()
            if name in scheduler.waiting:
                passed += 1
                continue
            if pause < 0:
                waits.append(passed)
                pause = self._rng.randint(0, 2 * MOST_OUTPUT)
            if not len(scheduler.waiting):
                return waits
            if name not in scheduler.running:
                pause -= 1
                if pause < 0:
                    name, passed = self._submit("visitor", self._visitor), 0

    def _submit(self, who: str, priority: Priority) -> str:
        prompt = tuple(self._rng.choices(range(1, len(ALPHABET) + 1), k=PROMPT))
        sampling = SamplingParams(max_tokens=self._rng.randint(LEAST_OUTPUT, MOST_OUTPUT))
        name, session = f"{who}-{next(self._numbers)}", "all" if self._as_one else who
        self.engine.submit(Request(name, prompt, sampling, 0.0, session=session, priority=priority))
        return name


def in_ticks(requests_before: int) -> int:
    return -(-(requests_before + 1) // ROWS) * MOST_OUTPUT


@pytest.mark.parametrize("floods", [1, 3])
def test_one_request_at_a_time_waits_for_one_turn_of_each_flood(floods: int) -> None:
    before = (floods * (TURN_TOKENS + LARGEST_COST) - 1) // LEAST_COST
    waits = Beside(floods).waits()
    assert len(waits) > 10
    assert max(waits) <= in_ticks(before)


def test_without_sessions_it_waits_for_the_whole_flood() -> None:
    before = (TURN_TOKENS + LARGEST_COST - 1) // LEAST_COST
    assert Beside(1, as_one=True).waits()[0] > 5 * in_ticks(before)


def test_an_interactive_request_waits_for_at_most_one_of_a_batch_flood() -> None:
    waits = Beside(1, flood=Priority.BATCH).waits()
    assert len(waits) > 10
    assert max(waits) <= in_ticks(1)


def test_a_batch_request_waits_for_at_most_seven_of_an_interactive_flood() -> None:
    waits = Beside(1, visitor=Priority.BATCH).waits()
    assert len(waits) > 10
    assert max(waits) <= in_ticks(7)
