"""The picture of the engine: what it shows, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from engine.config import Admission
from engine.engine import Engine
from engine.request import Priority
from engine.scheduler import Plan
from engine.snapshot import Progress, Snapshot, look_at, runs, take_snapshot
from tests.fakes import make_engine, make_request, run_until_idle


def look(engine: Engine) -> Snapshot:
    future = engine.inspect(take_snapshot)
    if not future.done():
        engine.tick()
    return future.result()


def test_whoever_asked_may_have_left():
    engine, _, _ = make_engine()
    engine.submit(make_request("a", "x", max_tokens=20))
    assert engine.inspect(take_snapshot).cancel()
    engine.tick()
    assert len(look(engine).running) == 1


def test_an_idle_engine_has_nothing_but_free_blocks():
    engine, _, _ = make_engine(num_blocks=6)
    assert look(engine) == Snapshot(blocks="......", running=(), waiting=())


def test_blocks_show_how_full_they_are():
    engine, _, _ = make_engine(num_blocks=6)
    engine.submit(make_request("a", "x" * 20, max_tokens=20))
    engine.tick()
    picture = look(engine)
    assert sorted(picture.blocks) == sorted("#+....")
    (sequence,) = picture.running
    assert (sequence.id, sequence.prompt_tokens, len(sequence.table)) == ("a", 20, 2)
    assert [picture.blocks[block] for block in sequence.table] == ["#", "+"]
    # The command is taken at the beginning of the second tick.
    assert (sequence.output_tokens, sequence.computed_tokens) == (1, 20)


def test_ids_are_cut_short():
    """A whole one would let anybody continue the conversation."""
    engine, _, _ = make_engine()
    engine.submit(make_request("0123456789abcdef0123456789abcdef", "x", max_tokens=20, n=2))
    engine.tick()
    assert {each.id for each in look(engine).running} == {"01234567", "01234567#1"}


def test_reserved_blocks_are_held_empty():
    engine, _, _ = make_engine(num_blocks=6, max_model_len=80, admission=Admission.RESERVE_MAX)
    engine.submit(make_request("a", "x" * 20, max_tokens=20))
    engine.tick()
    assert sorted(look(engine).blocks) == sorted("#+---.")


def test_kept_and_shared_blocks_are_told_apart():
    engine, _, _ = make_engine(num_blocks=8)
    engine.submit(make_request("a", "x" * 40, max_tokens=1))
    run_until_idle(engine)
    assert sorted(look(engine).blocks) == sorted("cc......")
    for name in "bc":
        engine.submit(make_request(name, "x" * 40, max_tokens=20))
    engine.tick()
    picture = look(engine)
    assert sorted(picture.blocks) == sorted("ss++....")
    one, other = (each.table for each in picture.running)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert [each.cached_tokens for each in picture.running] == [32, 32]


def test_tables_are_told_as_runs():
    assert runs(()) == []
    assert runs((4, 5, 6, 2, 1, 9)) == [[4, 3], [2, 1], [1, 1], [9, 1]]


def test_a_static_batch_shows_its_padding():
    engine, _, _ = make_engine(num_blocks=8, max_model_len=64, admission=Admission.STATIC)
    engine.submit(make_request("a", "x" * 20, max_tokens=1))
    engine.submit(make_request("b", "y" * 20, max_tokens=20))
    engine.tick()
    assert {each.id: each.is_padding for each in look(engine).running} == {"a": True, "b": False}


def test_the_queue_is_shown_by_session_and_sessions_are_not_named():
    engine, _, _ = make_engine(max_num_seqs=1, token_budget=8)
    for index in range(6):
        session = "key of Ada" if index else "key of Bob"
        engine.submit(replace(make_request(f"r{index}", "hello", max_tokens=9), session=session))
    engine.tick()
    picture = look(engine)
    ((session, count),) = picture.waiting
    assert count == 5
    assert session != picture.running[0].session
    assert "key" not in repr(picture)


# -- one sequence ----------------------------------------------------------------------------------------


def progress(engine: Engine, sequence_id: str) -> Progress | None:
    """As the books stand between two ticks."""
    return look_at(engine.scheduler, sequence_id)


def test_a_sequence_is_shown_on_its_way():
    engine, _, _ = make_engine(max_num_seqs=1, prefill_chunk=16, token_budget=16)
    engine.submit(make_request("a", "x" * 40, max_tokens=3))
    assert progress(engine, "a") is None  # it has not arrived yet
    engine.tick()
    found = progress(engine, "a")
    assert found is not None
    assert (found.queue_position, found.prompt_tokens, found.computed_tokens) == (None, 40, 16)
    assert (found.output_tokens, found.first_token) == (0, None)
    assert found.admitted is not None
    engine.tick()
    engine.tick()
    engine.tick()
    found = progress(engine, "a")
    assert found is not None
    assert (found.computed_tokens, found.output_tokens) == (40, 2)
    assert found.first_token is not None
    engine.tick()
    assert progress(engine, "a") is None


def test_what_another_has_computed_is_shown_as_cached():
    engine, _, _ = make_engine()
    engine.submit(make_request("a", "x" * 40, max_tokens=1))
    run_until_idle(engine)
    engine.submit(make_request("b", "x" * 40, max_tokens=5))
    engine.tick()
    found = progress(engine, "b")
    assert found is not None
    assert (found.cached_tokens, found.computed_tokens, found.preemptions) == (32, 40, 0)


def test_places_in_the_queue_are_in_the_order_of_arrival_and_of_class():
    engine, _, _ = make_engine(max_num_seqs=1)
    for name, priority in (
        ("a", Priority.INTERACTIVE),
        ("b", Priority.BATCH),
        ("c", Priority.INTERACTIVE),
        ("d", Priority.INTERACTIVE),
        ("e", Priority.BATCH),
    ):
        engine.submit(replace(make_request(name, "hello", max_tokens=9), priority=priority))
    engine.tick()

    def positions() -> dict[str, int | None]:
        found = {name: progress(engine, name) for name in "abcde"}
        return {name: each.queue_position for name, each in found.items() if each is not None}

    assert positions() == {"a": None, "c": 0, "d": 1, "b": 2, "e": 3}
    engine.scheduler._preempt(engine.scheduler.running["a"], Plan())
    assert positions() == {"a": 0, "c": 1, "d": 2, "b": 3, "e": 4}
    found = progress(engine, "a")
    assert found is not None
    assert (found.computed_tokens, found.output_tokens, found.preemptions) == (0, 1, 1)
    run_until_idle(engine)
    assert positions() == {}
