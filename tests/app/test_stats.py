"""`response.stats` and `ping`: numbers that are true by the engine's books, whatever a response does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from engine.blocks import BLOCK_SIZE
from tests.app.harness import RunningServer, Socket, eventually, running

CONTEXT = 512 * BLOCK_SIZE
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


async def stats(server: RunningServer, socket: Socket, response_id: str) -> dict[str, Any]:
    """Asks, and lets ticks through until there is an answer. Other events are dropped."""
    await socket.send(type="response.stats", response_id=response_id)
    asked = asyncio.create_task(socket.until("response.stats"))
    await eventually(lambda: server.gate.step() or asked.done())
    event = (await asked)[-1]
    assert "sequence_number" not in event
    assert event["response_id"] == response_id
    return dict(event["stats"]) | {"lane": event.get("stream_id")}


async def test_an_ended_response_and_what_it_took() -> None:
    async with running() as server, server.socket() as socket, server.socket() as other:
        response_id = (await socket.answer("hello", stream_id="a"))[0]["response"]["id"]
        for client, lane in ((socket, {"stream_id": "a"}), (other, {})):
            await client.send(type="response.stats", response_id=response_id)
            event = await client.event()
            told = event["stats"]
            speed, waited, first = (
                told.pop(name) for name in ("tokens_per_s", "waited_ms", "first_token_ms")
            )
            assert 0 <= waited <= first
            assert speed > 0
            assert event == lane | {
                "type": "response.stats",
                "response_id": response_id,
                "stats": {
                    "status": "ended",
                    "queue_position": None,
                    "prompt_tokens": 11,
                    "computed_tokens": 11,
                    "cached_tokens": 0,
                    "output_tokens": 8,
                    "max_output_tokens": 8,
                    "context_left": CONTEXT - 19,
                    "preemptions": 0,
                    "readers": 0,
                },
            }


async def test_a_response_in_every_state() -> None:
    prompt = len("user:" + "x" * 3000 + ";")
    async with (
        running(max_num_seqs=1, prefill_chunk=16) as server,
        server.socket() as socket,
        server.socket() as other,
    ):
        server.gate.close()
        ids = []
        for index, (text, fields) in enumerate(
            [
                ("first", {"max_output_tokens": 3000}),
                ("second", {}),
                ("warm", {"generate": False}),
                ("x" * 3000, {"max_output_tokens": None}),
            ]
        ):
            await socket.create(text, stream_id=str(index), **fields)
            ids.append((await socket.until("response.created"))[-1]["response"]["id"])
        first, second, warm, long = ids
        server.gate.step(2)
        await eventually(lambda: server.stats().num_ticks == 3)

        told = await stats(server, socket, first)
        assert (told["status"], told["queue_position"], told["lane"]) == ("generating", None, "0")
        assert told["prompt_tokens"] == told["computed_tokens"] == 11
        assert 1 <= told["output_tokens"] < 3000
        assert told["context_left"] == CONTEXT - 11 - told["output_tokens"]
        assert told["readers"] == 1
        assert told["first_token_ms"] >= told["waited_ms"] >= 0

        # Those that read go before the one that does not.
        positions = [(await stats(server, socket, each))["queue_position"] for each in (second, long, warm)]
        assert positions == [0, 1, 2]
        told = await stats(server, socket, long)
        assert (told["status"], told["prompt_tokens"]) == ("queued", prompt)
        assert told["max_output_tokens"] == told["context_left"] == CONTEXT - prompt
        assert told["computed_tokens"] == told["output_tokens"] == told["preemptions"] == 0
        assert told["tokens_per_s"] is told["first_token_ms"] is None
        assert told["waited_ms"] >= 0
        told = await stats(server, socket, warm)
        assert (told["status"], told["max_output_tokens"]) == ("queued", 0)

        for each in (first, second):
            await socket.send(type="response.cancel", response_id=each)
        await eventually(lambda: len(server.engine.aborted) == 2)
        told = await stats(server, socket, long)
        while not told["computed_tokens"]:
            told = await stats(server, socket, long)
        assert told["status"] == "prefilling"
        assert 0 < told["computed_tokens"] < prompt
        assert told["computed_tokens"] % 16 == 0
        assert told["output_tokens"] == 0
        assert (await stats(server, other, long))["lane"] is None
        await socket.send(type="response.cancel", response_id=long)
        server.gate.open()
        await socket.until("response.completed")
        told = await stats_when_idle(socket, long)
        assert told | ended_before_a_word(prompt) == told
        told = await stats_when_idle(socket, warm)
        assert (told["status"], told["output_tokens"], told["tokens_per_s"]) == ("ended", 0, None)


async def stats_when_idle(socket: Socket, response_id: str) -> dict[str, Any]:
    await socket.send(type="response.stats", response_id=response_id)
    return await next_stats(socket)


async def next_stats(socket: Socket) -> dict[str, Any]:
    return dict((await socket.until("response.stats"))[-1]["stats"])


async def test_a_preempted_response_is_queued_again() -> None:
    async with running(engine={"chaos": _preempting()}) as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=60)
        response_id = (await socket.event())["response"]["id"]
        told = await stats(server, socket, response_id)
        while not told["preemptions"]:
            told = await stats(server, socket, response_id)
        server.gate.open()
        await socket.until("response.incomplete")
        told = await stats_when_idle(socket, response_id)
        assert (told["status"], told["output_tokens"]) == ("ended", 60)
        assert told["preemptions"] > 1


def _preempting() -> Any:
    from engine.config import Chaos

    return Chaos(preempt_every=5)


async def test_an_answer_that_ends_while_it_is_asked_about_is_told_as_ended() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=50)
        response_id = (await socket.event())["response"]["id"]
        await eventually(lambda: server.stats().num_running == 1)
        # The engine ends it, answers the question, and only then tells of the end.
        await socket.send(type="response.cancel", response_id=response_id)
        await socket.send(type="response.stats", response_id=response_id)
        await eventually(lambda: len(server.engine._inbox) == 2)
        server.gate.open()
        told = await next_stats(socket)
        assert told | ended_before_a_word(prompt=11) == told


def ended_before_a_word(prompt: int) -> dict[str, Any]:
    return {"status": "ended", "prompt_tokens": prompt, "computed_tokens": None, "output_tokens": 0}


async def test_many_questions_are_refused_and_disturb_nothing() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello")
        response_id = (await socket.event())["response"]["id"]
        for _ in range(20):
            await socket.send(type="response.stats", response_id=response_id)
        refused = [await socket.event() for _ in range(7)]
        errors = [event for event in refused if event["type"] == "error"]
        assert len(errors) == 4
        assert {(e["status"], e["error"]["code"]) for e in errors} == {(429, "too_many_pending_requests")}
        server.gate.open()
        kinds: list[str] = []
        while kinds.count("response.stats") < 16 or "response.incomplete" not in kinds:
            kinds.append((await socket.event())["type"])
        assert kinds.count("response.incomplete") == 1
        await socket.send(type="response.stats", response_id="resp_unknown")
        event = await socket.event()
        assert (event["status"], event["error"]["code"]) == (404, "response_not_found")


async def test_a_ping_is_answered_at_once_with_the_server_s_time() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello")
        await socket.until("response.content_part.added")
        before = time.time()
        await socket.send(type="ping", id="any text, é")
        pong = await socket.event()
        assert before <= pong.pop("time") <= time.time()
        assert pong == {"type": "pong", "id": "any text, é"}
        await socket.send(type="ping")
        assert set(await socket.event()) == {"type", "time"}
        await socket.send(type="ping", id="x" * 3000)
        assert (await socket.event())["error"]["param"] == "id"
        server.gate.open()
        await socket.until("response.incomplete")
