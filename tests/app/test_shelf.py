"""The shelf: who may read a response, what becomes of one that nobody reads, and how many are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from app.protocol.errors import ApiError
from app.shelf import REMEMBERED_GONE, Kept, OnDisconnect, Shelf
from app.streams import Answer, Cut
from engine.request import FinishedEvent, FinishReason, Timings

GRACE = 60.0
CANCEL, CONTINUE = OnDisconnect.CANCEL, OnDisconnect.CONTINUE


@dataclass(eq=False)
class View:
    id: str
    answer: Answer
    rests: int = 0


def finish(answer: Answer, text: str = "x") -> None:
    for stream in answer.streams:
        if stream.end is None:
            stream.append(text)
            timings = Timings(0.0, 0.1, 0.2, 0.3)
            reason = FinishReason.ABORT if answer.cut else FinishReason.STOP
            stream.finish(FinishedEvent("", stream.choice, reason, None, None, 3, 0, 2, 0, timings))


class Clock:
    """The loop's time, in a test's hands."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = 1000.0
        loop.time = lambda: self.now  # type: ignore[method-assign]

    async def pass_(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


@dataclass
class Setting:
    max_count: int = 10
    max_bytes: int = 1_000_000
    grace: float = GRACE
    cuts: list[tuple[str, Cut]] = field(default_factory=list)
    shelf: Shelf[View] = field(init=False)

    def __post_init__(self) -> None:
        self.shelf = Shelf(self._cut, self.grace, self.max_count, self.max_bytes, self._rest)

    def _cut(self, answer: Answer, why: Cut) -> None:
        answer.cut = answer.cut or why
        self.cuts.append((answer.request_id, why))

    def _rest(self, view: View) -> None:
        view.rests += 1

    def add(
        self,
        name: str,
        on_disconnect: OnDisconnect = CANCEL,
        *,
        owner: str = "me",
        stored: bool = False,
        background: bool = False,
        text: str = "",
        n: int = 1,
    ) -> Kept[View]:
        view = View(f"resp_{name}", Answer(name, 0.0, 1, n))
        conversation = ({"role": "user", "content": text},)
        kept = Kept(view, owner, on_disconnect, stored, background, conversation)
        self.shelf.add(kept)
        return kept

    def status(self, name: str, owner: str = "me") -> int:
        """As an HTTP status: 200, 404 or 410."""
        try:
            self.shelf.find(f"resp_{name}", owner)
        except ApiError as error:
            return error.status
        return 200


@pytest.fixture
async def clock() -> Clock:
    return Clock(asyncio.get_running_loop())


# -- owners ----------------------------------------------------------------------------------------------


def test_only_the_owner_finds_a_response_and_learns_that_it_is_gone() -> None:
    here = Setting()
    kept = here.add("a", owner="me", stored=True)
    assert here.shelf.find("resp_a", "me") is kept
    assert [here.status("a", owner) for owner in ("me", "you", "")] == [200, 404, 404]
    here.shelf.discard(kept)
    assert [here.status("a", owner) for owner in ("me", "you", "")] == [410, 404, 404]
    assert here.status("never") == 404
    with pytest.raises(ApiError, match=r"previous_response_id: .* it was deleted") as caught:
        here.shelf.find("resp_a", "me", "previous_response_id")
    assert caught.value.param == "previous_response_id"


def test_under_no_key_the_id_is_enough() -> None:
    here = Setting()
    here.add("a", owner="", stored=True)
    assert [here.status("a", owner) for owner in ("", "you")] == [200, 404]


# -- a response that nobody reads ------------------------------------------------------------------------


async def test_the_last_reader_to_leave_ends_an_answer_at_once(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a")
    with here.shelf.reading(kept):
        with here.shelf.reading(kept):
            pass
        assert here.cuts == []
    assert here.cuts == [("a", Cut.CANCELLED)]
    finish(kept.answer)
    assert here.status("a") == 410


async def test_one_that_is_to_go_on_does_so_for_the_grace_time(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", CONTINUE)
    with here.shelf.reading(kept):
        await clock.pass_(10 * GRACE)
    await clock.pass_(GRACE - 1)
    assert here.cuts == []
    with here.shelf.reading(kept):
        await clock.pass_(10 * GRACE)
        assert here.cuts == []
    await clock.pass_(GRACE - 1)
    assert here.cuts == []
    await clock.pass_(1)
    assert here.cuts == [("a", Cut.ABANDONED)]
    finish(kept.answer)
    assert here.status("a") == 200
    await clock.pass_(GRACE)
    assert here.status("a") == 410
    assert len(here.shelf) == here.shelf.num_bytes == 0


async def test_one_that_ends_alone_can_be_taken_up_for_the_grace_time(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", CONTINUE)
    with here.shelf.reading(kept):
        pass
    await clock.pass_(GRACE - 1)
    finish(kept.answer)
    await clock.pass_(GRACE - 1)
    with here.shelf.reading(here.shelf.find("resp_a", "me")):
        await clock.pass_(10 * GRACE)
    assert here.status("a") == 200
    await clock.pass_(GRACE)
    assert here.status("a") == 410
    assert here.cuts == []


async def test_one_in_the_background_needs_no_reader(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", stored=True, background=True)
    with here.shelf.reading(kept):
        pass
    await clock.pass_(100 * GRACE)
    assert here.cuts == []
    finish(kept.answer)
    await clock.pass_(100 * GRACE)
    assert here.status("a") == 200
    assert kept.view.rests == 1


async def test_a_stored_one_stays_after_its_end_and_not_before(clock: Clock) -> None:
    here = Setting()
    for name in ("ends", "cut"):
        kept = here.add(name, stored=True)
        with here.shelf.reading(kept):
            if name == "ends":
                finish(kept.answer)
        finish(kept.answer)
    assert here.cuts == [("cut", Cut.CANCELLED)]
    await clock.pass_(100 * GRACE)
    # What it had said until then can be read.
    assert [here.status(name) for name in ("ends", "cut")] == [200, 200]


async def test_all_choices_must_have_ended(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", stored=True, n=2)
    with here.shelf.reading(kept):
        kept.answer.streams[1].finish(
            FinishedEvent("", 1, FinishReason.STOP, None, None, 3, 0, 2, 0, Timings(0.0, 0.1, 0.2, 0.3))
        )
        assert here.shelf.num_bytes == 0
    assert here.cuts == [("a", Cut.CANCELLED)]
    finish(kept.answer)
    assert here.shelf.num_bytes == kept.size > 0


async def test_one_that_ended_before_it_was_added_is_there_for_its_readers(clock: Clock) -> None:
    here = Setting()
    for on_disconnect, after in ((CANCEL, 410), (CONTINUE, 200)):
        name = on_disconnect.value
        answer = Answer(name, 0.0, 1)
        finish(answer)
        kept = Kept(View(f"resp_{name}", answer), "me", on_disconnect)
        here.shelf.add(kept)
        with here.shelf.reading(kept):
            assert here.status(name) == 200
        assert here.status(name) == after
    assert here.cuts == []


async def test_a_running_one_that_is_deleted_is_cancelled_and_leaves_nothing(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", CONTINUE, stored=True)
    with here.shelf.reading(kept):
        here.shelf.discard(kept)
        assert here.status("a") == 410
        here.shelf.discard(kept)
    assert here.cuts == [("a", Cut.CANCELLED)]
    finish(kept.answer)
    await clock.pass_(GRACE)
    assert here.status("a") == 410
    assert len(here.shelf) == here.shelf.num_bytes == 0


async def test_a_view_rests_once_it_has_ended_and_nobody_reads_it(clock: Clock) -> None:
    here = Setting()
    kept = here.add("a", CONTINUE, stored=True)
    with here.shelf.reading(kept):
        pass
    assert kept.view.rests == 0
    with here.shelf.reading(kept):
        finish(kept.answer)
        with here.shelf.reading(kept):
            pass
        assert kept.view.rests == 0
    assert kept.view.rests == 1


# -- bounds ----------------------------------------------------------------------------------------------


def ended(here: Setting, name: str, text: str = "") -> Kept[View]:
    kept = here.add(name, stored=True, text=text)
    with here.shelf.reading(kept):
        finish(kept.answer)
    return kept


def test_the_least_recently_used_gives_way() -> None:
    here = Setting(max_count=2)
    for name in "ab":
        ended(here, name)
    assert here.status("a") == 200  # which uses it
    ended(here, "c")
    assert [here.status(name) for name in "abc"] == [200, 410, 200]
    with pytest.raises(ApiError, match="its place was needed"):
        here.shelf.find("resp_b", "me")


def test_running_ones_never_give_way() -> None:
    here = Setting(max_count=1)
    here.add("running")
    for name in "abc":
        ended(here, name)
    assert [here.status(name) for name in ("running", "a", "b", "c")] == [200, 410, 410, 200]


def test_bytes_are_bounded_and_given_back() -> None:
    one = ended(Setting(), "a", "y" * 1000).size
    here = Setting(max_bytes=2 * one)
    names = "abcd"
    for name in names:
        ended(here, name, "y" * 1000)
        assert here.shelf.num_bytes <= 2 * one
    assert [here.status(name) for name in names] == [410, 410, 200, 200]
    # One that would need all the room, and more, costs nobody his place.
    ended(here, "huge", "y" * 2 * one)
    assert [here.status(name) for name in ("c", "d", "huge")] == [200, 200, 410]
    for name in "cd":
        here.shelf.discard(here.shelf.find(f"resp_{name}", "me"))
    assert here.shelf.num_bytes == len(here.shelf) == 0


async def test_those_in_their_grace_time_count_too(clock: Clock) -> None:
    here = Setting(max_count=2)
    for name in "abc":
        kept = here.add(name, CONTINUE)
        with here.shelf.reading(kept):
            finish(kept.answer)
    assert [here.status(name) for name in "abc"] == [410, 200, 200]
    await clock.pass_(GRACE)
    assert len(here.shelf) == here.shelf.num_bytes == 0


def test_what_is_remembered_of_the_gone_is_bounded() -> None:
    here = Setting(max_count=1)
    for number in range(REMEMBERED_GONE + 3):
        ended(here, str(number))
    assert [here.status(str(number)) for number in (0, 1, 2, 3)] == [404, 404, 410, 410]


# -- anything that may happen ----------------------------------------------------------------------------


@dataclass(eq=False)
class Twin:
    """What the rules say of one response, told anew."""

    kept: Kept[View]
    readers: list[ExitStack] = field(default_factory=list)
    deleted: bool = False
    is_cut: bool = False
    alone_since: float = 0.0
    """Since when it has had no reader, and not changed."""


class ShelfMachine(RuleBasedStateMachine):
    """A shelf with room for all, against rules that look at one response at a time."""

    twins = Bundle("twins")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock(self.loop)
        self.here = Setting(max_count=1000, max_bytes=10**9)
        self.all: list[Twin] = []

    def teardown(self) -> None:
        self.do(lambda: [reader.close() for twin in self.all for reader in twin.readers])
        self.loop.close()

    def do(self, step: Callable[[], object]) -> None:
        async def on_loop() -> None:
            step()

        self.loop.run_until_complete(on_loop())

    @rule(
        target=twins,
        on_disconnect=st.sampled_from(OnDisconnect),
        stored=st.booleans(),
        background=st.booleans(),
    )
    def begin(self, on_disconnect: OnDisconnect, stored: bool, background: bool) -> Twin:
        name = str(len(self.all))
        twin = Twin(self.here.add(name, on_disconnect, stored=stored, background=background))
        self.all.append(twin)
        self.come(twin)
        return twin

    def come(self, twin: Twin) -> None:
        reader = ExitStack()
        self.do(lambda: reader.enter_context(self.here.shelf.reading(twin.kept)))
        twin.readers.append(reader)

    @rule(twin=twins)
    def read(self, twin: Twin) -> None:
        if self.is_there(twin):
            self.come(twin)

    @rule(twin=twins)
    def leave(self, twin: Twin) -> None:
        if twin.readers:
            twin.alone_since = self.clock.now
            self.do(twin.readers.pop().close)

    @rule(twin=twins)
    def end(self, twin: Twin) -> None:
        if not twin.kept.answer.has_ended:
            twin.alone_since = self.clock.now
            self.do(lambda: finish(twin.kept.answer))

    @rule(twin=twins)
    def delete(self, twin: Twin) -> None:
        self.do(lambda: self.here.shelf.discard(twin.kept))
        twin.deleted = True

    @rule(seconds=st.sampled_from([1.0, GRACE / 2, GRACE]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(self.clock.pass_(seconds))

    def is_due(self, twin: Twin) -> bool:
        """Nobody has read it for as long as it may be alone."""
        grace = GRACE if twin.kept.on_disconnect is CONTINUE else 0.0
        return not twin.readers and self.clock.now - twin.alone_since >= grace

    def is_there(self, twin: Twin) -> bool:
        kept = twin.kept
        return not twin.deleted and (not kept.answer.has_ended or kept.stored or not self.is_due(twin))

    @invariant()
    def those_are_there_that_should_be(self) -> None:
        for twin in self.all:
            assert self.here.status(twin.kept.answer.request_id) == (200 if self.is_there(twin) else 410)

    @invariant()
    def those_are_cut_that_should_be(self) -> None:
        for twin in self.all:
            if not twin.kept.answer.has_ended:
                twin.is_cut |= twin.deleted or (self.is_due(twin) and not twin.kept.background)
            assert (twin.kept.answer.cut is not None) == twin.is_cut

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        there = [twin.kept for twin in self.all if self.is_there(twin) and twin.kept.answer.has_ended]
        assert self.here.shelf.num_bytes == sum(kept.size for kept in there)


ShelfMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestShelfMachine = ShelfMachine.TestCase
