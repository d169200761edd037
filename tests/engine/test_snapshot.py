"""The picture of the engine: what it shows, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from engine.config import Admission
from engine.engine import Engine
from engine.snapshot import Snapshot, take_snapshot
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
    assert (sequence.id, sequence.prompt_tokens, sequence.blocks) == ("a", 20, 2)
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
    assert sorted(look(engine).blocks) == sorted("ss++....")


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
