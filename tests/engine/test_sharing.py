"""Computed prefixes are shared: by later requests, by those that come at once, by the answers of one request
and by forks; never across salts, and never so that anybody's text changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.blocks import BLOCK_SIZE
from engine.engine import Engine
from engine.prefix import PrefixHasher
from engine.request import FinishReason, Request
from engine.sampling import SamplingParams
from tests.engine.test_engine import alone
from tests.fakes import FakeRunner, Recorder, fake_ids, make_engine, make_request, run_until_idle

LONG = "a prompt of fifty one characters, or so we believe!"[:50] + "."
"""Three full blocks and three tokens."""


def computed(runner: FakeRunner) -> int:
    """Tokens computed since this was last asked."""
    count = sum(len(batch.token_ids) for batch in runner.batches)
    runner.batches.clear()
    return count


def ask(engine: Engine, recorder: Recorder, name: str, prompt: str, count: int, **fields: str) -> int:
    """Runs one request to its end; how many of its prompt's tokens were cached."""
    engine.submit(replace(make_request(name, prompt, max_tokens=count), **fields))  # type: ignore[arg-type]
    run_until_idle(engine)
    assert recorder.text(name) == alone(prompt, count)
    engine.scheduler.check()
    return recorder.finished(name).num_cached_tokens


