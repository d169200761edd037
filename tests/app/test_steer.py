"""`response.steer` over a real socket: the response ends at once, and its successor goes on from there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.cutting import Events, read_to, taken_up
from tests.app.harness import RunningServer, Socket, eventually, expected, running, said, text_of


async def steer(socket: Socket, response_id: str, text: Any = "no") -> None:
    await socket.send(type="response.steer", previous_response_id=response_id, input=text)


async def begun(server: RunningServer, socket: Socket, tokens: int = 3, **fields: Any) -> tuple[str, Events]:
    """A response that has said a few words, in an engine that is held."""
    server.gate.close()
    await socket.create("hello", **({"max_output_tokens": 400} | fields))
    server.gate.step(tokens)
    events: Events = []
    while len(text_of(events)) < tokens:
        events.append(await socket.event())
    return events[0]["response"]["id"], events


def talk(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant", "user", "user")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


async def test_a_steered_response_ends_within_a_tick_and_its_successor_goes_on() -> None:
    async with running() as server, server.socket() as socket:
        response_id, events = await begun(server, socket, stream_id="a", max_output_tokens=30)
        await socket.create("waited", stream_id="a")
        await steer(socket, response_id, "no")
        await steer(socket, response_id, [{"type": "message", "role": "user", "content": "but yes"}])
        # The engine is held in a tick all the while.
        accepted = [await socket.event(), await socket.event()]
        name = response_id.removeprefix("resp_")
        assert accepted == [
            {
                "type": "response.steer.accepted",
                "sequence_number": events[-1]["sequence_number"],
                "steer": {"id": f"steer_{name}_{n}", "previous_response_id": response_id},
                "stream_id": "a",
            }
            for n in range(2)
        ]
        await eventually(lambda: name in server.engine.aborted)
        server.gate.open()
        events += await socket.until("response.incomplete")
        tick, _ = server.engine.ended[name]
        assert tick - server.engine.aborted[name] <= 1
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        last = events[-1]["response"]
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "steered"})
        so_far = said("hello", last["usage"]["output_tokens"])
        assert text_of(events) == last["output"][0]["content"][0]["text"] == so_far

        created, *rest = await socket.until("response.incomplete")
        assert created["type"] == "response.created"
        assert created["response"]["previous_response_id"] == response_id
        assert created["response"]["max_output_tokens"] == 30
        assert created["response"]["id"] != response_id
        assert {event["stream_id"] for event in rest} == {"a"}
        assert text_of(rest) == expected(talk("hello", so_far, "no", "but yes"), 30)
        # It is the conversation that a next turn builds on.
        assert text_of(await socket.until("response.incomplete")) == said("waited", 8)
        more = await socket.answer("more", previous_response_id=created["response"]["id"])
        whole = [*talk("hello", so_far, "no", "but yes"), {"role": "assistant", "content": text_of(rest)}]
        assert text_of(more) == expected([*whole, {"role": "user", "content": "more"}], 8)


async def test_a_successor_has_the_same_settings() -> None:
    settings: dict[str, Any] = {
        "instructions": "be brief",
        "metadata": {"n": "1"},
        "max_output_tokens": 7,
        "store": False,
        "top_p": 0.5,
        "user": "ada",
    }
    async with running() as server, server.socket() as socket:
        response_id, events = await begun(server, socket, **settings)
        await steer(socket, response_id)
        assert (await socket.event())["type"] == "response.steer.accepted"
        server.gate.open()
        so_far = text_of(events + await socket.until("response.incomplete"))
        successor = (await socket.until("response.incomplete"))[-1]["response"]
    for name, value in settings.items():
        assert successor[name] == value
    system = {"role": "system", "content": "be brief"}
    assert successor["output"][0]["content"][0]["text"] == expected([system, *talk("hello", so_far, "no")], 7)


async def test_a_response_that_completes_first_is_followed_by_a_successor_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as server, server.socket() as socket:
        response_id, _ = await begun(server, socket, max_output_tokens=6)
        # As if the end and the cut had crossed.
        monkeypatch.setattr(server.engine, "abort", lambda request_id: None)
        await steer(socket, response_id)
        assert (await socket.event())["type"] == "response.steer.accepted"
        server.gate.open()
        last = (await socket.until("response.incomplete"))[-1]["response"]
        assert last["incomplete_details"] == {"reason": "max_output_tokens"}
        rest = await socket.until("response.incomplete")
        assert text_of(rest) == expected(talk("hello", said("hello", 6), "no"), 6)


async def test_every_way_to_steer_in_vain_gives_the_input_back() -> None:
    async with running() as server, server.socket() as socket, server.socket() as other:

        async def failed(client: Socket, response_id: str, text: Any = "no") -> str:
            await steer(client, response_id, text)
            (event,) = await client.until("response.steer.failed")
            assert event["steer"] == {"input": text, "previous_response_id": response_id}
            assert isinstance(event["sequence_number"], int)
            return str(event["error"]["code"])

        ended = (await socket.answer("hello"))[0]["response"]["id"]
        warm = (await socket.answer("hello", generate=False))[0]["response"]["id"]
        assert await failed(socket, ended) == "response_already_completed"
        assert await failed(socket, warm) == "response_already_completed"
        assert await failed(socket, "resp_unknown") == "response_not_found"
        response_id, _ = await begun(server, socket, max_output_tokens=20)
        assert await failed(other, response_id) == "response_not_found"
        assert await failed(socket, response_id, "") == "invalid_input"
        assert await failed(socket, response_id, [{"role": "system", "content": "x"}]) == "invalid_input"
        for _ in range(16):
            await steer(socket, response_id)
        for _ in range(16):
            assert (await socket.event())["type"] == "response.steer.accepted"
        assert await failed(socket, response_id) == "too_many_pending_steers"
        server.gate.open()
        await socket.until("response.incomplete")
        await socket.until("response.incomplete")


async def test_a_warm_up_cannot_be_steered() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", generate=False)
        response_id = (await socket.event())["response"]["id"]
        await steer(socket, response_id)
        (event,) = [e for e in await socket.until("response.steer.failed") if "error" in e]
        assert event["error"]["code"] == "steering_not_supported"
        server.gate.open()
        await socket.until("response.completed")


async def test_a_successor_that_cannot_be_created_gives_the_input_back() -> None:
    async with running(num_blocks=64, max_model_len=600) as server, server.socket() as socket:
        response_id, _ = await begun(server, socket, max_output_tokens=300, stream_id="a")
        await steer(socket, response_id, "x" * 400)
        accepted = await socket.event()
        server.gate.open()
        await socket.until("response.incomplete")
        failed = await socket.event()
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == "successor_creation_failed"
        assert "600" in failed["error"]["message"]
        assert failed["steer"] == {"input": "x" * 400, **accepted["steer"]}
        assert failed["stream_id"] == "a"
        # What was said before it can still be built on, as if nothing had happened.
        more = await socket.answer("more", previous_response_id=response_id, stream_id="a")
        assert more[-1]["type"] == "response.incomplete"


async def test_a_cancel_after_a_steer_ends_it_all() -> None:
    async with running() as server, server.socket() as socket:
        response_id, _ = await begun(server, socket)
        await steer(socket, response_id)
        await socket.send(type="response.cancel", response_id=response_id)
        accepted, failed = await socket.event(), await socket.event()
        assert failed["steer"]["id"] == accepted["steer"]["id"]
        assert failed["error"]["code"] == "successor_creation_failed"
        server.gate.open()
        await socket.until("response.incomplete")
        assert text_of(await socket.answer("next")) == said("next", 8)


async def test_a_draining_server_gives_accepted_input_back() -> None:
    async with running() as server, server.socket() as socket:
        response_id, _ = await begun(server, socket)
        await steer(socket, response_id)
        accepted = await socket.event()
        server.server.stop()
        server.gate.open()
        failed = (await socket.until("response.steer.failed"))[-1]
        assert failed["steer"]["id"] == accepted["steer"]["id"]
        assert "shutting down" in failed["error"]["message"]


async def test_a_response_that_was_taken_up_can_be_steered() -> None:
    async with running(resume_grace_s=1000) as server, server.socket() as socket:
        async with server.socket() as first:
            response_id, events = await begun(
                server, first, on_disconnect="continue", stop=["."], max_output_tokens=50
            )
        await socket.send(type="response.resume", response_id=response_id, stream_id="b")
        events = await socket.until("response.resumed")
        await steer(socket, response_id)
        events += await socket.until("response.steer.accepted")
        server.gate.open()
        events += await socket.until("response.incomplete")
        assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
        so_far = text_of(events)
        (created, *rest) = await socket.until("response.incomplete", "response.completed")
        assert created["stream_id"] == "b"
        assert text_of(rest).startswith(expected(talk("hello", so_far, "no"), len(text_of(rest))))
        told = await taken_up(socket, response_id, starting_after=0)
        assert [event["sequence_number"] for event in told] == list(range(1, len(told) + 1))


async def test_steering_ids_and_numbers_never_disturb_the_count_of_events() -> None:
    async with running() as server, server.socket() as socket:
        response_id, events = await begun(server, socket)
        number = events[-1]["sequence_number"]
        await steer(socket, response_id)
        await steer(socket, response_id, "")
        assert [(await socket.event())["sequence_number"] for _ in range(2)] == [number, number]
        server.gate.open()
        rest = await socket.until("response.incomplete")
        assert rest[0]["sequence_number"] == number + 1
        await read_to(socket, 0)
        await socket.until("response.incomplete")
