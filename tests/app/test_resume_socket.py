"""`response.resume`: whatever breaks, a client that comes back gets the rest, each event exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from engine.request import FinishReason
from tests.app.cutting import Events, check_whole, read_to, reset, taken_up, without_readers
from tests.app.harness import RunningServer, Socket, eventually, expected, running, said, text_of

TOKENS = 4
FRAMES = 4 + TOKENS + 4


def step_for(server: RunningServer, number: int) -> None:
    """Let the engine say what event `number` needs."""
    if 4 <= number < 4 + TOKENS:
        server.gate.step()


async def read_frame_by_frame(server: RunningServer, socket: Socket, last: int) -> Events:
    """With a closed gate: each token is a frame of its own."""
    events: Events = []
    for number in range(last + 1):
        step_for(server, number)
        events.append(await socket.event())
    return events


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_survives_a_cut_after_every_frame(stored: bool) -> None:
    async with running(resume_grace_s=1000) as server:
        for cut_after in range(FRAMES - 1):
            server.gate.close()
            async with server.socket() as socket:
                await socket.create("hello", max_output_tokens=TOKENS, on_disconnect="continue", store=stored)
                events = await read_frame_by_frame(server, socket, cut_after)
                response_id = events[0]["response"]["id"]
                reset(socket)
                await without_readers(server, response_id)
            # It goes on while nobody reads.
            server.gate.step(2)
            async with server.socket() as socket:
                await socket.send(type="response.resume", response_id=response_id, starting_after=cut_after)
                assert (await socket.event())["type"] == "response.resumed"
                server.gate.open()
                events += await socket.until("response.incomplete")
                check_whole(events, said("hello", TOKENS))
                # The conversation is known here now.
                more = await socket.answer("more", previous_response_id=response_id)
                talk = [("user", "hello"), ("assistant", said("hello", TOKENS)), ("user", "more")]
                assert text_of(more) == expected([{"role": r, "content": c} for r, c in talk], 8)


async def test_an_answer_survives_cut_after_cut() -> None:
    async with running(resume_grace_s=1000) as server:
        server.gate.close()
        events: Events = []
        async with server.socket() as socket:
            await socket.create("hello", max_output_tokens=TOKENS, on_disconnect="continue")
            events.append(await socket.event())
            reset(socket)
        response_id = events[0]["response"]["id"]
        for number in range(1, FRAMES):
            await without_readers(server, response_id)
            async with server.socket() as socket:
                await socket.send(type="response.resume", response_id=response_id, starting_after=number - 1)
                assert (await socket.event())["starting_after"] == number - 1
                step_for(server, number)
                events.append(await socket.event())
                reset(socket)
        check_whole(events, said("hello", TOKENS))


async def test_an_answer_that_waits_for_its_turn_survives_a_cut() -> None:
    async with running(max_num_seqs=1, resume_grace_s=1000) as server, server.socket() as other:
        server.gate.close()
        await other.create("first", max_output_tokens=20)
        await eventually(lambda: server.stats().num_running == 1)
        async with server.socket() as socket:
            await socket.create("second", on_disconnect="continue")
            response_id = (await socket.event())["response"]["id"]
            reset(socket)
        await without_readers(server, response_id)
        async with server.socket() as socket:
            await socket.send(type="response.resume", response_id=response_id)
            assert (await socket.event())["status"] == "queued"
            server.gate.open()
            check_whole(await socket.until("response.incomplete"), said("second", 8))
        assert text_of(await other.until("response.incomplete")) == said("first", 20)


async def test_an_answer_whose_prompt_is_being_computed_survives_a_cut() -> None:
    text = "long " * 40
    async with running(prefill_chunk=16, resume_grace_s=1000) as server:
        server.gate.close()
        async with server.socket() as socket:
            await socket.create(text, on_disconnect="continue")
            events = await read_to(socket, 3)
            server.gate.step(4)
            await eventually(lambda: server.stats().num_ticks == 5)
            reset(socket)
        response_id = events[0]["response"]["id"]
        await without_readers(server, response_id)
        server.gate.step(3)
        await eventually(lambda: server.stats().num_ticks == 8)
        async with server.socket() as socket:
            await socket.send(type="response.resume", response_id=response_id, starting_after=3)
            assert (await socket.event())["status"] == "queued"
            server.gate.open()
            events += await socket.until("response.incomplete")
            check_whole(events, said(text, 8))
            assert events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 0


async def test_all_lanes_of_a_cut_socket_go_on_and_other_sockets_notice_nothing() -> None:
    async with running(resume_grace_s=1000) as server, server.socket() as other:
        server.gate.close()
        await other.create("other", max_output_tokens=30)
        ids: dict[str, str] = {}
        seen: dict[str, Events] = {"a": [], "b": []}
        async with server.socket() as socket:
            for lane in seen:
                await socket.create(
                    f"lane {lane}", stream_id=lane, max_output_tokens=20, on_disconnect="continue"
                )
            await eventually(lambda: server.holds(3))
            server.gate.step(5)
            while not all(len(text_of(events)) >= 3 for events in seen.values()):
                event = await socket.event()
                seen[event["stream_id"]].append(event)
                if event["type"] == "response.created":
                    ids[event["stream_id"]] = event["response"]["id"]
            reset(socket)
        async with server.socket() as socket:
            # Into other lanes than before.
            lanes = {"a": "left", "b": "right"}
            for lane, events in seen.items():
                await socket.send(
                    type="response.resume",
                    response_id=ids[lane],
                    starting_after=events[-1]["sequence_number"],
                    stream_id=lanes[lane],
                )
            await socket.create("new", stream_id="new")
            server.gate.open()
            ended, resumed, new = 0, [], []
            while ended < 3:
                event = await socket.event()
                ended += event["type"] == "response.incomplete"
                if event["type"] == "response.resumed":
                    resumed.append(event["stream_id"])
                elif event["stream_id"] == "new":
                    new.append(event)
                else:
                    lane = next(lane for lane, name in lanes.items() if name == event["stream_id"])
                    seen[lane].append(event)
            assert sorted(resumed) == ["left", "right"]
        for lane, events in seen.items():
            check_whole(events, said(f"lane {lane}", 20))
        check_whole(new, said("new", 8))
        check_whole(await other.until("response.incomplete"), said("other", 30))


async def test_taking_up_is_a_turn_of_its_lane() -> None:
    async with running(resume_grace_s=1000) as server, server.socket() as first, server.socket() as socket:
        kept = (await first.answer("kept"))[-1]["response"]["id"]
        server.gate.close()
        await socket.create("one", stream_id="a", max_output_tokens=9)
        await socket.send(type="response.resume", response_id=kept, stream_id="a", starting_after=3)
        await socket.create("two", stream_id="a")
        server.gate.open()
        one = await socket.until("response.incomplete")
        resumed, *rest = await socket.until("response.incomplete")
        two = await socket.until("response.incomplete")
    assert text_of(one) == said("one", 9)
    assert (resumed["type"], resumed["status"]) == ("response.resumed", "incomplete")
    assert [event["sequence_number"] for event in rest] == list(range(4, 4 + len(rest)))
    assert text_of(rest) == said("kept", 8)
    assert text_of(two) == said("two", 8)


async def test_an_ended_response_is_told_again_from_any_number() -> None:
    async with running() as server, server.socket() as first:
        events = await first.answer("hello", metadata={"n": "1"})
        response_id = events[0]["response"]["id"]
        async with server.socket() as socket:
            assert await taken_up(socket, response_id) == events
            assert await taken_up(socket, response_id, starting_after=-1) == events
            for number in range(len(events) - 1):
                assert await taken_up(socket, response_id, starting_after=number) == events[number + 1 :]
            # After the last there is nothing to be told, and the lane is free.
            last = events[-1]["sequence_number"]
            await socket.send(
                type="response.resume", response_id=response_id, starting_after=last, stream_id="a"
            )
            assert (await socket.event())["status"] == "incomplete"
            again = await socket.answer("hello", stream_id="a")
            assert text_of(again) == said("hello", 8)


async def test_two_sockets_and_two_lanes_may_read_one_response_at_once() -> None:
    async with running() as server, server.socket() as first, server.socket() as second:
        server.gate.close()
        await first.create("hello", max_output_tokens=20)
        response_id = (await first.event())["response"]["id"]
        for socket, lane in ((first, "a"), (second, "b"), (second, "c")):
            await socket.send(type="response.resume", response_id=response_id, stream_id=lane)
        got: dict[str | None, Events] = {lane: [] for lane in (None, "a", "b", "c")}

        async def collect(socket: Socket, count: int) -> None:
            while count:
                event = await socket.event()
                lane = event.pop("stream_id", None)
                if event["type"] != "response.resumed":
                    got[lane].append(event)
                count -= event["type"] == "response.incomplete"

        server.gate.step(3)
        await eventually(lambda: server.stats().num_ticks == 4)
        server.gate.open()
        await collect(first, 2)
        await collect(second, 2)
        check_whole(got["a"], said("hello", 20))
        assert got["a"] == got["b"] == got["c"]
        assert got[None] == got["a"][1:]


async def test_the_last_reader_that_leaves_decides_and_not_the_first() -> None:
    async with running() as server, server.socket() as second:
        server.gate.close()
        async with server.socket() as first:
            await first.create("hello", max_output_tokens=9)  # it would be cancelled without readers
            response_id = (await first.event())["response"]["id"]
            await second.send(type="response.resume", response_id=response_id)
            await second.event()
            reset(first)
        kept = server.app.state.responses.shelf._by_id[response_id]
        await eventually(lambda: kept.num_readers == 1)
        server.gate.open()
        check_whole(await second.until("response.incomplete"), said("hello", 9))


# -- what cannot be taken up -----------------------------------------------------------------------------


async def dropped(server: RunningServer, **fields: Any) -> str:
    """The id of a response whose only reader vanished after three tokens."""
    server.gate.close()
    async with server.socket() as socket:
        await socket.create("hello", max_output_tokens=400, **fields)
        response_id = str((await socket.event())["response"]["id"])
        server.gate.step(3)
        await read_to(socket, 4)
        reset(socket)
    await eventually(lambda: response_id.removeprefix("resp_") in server.engine.aborted)
    server.gate.open()
    await eventually(lambda: server.is_idle)
    return response_id


@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
async def test_one_that_comes_too_late_is_told_so_and_gets_no_part(on_disconnect: str) -> None:
    async with running(resume_grace_s=0) as server:
        response_id = await dropped(server, on_disconnect=on_disconnect, store=False)
        async with server.socket() as socket:
            (error,) = await taken_up(socket, response_id, starting_after=4, stream_id="a")
            assert (error["status"], error["error"]["code"]) == (410, "response_gone")
            assert error["error"]["param"] == "response_id"
            assert error["stream_id"] == "a"
            await socket.send(type="response.stats", response_id=response_id)
            assert (await socket.event())["error"]["code"] == "response_gone"
            # The socket and its lane are none the worse for it.
            assert text_of(await socket.answer("hello", stream_id="a")) == said("hello", 8)
        (first, *_) = server.engine.ended.values()
    assert first[1].reason is FinishReason.ABORT


@pytest.mark.parametrize(
    ("on_disconnect", "reason"), [("cancel", None), ("continue", {"reason": "abandoned"})]
)
async def test_a_stored_one_tells_how_it_ended(on_disconnect: str, reason: object) -> None:
    async with running(resume_grace_s=0) as server:
        response_id = await dropped(server, on_disconnect=on_disconnect)
        async with server.socket() as socket:
            events = await taken_up(socket, response_id)
            last = events[-1]["response"]
            assert (last["status"], last["incomplete_details"]) == ("cancelled", reason)
            check_whole(events, said("hello", last["usage"]["output_tokens"]))


async def test_what_nobody_may_take_up_is_refused_by_name() -> None:
    ada, bob = ({"additional_headers": {"authorization": f"Bearer {name}"}} for name in ("ada", "bob"))
    async with running(resume_grace_s=1000) as server, server.socket(**bob) as stranger:
        async with server.socket(**ada) as socket:
            response_id = (await socket.answer("hello"))[0]["response"]["id"]
            server.gate.close()
            await socket.create("hello", max_output_tokens=5, on_disconnect="continue")
            live = (await socket.event())["response"]["id"]
            server.gate.step()
            await read_to(socket, 4)
            reset(socket)
        await without_readers(server, live)
        # One more token, in a delta that nobody has taken: it has no end yet, and so no number.
        server.gate.step()
        await eventually(lambda: server.service.bridge._open[live.removeprefix("resp_"), 0].num_tokens == 2)
        async with server.socket(**ada) as socket:
            for client, name, fields, status, code, param in (
                (socket, "resp_unknown", {}, 404, "response_not_found", "response_id"),
                (stranger, response_id, {}, 404, "response_not_found", "response_id"),
                (stranger, live, {}, 404, "response_not_found", "response_id"),
                (socket, response_id, {"starting_after": 1000}, 400, "out_of_range", "starting_after"),
                (socket, live, {"starting_after": 5}, 400, "out_of_range", "starting_after"),
            ):
                (error,) = await taken_up(client, name, stream_id="x", **fields)
                assert (error["status"], error["stream_id"]) == (status, "x")
                assert (error["error"]["code"], error["error"]["param"]) == (code, param)
            await socket.send(type="response.resume", response_id=live, starting_after=4)
            assert (await socket.event())["type"] == "response.resumed"
            server.gate.open()
            assert text_of(await socket.until("response.incomplete")) == said("hello", 5)[1:]


# -- what can be done with one that was taken up ---------------------------------------------------------


async def test_a_response_that_was_taken_up_can_be_cancelled() -> None:
    async with running() as server, server.socket() as first, server.socket() as second:
        server.gate.close()
        await first.create("hello", max_output_tokens=400)
        response_id = (await first.event())["response"]["id"]
        # At once: the cancel must not run into a response that is not told here yet.
        await second.send(type="response.resume", response_id=response_id, stream_id="a")
        await second.send(type="response.cancel", response_id=response_id, stream_id="a")
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        for socket in (first, second):
            last = (await socket.until("response.incomplete"))[-1]["response"]
            assert last["status"] == "cancelled"
            assert last["usage"]["output_tokens"] < 400


async def test_one_that_waits_to_be_taken_up_can_be_cancelled() -> None:
    async with running() as server, server.socket() as first, server.socket() as second:
        server.gate.close()
        await first.create("hello", max_output_tokens=400)
        response_id = (await first.event())["response"]["id"]
        await second.create("busy", stream_id="a", max_output_tokens=100)
        await second.send(type="response.resume", response_id=response_id, stream_id="a")
        await second.send(type="response.cancel", response_id=response_id, stream_id="a")
        await second.send(type="response.resume", response_id="resp_unknown", stream_id="b")
        await second.send(type="response.cancel", response_id="resp_unknown", stream_id="b")
        await eventually(lambda: response_id.removeprefix("resp_") in server.engine.aborted)
        server.gate.open()
        assert (await first.until("response.incomplete"))[-1]["response"]["status"] == "cancelled"
        kinds = [event["type"] for event in await second.until("response.resumed")]
        assert "error" in kinds
        assert (await second.until("response.incomplete"))[-1]["response"]["status"] == "cancelled"
