"""`generate: false`: what a warm-up computes is not computed again, and nobody waits for one."""

from __future__ import annotations

from typing import Any

from engine.blocks import BLOCK_SIZE
from engine.request import Priority
from tests.app.harness import RunningServer, eventually, expected, running, said, text_of

DRAFT = "a draft of some length that is still being written " * 8
KINDS = ("response.created", "response.in_progress", "response.completed")


def computed(server: RunningServer) -> list[int]:
    """Tokens of each forward pass so far."""
    return [len(batch.token_ids) for batch in server.runner.batches]


async def test_a_send_after_a_warm_up_computes_only_what_is_new() -> None:
    async with running(prefill_chunk=64) as server, server.socket() as socket:
        events = await socket.answer(DRAFT, generate=False, instructions="be brief", metadata={"n": "1"})
        assert tuple(event["type"] for event in events) == KINDS
        assert [event["sequence_number"] for event in events] == [0, 1, 2]
        last = events[-1]["response"]
        assert (last["status"], last["output"], last["usage"]["output_tokens"]) == ("completed", [], 0)
        assert last["metadata"] == {"n": "1"}
        prompt = last["usage"]["input_tokens"]
        assert len(computed(server)) == -(-prompt // 64)

        ticks = server.stats().num_ticks
        server.gate.close()
        await socket.create(
            "now", previous_response_id=last["id"], instructions="be brief", max_output_tokens=5
        )
        server.gate.step()
        told = await socket.until("response.output_text.delta")
        # One tick, and in it the new words and what does not fill a block: not the draft.
        assert server.stats().num_ticks - ticks <= 2  # the second one is held
        first_pass = computed(server)[ticks]
        assert first_pass <= len("user:now;") + BLOCK_SIZE
        server.gate.open()
        told += await socket.until("response.incomplete")
        usage = told[-1]["response"]["usage"]
        assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] == first_pass
        assert usage["input_tokens_details"]["cached_tokens"] == prompt // BLOCK_SIZE * BLOCK_SIZE
        messages = [("system", "be brief"), ("user", DRAFT), ("user", "now")]
        assert text_of(told) == expected([{"role": r, "content": c} for r, c in messages], 5)


async def test_the_same_prompt_sent_again_needs_one_tick() -> None:
    async with running(prefill_chunk=64) as server, server.socket() as socket:
        await socket.answer(DRAFT, generate=False)
        ticks = server.stats().num_ticks
        await socket.answer(DRAFT, max_output_tokens=1)
        assert server.stats().num_ticks == ticks + 1
        assert computed(server)[ticks] <= BLOCK_SIZE


async def test_it_takes_every_field_that_its_question_will_have() -> None:
    fields = {"min_tokens": 5, "max_output_tokens": 9, "stop": ["~"], "seed": 1, "logit_bias": {"3": 1}}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with running() as server, server.socket() as socket:
        events = await socket.answer(DRAFT, generate=False, **fields, **logprobs)
        assert tuple(event["type"] for event in events) == KINDS
        last = (await socket.answer(DRAFT, **fields, **logprobs))[-1]["response"]
        cached = last["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == events[-1]["response"]["usage"]["input_tokens"] // BLOCK_SIZE * BLOCK_SIZE


async def test_instructions_alone_can_be_warmed_up() -> None:
    async with running() as server, server.socket() as socket:
        system = "always answer in rhyme " * 10
        (created, _, completed) = await socket.answer("", generate=False, instructions=system)
        assert created["response"]["instructions"] == system
        assert completed["response"]["usage"]["input_tokens"] == len(f"system:{system};")
        events = await socket.answer(
            "hello", previous_response_id=created["response"]["id"], instructions=system
        )
        cached = events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == len(f"system:{system};") // BLOCK_SIZE * BLOCK_SIZE
        await socket.send(type="response.create", generate=False)
        assert (await socket.event())["error"]["param"] == "input"


async def test_a_warm_up_waits_behind_everyone_who_reads() -> None:
    async with running(max_num_seqs=1) as server, server.socket() as socket, server.socket() as other:
        server.gate.close()
        await socket.create("first", stream_id="first")
        await eventually(lambda: server.stats().num_running == 1)
        await socket.create("warm", generate=False, stream_id="warm")
        await eventually(lambda: server.holds(2))
        await other.create("later")
        await eventually(lambda: server.holds(3))
        server.gate.open()
        await other.until("response.incomplete")
        await socket.until("response.completed")
        by_text = {"".join(map(str, request.prompt)): request for request, _ in server.engine.submitted}
    ended = list(server.engine.ended)
    warm = next(r for r in by_text.values() if r.priority is Priority.BATCH)
    assert ended.index(warm.id) == 2


async def test_a_turn_that_generates_does_not_wait_for_warm_ups_of_its_lane() -> None:
    async with running(prefill_chunk=16) as server, server.socket() as socket:
        server.gate.close()
        await socket.create(DRAFT, generate=False, stream_id="a")
        first = (await socket.event())["response"]["id"]
        await socket.create(DRAFT + "more", generate=False, stream_id="a")
        await socket.create("other", generate=False, stream_id="b")
        server.gate.step(3)
        await eventually(lambda: server.stats().num_ticks == 4)
        await socket.create("now", stream_id="a", previous_response_id=first)
        await eventually(lambda: first.removeprefix("resp_") in server.engine.aborted)
        server.gate.open()
        told: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        ended: list[tuple[str, str]] = []
        while len(ended) < 4:
            event = await socket.event()
            told[event["stream_id"]].append(event)
            if event["type"] in ("error", "response.completed", "response.incomplete"):
                ended.append((event["stream_id"], event["type"]))
        _, cut, dropped, created, *rest = told["a"]
        assert (cut["response"]["id"], cut["response"]["status"]) == (first, "cancelled")
        assert dropped["error"]["code"] == "warm_up_superseded"
        assert created["response"]["previous_response_id"] == first
        talk = [{"role": "user", "content": DRAFT}, {"role": "user", "content": "now"}]
        assert text_of(rest) == expected(talk, 8)
        # What had been computed until then is used.
        assert rest[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] >= 3 * 16
        # Another lane's warm-up is another conversation's.
        assert ("b", "response.completed") in ended


async def test_a_cancelled_warm_up_is_cancelled() -> None:
    async with running(prefill_chunk=16) as server, server.socket() as socket:
        server.gate.close()
        await socket.create(DRAFT, generate=False)
        response_id = (await socket.event())["response"]["id"]
        await socket.send(type="response.cancel", response_id=response_id)
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        last = (await socket.until("response.incomplete"))[-1]
        assert (last["response"]["status"], last["sequence_number"]) == ("cancelled", 2)
        assert text_of(await socket.answer("hello")) == said("hello", 8)
