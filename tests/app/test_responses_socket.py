"""ws /v1/responses over a real socket: answers, lanes, cancels, conversations."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.app.harness import MODEL, Socket, eventually, expected, running, said, text_of

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


async def test_an_answer_is_a_complete_sequence_of_events() -> None:
    async with running() as server, server.socket() as socket:
        events = await socket.answer("hello", max_output_tokens=12)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert text_of(events) == said("hello", 12)
    assert not any("stream_id" in e for e in events)
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == said("hello", 12)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["input_tokens"] == len("user:hello;")
    assert response["usage"]["output_tokens"] == 12
    assert len({e["response"]["id"] for e in events if "response" in e}) == 1


async def test_each_token_is_a_frame_for_a_reader_that_keeps_up() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=4)
        await socket.until("response.content_part.added")
        for letter in said("hello", 4):
            server.gate.step()
            assert (await socket.event())["delta"] == letter
        await socket.until("response.incomplete")


async def test_the_end_token_completes_the_response() -> None:
    async with running() as server, server.socket() as socket:
        server.runner.script = lambda context: 0 if len(context) == 14 else 1
        events = await socket.answer("hello")
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"
    assert text_of(events) == "aaa"


async def test_instructions_come_first_and_messages_follow() -> None:
    items = [
        {"role": "user", "content": "one"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    async with running() as server, server.socket() as socket:
        events = await socket.answer(items, instructions="be brief")
    assert text_of(events) == expected(plain, 8)


async def test_two_lanes_run_at_once() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        for lane in ("a", "b"):
            await socket.create(f"I am {lane}", stream_id=lane, max_output_tokens=6)
        seen = [await socket.event() for _ in range(8)]
        assert {e["stream_id"] for e in seen} == {"a", "b"}
        server.gate.open()
        got: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        for event in seen:
            got[event["stream_id"]].append(event)
        while not all(events[-1]["type"] == "response.incomplete" for events in got.values()):
            event = await socket.event()
            got[event["stream_id"]].append(event)
        # Both had begun before either had said a word.
        for lane, events in got.items():
            assert text_of(events) == said(f"I am {lane}", 6)
            assert [e["sequence_number"] for e in events] == list(range(len(events)))


async def test_one_lane_answers_in_the_order_it_was_asked() -> None:
    async with running() as server, server.socket() as socket:
        for text in ("one", "two", "three"):
            await socket.create(text, stream_id="lane")
        answers = [await socket.until(*TERMINAL) for _ in range(3)]
    assert [text_of(events) for events in answers] == [said(text, 8) for text in ("one", "two", "three")]
    assert all(events[0]["type"] == "response.created" for events in answers)


async def test_more_lanes_than_may_run_at_once_all_get_their_answer() -> None:
    async with running() as server, server.socket() as socket:
        lanes = [f"lane{i}" for i in range(32)]
        server.gate.close()
        for lane in lanes:
            await socket.create(lane, stream_id=lane)
        await socket.create("x", stream_id="one_too_many")
        error = (await socket.until("error"))[-1]
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert error["stream_id"] == "one_too_many"
        assert server.service.bridge.num_open == 16
        server.gate.open()
        got: dict[str, str] = {}
        ended = 0
        while ended < 32:
            event = await socket.event()
            if event["type"] == "response.output_text.done":
                got[event["stream_id"]] = event["text"]
            ended += event["type"] == "response.incomplete"
    assert got == {lane: said(lane, 8) for lane in lanes}


# -- cancel ----------------------------------------------------------------------------------------------


async def test_a_cancelled_response_ends_within_a_tick_with_what_it_had_said() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=400, stream_id="a")
        response_id = (await socket.event())["response"]["id"]
        server.gate.step(3)
        events: list[dict[str, Any]] = []
        while len(text_of(events)) < 3:
            events.append(await socket.event())
        await socket.send(type="response.cancel", response_id=response_id)
        request_id = response_id.removeprefix("resp_")
        await eventually(lambda: request_id in server.engine.aborted)
        server.gate.step(2)
        events += await socket.until(*TERMINAL)
        last = events[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["status"] == "cancelled"
        assert last["response"]["incomplete_details"] is None
        assert last["stream_id"] == "a"
        tick, end = server.engine.ended[request_id]
        assert tick - server.engine.aborted[request_id] <= 1
        assert last["response"]["output"][0]["content"][0]["text"] == said("hello", end.num_output_tokens)
        assert last["response"]["usage"]["output_tokens"] == end.num_output_tokens
        # The lane goes on, and the partial answer is part of the conversation.
        server.gate.open()
        partial = last["response"]["output"][0]["content"][0]["text"]
        more = await socket.answer("go on", stream_id="a", previous_response_id=response_id)
        assert text_of(more) == expected(
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": partial},
                {"role": "user", "content": "go on"},
            ],
            8,
        )


async def test_a_queued_response_can_be_cancelled() -> None:
    async with running(max_num_seqs=1) as server, server.socket() as socket:
        server.gate.close()
        await socket.create("first", stream_id="a", max_output_tokens=100)
        await socket.create("second", stream_id="b", max_output_tokens=100)
        ids: dict[str, str] = {}
        while len(ids) < 2:
            event = await socket.event()
            if event["type"] == "response.created":
                ids[event["stream_id"]] = event["response"]["id"]
        await socket.send(type="response.cancel", response_id=ids["b"], stream_id="b")
        await eventually(lambda: ids["b"].removeprefix("resp_") in server.engine.aborted)
        server.gate.open()
        ended: dict[str, str] = {}
        texts = {"a": "", "b": ""}
        while len(ended) < 2:
            event = await socket.event()
            if event["type"] == "response.output_text.delta":
                texts[event["stream_id"]] += event["delta"]
            if event["type"] == "response.incomplete":
                ended[event["stream_id"]] = event["response"]["status"]
    assert ended == {"a": "incomplete", "b": "cancelled"}
    assert texts == {"a": said("first", 100), "b": ""}


async def test_a_cancel_that_comes_too_late_disturbs_nothing() -> None:
    async with running() as server, server.socket() as socket:
        response_id = (await socket.answer("hello"))[-1]["response"]["id"]
        await socket.send(type="response.cancel", response_id=response_id)
        # Whatever it had caused would come before this answer.
        events = await socket.answer("again")
        assert events[0]["type"] == "response.created"
        await socket.send(type="response.cancel", response_id="resp_unknown")
        error = await socket.event()
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")


# -- conversations ---------------------------------------------------------------------------------------

TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": said("one", 8)},
    {"role": "user", "content": "two"},
]


async def ask_twice(first: Socket, second: Socket, **fields: Any) -> list[dict[str, Any]]:
    response_id = (await first.answer("one", **fields))[-1]["response"]["id"]
    return await second.answer("two", previous_response_id=response_id)


async def test_a_next_turn_builds_on_the_one_before() -> None:
    async with running() as server, server.socket() as socket:
        events = await ask_twice(socket, socket)
        assert text_of(events) == expected(TALK, 8)
        third = await socket.answer("three", previous_response_id=events[-1]["response"]["id"])
    so_far = [
        *TALK,
        {"role": "assistant", "content": expected(TALK, 8)},
        {"role": "user", "content": "three"},
    ]
    assert text_of(third) == expected(so_far, 8)


async def test_instructions_are_not_inherited() -> None:
    async with running() as server, server.socket() as socket:
        response_id = (await socket.answer("one", instructions="be brief"))[-1]["response"]["id"]
        events = await socket.answer("two", previous_response_id=response_id)
        first = expected([{"role": "system", "content": "be brief"}, TALK[0]], 8)
    talk = [TALK[0], {"role": "assistant", "content": first}, TALK[2]]
    assert text_of(events) == expected(talk, 8)


async def test_another_connection_finds_stored_responses_only() -> None:
    async with running() as server, server.socket() as first, server.socket() as second:
        assert text_of(await ask_twice(first, second)) == expected(TALK, 8)
        assert text_of(await ask_twice(first, first, store=False)) == expected(TALK, 8)
        (error,) = await ask_twice(first, second, store=False)
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"
    assert error["status"] == 400


async def test_a_response_that_is_not_over_cannot_be_built_on() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("one", stream_id="a")
        response_id = (await socket.event())["response"]["id"]
        await socket.create("two", stream_id="b", previous_response_id=response_id)
        error = (await socket.until("error"))[-1]
        assert error["error"]["code"] == "previous_response_not_found"
        server.gate.open()
        await socket.until("response.incomplete")


async def test_the_model_may_be_left_out() -> None:
    async with running() as server, server.socket() as socket:
        await socket.send(type="response.create", input="hello", temperature=0, max_output_tokens=3)
        events = await socket.until(*TERMINAL)
    assert events[-1]["response"]["model"] == MODEL
    assert text_of(events) == said("hello", 3)


# -- the end of a socket ---------------------------------------------------------------------------------


async def test_what_waits_when_the_server_stops_is_told_so_and_the_lane_s_answer_ends_whole() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("runs", stream_id="a", max_output_tokens=20)
        for text in ("waits", "waits too"):
            await socket.create(text, stream_id="a")
        await socket.send(type="ping")
        await socket.until("pong")
        server.server.stop()
        server.gate.open()
        told = await socket.until("response.incomplete")
        assert told[-1]["response"]["output"][0]["content"][0]["text"] == said("runs", 20)
        for _ in range(2):
            error = await socket.event()
            assert (error["status"], error["stream_id"]) == (503, "a")
            assert error["error"]["code"] == "server_unavailable"
            assert "shutting down" in error["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            await socket.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert len(server.engine.submitted) == 1


async def test_a_socket_that_breaks_with_everything_under_way_leaves_nothing() -> None:
    async with running(max_num_seqs=2) as server, server.socket() as socket:
        kept = (await socket.answer("kept"))[0]["response"]["id"]
        server.gate.close()
        for lane in "abc":
            for text in ("runs", "waits"):
                await socket.create(text, stream_id=lane, max_output_tokens=400, store=False)
            await socket.send(type="response.resume", response_id=kept, stream_id=lane)
        response_id = (await socket.until("response.created"))[-1]["response"]["id"]
        await socket.send(type="response.steer", previous_response_id=response_id, input="no")
        await socket.until("response.steer.accepted")
        for _ in range(5):
            await socket.send(type="response.stats", response_id=response_id)
        await socket.send(type="ping")
        await socket.until("pong")
        socket.connection.transport.abort()
        await eventually(lambda: len(server.engine.aborted) == 3)
        server.gate.open()
        await eventually(lambda: server.is_idle and not server.service._deliveries)
        assert len(server.engine.submitted) == 4
        assert list(server.app.state.responses.shelf._by_id) == [kept]
        assert server.app.state.responses.shelf._by_id[kept].num_readers == 0


async def test_every_cancel_is_counted_whatever_it_met() -> None:
    async with running(max_num_seqs=4, prefill_chunk=16) as server, server.socket() as socket:
        server.gate.close()
        ids: list[str] = []
        for lane in range(16):
            text = "long " * 40 if lane % 2 else "short"
            await socket.create(text, stream_id=str(lane), max_output_tokens=400)
            ids.append((await socket.until("response.created"))[-1]["response"]["id"])
            server.gate.step(lane % 3)
        for response_id in ids:
            await socket.send(type="response.cancel", response_id=response_id)
            server.gate.step()
        await eventually(lambda: len(server.engine.aborted) == 16)
        server.gate.open()
        ends = [(await socket.until("response.incomplete"))[-1]["response"] for _ in ids]
        assert {end["id"] for end in ends} == set(ids)
        assert {end["status"] for end in ends} == {"cancelled"}
        metrics = server.service.bridge._metrics.exposition().decode()
        assert 'request_success_total{finished_reason="abort"} 16.0' in metrics
        for name in ("num_requests_running", "num_requests_waiting"):
            assert f"tickwire:{name} 0.0" in metrics


async def test_a_client_that_shows_no_sign_of_life_is_given_up() -> None:
    async with running() as server:
        config = server.server.config
        assert config.ws_ping_interval is not None
        assert config.ws_ping_timeout is not None
        assert config.ws_ping_interval + config.ws_ping_timeout <= 40
        config.ws_ping_interval = config.ws_ping_timeout = 0.05
        async with server.socket() as socket, server.socket() as alive:
            server.gate.close()
            await socket.create("hello", max_output_tokens=400)
            await alive.create("hello", max_output_tokens=20)
            await eventually(lambda: server.holds(2))
            socket.connection.transport.pause_reading()  # so it answers no ping
            await eventually(lambda: server.engine.aborted)
            server.gate.open()
            assert text_of(await alive.until("response.incomplete")) == said("hello", 20)
            socket.connection.transport.abort()  # rather than wait for the server's close


@pytest.mark.parametrize("who", ["client", "server", "both"])
async def test_a_close_in_the_middle_of_an_answer_leaves_no_trace_in_the_log(
    who: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(shutdown_timeout_s=0) as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=400)
        await socket.until("response.content_part.added")
        server.gate.step(2)
        await socket.event()
        if who != "client":
            server.server.stop()
        if who != "server":
            await socket.connection.close()
        server.gate.open()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    assert "socket_failed" not in told.out + told.err


async def test_a_fault_of_ours_is_logged_and_closes_the_socket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running() as server, server.socket() as socket, server.socket() as other:

        def broken(*args: object, **fields: object) -> object:
            raise MemoryError("no more")

        monkeypatch.setattr("app.api.responses_socket.progress", broken)
        response_id = (await socket.answer("hello"))[0]["response"]["id"]
        await socket.send(type="response.stats", response_id=response_id)
        with pytest.raises(ConnectionClosed):
            await socket.event()
        assert text_of(await other.answer("hello")) == said("hello", 8)
    assert "socket_failed" in capsys.readouterr().out