def test_the_same_prompt_again_computes_only_its_last_partial_block() -> None:
    engine, runner, recorder = make_engine()
    assert ask(engine, recorder, "a", LONG, 1) == 0
    assert computed(runner) == 51
    assert ask(engine, recorder, "b", LONG, 1) == 48
    assert computed(runner) == 3


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48])
def test_a_hit_never_covers_the_whole_prompt(length: int) -> None:
    engine, runner, recorder = make_engine()
    prompt = LONG[:length]
    ask(engine, recorder, "a", prompt, 1)
    computed(runner)
    assert ask(engine, recorder, "b", prompt, 1) == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert computed(runner) == length - (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_conversation_of_ten_turns_computes_only_what_is_new_in_each() -> None:
    engine, runner, recorder = make_engine(num_blocks=80)
    history = "system. "
    for turn in range(10):
        before = len(history) - 1 if turn else 0  # the last token of an answer was never computed
        history += f"user asks question {turn} about it. "
        prompt = history
        cached = ask(engine, recorder, f"turn{turn}", prompt, 20)
        # All full blocks of what was computed before.
        assert cached == before // BLOCK_SIZE * BLOCK_SIZE
        assert computed(runner) == len(prompt) - cached + 19
        history += recorder.text(f"turn{turn}")


def test_different_salts_never_share() -> None:
    engine, _, recorder = make_engine()
    assert ask(engine, recorder, "a", LONG, 1, cache_salt="one") == 0
    assert ask(engine, recorder, "b", LONG, 1, cache_salt="two") == 0
    assert ask(engine, recorder, "c", LONG, 1) == 0
    assert ask(engine, recorder, "d", LONG, 1, cache_salt="two") == 48


def test_hashes_cannot_be_made_up() -> None:
    tokens = list(fake_ids(LONG))
    hashes: list[list[bytes]] = [[], [], [], []]
    ours = PrefixHasher(b"s" * 32)
    ours.extend(hashes[0], tokens, "")
    ours.extend(hashes[1], tokens, "salt")
    PrefixHasher(b"t" * 32).extend(hashes[2], tokens, "")
    ours.extend(hashes[3], [tokens[0] + 1, *tokens[1:]], "")
    assert len({each for chain in hashes for each in chain}) == 4 * 3
    # One by one or all at once, a chain is the same.
    grown: list[bytes] = []
    for length in range(len(tokens) + 1):
        ours.extend(grown, tokens[:length], "")
    assert grown == hashes[0]


def test_without_the_cache_nothing_is_kept() -> None:
    engine, runner, recorder = make_engine(prefix_cache=False)
    ask(engine, recorder, "a", LONG, 1)
    assert ask(engine, recorder, "b", LONG, 1) == 0
    assert computed(runner) == 2 * 51
    assert engine.stats().memory.cached == 0


def test_of_two_that_come_at_once_the_second_waits_a_tick_and_shares() -> None:
    engine, runner, recorder = make_engine()
    for name in ("first", "second"):
        engine.submit(make_request(name, LONG, max_tokens=2))
    engine.submit(make_request("other", "b" + LONG, max_tokens=2))
    engine.tick()
    assert set(engine.scheduler.running) == {"first", "other"}
    engine.tick()
    assert recorder.finished("second" if recorder.has_finished("second") else "first")
    run_until_idle(engine)
    assert recorder.finished("second").num_cached_tokens == 48
    assert computed(runner) == 51 + 1 + 3 + 1 + 52 + 1
    assert recorder.text("second") == alone(LONG, 2)


def test_one_who_waits_for_a_prefix_waits_no_longer_than_its_owner_lives() -> None:
    engine, _, recorder = make_engine(prefill_chunk=16)
    for name in ("first", "second"):
        engine.submit(make_request(name, LONG, max_tokens=2))
    engine.tick()
    assert list(engine.scheduler.running) == ["first"]
    engine.abort("first")
    engine.tick()
    assert list(engine.scheduler.running) == ["second"]
    run_until_idle(engine)
    assert recorder.text("second") == alone(LONG, 2)


def test_the_answers_of_one_request_share_its_prompt_and_copy_the_block_they_write_to() -> None:
    engine, runner, recorder = make_engine(max_num_seqs=8)
    engine.submit(make_request("r", LONG, SamplingParams(temperature=0, max_tokens=4, n=5)))
    engine.tick()
    engine.tick()
    copies = runner.batches[-1].copies.tolist()
    assert len(copies) == 4
    assert len({source for source, _ in copies}) == 1
    assert len({target for _, target in copies}) == 4
    # Three full blocks once, and for each a block of its own to write to.
    assert engine.stats().num_blocks - engine.stats().num_free_blocks == 3 + 5
    run_until_idle(engine)
    assert computed(runner) == 51 + 3 + 4 * 4
    for choice in range(5):
        events = [e for e in recorder.events("r") if e.choice == choice]
        assert "".join(getattr(e, "text", "") for e in events) == alone(LONG, 4)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_fork_goes_on_from_where_its_parent_stands(prefix_cache: bool) -> None:
    engine, runner, recorder = make_engine(prefix_cache=prefix_cache)
    engine.submit(make_request("parent", LONG, max_tokens=30))
    for _ in range(9):
        engine.tick()
    said = recorder.text("parent")
    engine.fork("parent", Request("child", (), SamplingParams(temperature=0, max_tokens=12), 0.0))
    computed(runner)
    engine.tick()
    # One token each: nothing was computed again.
    assert computed(runner) == 2
    run_until_idle(engine)
    assert recorder.text("child") == alone(LONG, 9 + 12)[len(said) :]
    assert recorder.text("parent") == alone(LONG, 30)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_a_fork_of_one_that_has_ended_ends_with_an_error() -> None:
    engine, _, recorder = make_engine()
    engine.submit(make_request("parent", LONG, max_tokens=1))
    run_until_idle(engine)
    engine.fork("parent", Request("child", (), SamplingParams(max_tokens=12), 0.0))
    engine.tick()
    assert recorder.finished("child").reason is FinishReason.ERROR
    assert "has ended" in (recorder.finished("child").error or "")


def test_memory_is_taken_from_the_cache_when_it_is_needed_and_what_is_oldest_goes_first() -> None:
    engine, _, recorder = make_engine(num_blocks=8)
    ask(engine, recorder, "old", "o" * 33, 1)
    ask(engine, recorder, "newer", "n" * 33, 1)
    assert engine.stats().memory.cached == 4 * BLOCK_SIZE
    ask(engine, recorder, "big", "b" * 90, 1)
    # Six blocks: the four that held nothing, and the two of the oldest.
    assert ask(engine, recorder, "newer again", "n" * 33, 1) == 32
    assert ask(engine, recorder, "old again", "o" * 33, 1) == 0


def test_a_preempted_sequence_finds_what_it_had_computed() -> None:
    from engine.config import Chaos

    engine, runner, recorder = make_engine(chaos=Chaos(preempt_every=8))
    engine.submit(make_request("a", LONG, max_tokens=10))
    run_until_idle(engine)
    assert recorder.finished("a").num_preemptions == 1
    assert recorder.text("a") == alone(LONG, 10)
    # The second time 48 of its tokens are there.
    assert computed(runner) == 51 + 9 + (51 + 7 - 48) - 1
