"""A streamed chat completion whose connection breaks, and is taken up again: over real connections that are
reset, nothing is lost and nothing comes twice."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from app.api.chat import ChatCompletions
from engine.batch import NOT_A_NUMBER
from engine.request import FinishReason
from tests.app.harness import RunningServer, eventually, running, said
from tests.fakes import FakeRunner, SamplingRunner

COMPLETIONS = "/v1/chat/completions"
TOKENS = 6


def body(**fields: Any) -> dict[str, Any]:
    content = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": TOKENS}
    return content | {"stream": True, "on_disconnect": "continue"} | fields


@dataclass
class Events:
    """What one reader of a stream was sent."""

    numbers: list[int] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    """All JSON, in order."""
    is_done: bool = False
    """[DONE] came, and nothing after it."""

    def take(self, event: str) -> None:
        lines = event.split("\n")
        assert not self.is_done, "something came after [DONE]"
        if event.startswith(":"):
            return
        if lines[0].startswith("id: "):
            self.numbers.append(int(lines.pop(0).removeprefix("id: ")))
        (data,) = lines
        if data == "data: [DONE]":
            self.is_done = True
        else:
            self.chunks.append(orjson.loads(data.removeprefix("data: ")))

    @property
    def completion_id(self) -> str:
        (only,) = {chunk["id"] for chunk in self.chunks}
        return str(only)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    def text(self, index: int = 0) -> str:
        return "".join(c["delta"].get("content", "") for c in self.choices if c["index"] == index)

    def finishes(self) -> list[int]:
        """Of which choices, in order."""
        return sorted(c["index"] for c in self.choices if c["finish_reason"] is not None)

    def num_roles(self) -> int:
        return sum("role" in choice["delta"] for choice in self.choices)


async def events_in(response: httpx.Response) -> AsyncIterator[str]:
    rest = ""
    async for piece in response.aiter_text():
        *events, rest = (rest + piece).split("\n\n")
        for event in events:
            yield event
    assert rest == ""


@asynccontextmanager
async def cut_short(server: RunningServer, headers: Any = None, **fields: Any) -> AsyncIterator[Any]:
    """A stream as an iterator of events, whose connection is reset at the end of the block."""
    async with (
        server.http() as http,
        http.stream("POST", COMPLETIONS, json=body(**fields), headers=headers) as response,
    ):
        assert response.status_code == 200
        yield events_in(response)
        connection = response.extensions["network_stream"].get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def first_events(server: RunningServer, count: int, headers: Any = None, **fields: Any) -> Events:
    """The first `count` events of a stream that is reset then, or all, if there are fewer: a reader that is
    not fast enough gets bigger ones."""
    seen = Events()
    async with cut_short(server, headers, **fields) as events:
        async for event in events:
            seen.take(event)
            if len(seen.chunks) == count:
                break
    return seen


async def get(server: RunningServer, completion_id: str, headers: Any = None, **query: Any) -> httpx.Response:
    async with server.http() as http:
        return await http.get(f"{COMPLETIONS}/{completion_id}", params=query, headers=headers)


async def rest_of(server: RunningServer, completion_id: str, headers: Any = None, **query: Any) -> Events:
    response = await get(server, completion_id, headers, stream="true", **query)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-should-retry"] == "false"
    rest = Events()
    for event in response.text.split("\n\n")[:-1]:
        rest.take(event)
    return rest


def the_chat(server: RunningServer) -> ChatCompletions:
    endpoint: ChatCompletions = next(
        route.app  # type: ignore[attr-defined]
        for route in server.app.routes
        if getattr(route, "path", None) == COMPLETIONS
    )
    return endpoint


async def nobody_reads(server: RunningServer) -> None:
    await eventually(lambda: all(not kept.num_readers for kept in the_chat(server).shelf._by_id.values()))


NUM_EVENTS = TOKENS + 1
"""One for each token, and the finish."""


async def test_a_connection_reset_after_any_event_costs_nothing() -> None:
    """Before the first token, after every event in the middle of an answer, and after its end."""
    async with running() as server:
        for count in range(NUM_EVENTS + 1):
            await reset_after(server, count)


async def reset_after(server: RunningServer, count: int) -> None:
    """`count` events are seen beside the role, which has no number, as the answer comes token by token."""
    server.gate.close()
    seen = Events()
    async with cut_short(server, stream_options={"include_usage": True}) as events:
        seen.take(await anext(events))
        for _ in range(count):
            server.gate.step()
            seen.take(await anext(events))
    await nobody_reads(server)
    server.gate.open()
    after = {"starting_after": seen.numbers[-1]} if seen.numbers else {}
    rest = await rest_of(server, seen.completion_id, **after)
    numbers = seen.numbers + rest.numbers
    assert numbers == list(range(len(numbers)))
    assert len(seen.numbers) == count
    assert seen.text() + rest.text() == said("hello", TOKENS)
    assert seen.finishes() + rest.finishes() == [0]
    assert (rest.num_roles(), rest.is_done) == (0 if after else 1, True)
    usages = [chunk["usage"] for chunk in rest.chunks if chunk["usage"]]
    assert [usage["completion_tokens"] for usage in usages] == [TOKENS]
    assert rest.completion_id == seen.completion_id


async def test_several_choices_are_taken_up_again_after_any_event() -> None:
    """Nobody holds the engine here: the answer may be anywhere when the connection is reset."""
    fields = {"n": 3, "seed": 5, "temperature": 1, "logprobs": True, "top_logprobs": 1, "ignore_eos": True}
    async with running(runner=SamplingRunner) as server:
        async with server.http() as http:
            whole = body(**fields) | {"stream": False, "on_disconnect": None}
            answer = (await http.post(COMPLETIONS, json=whole)).json()
        wanted = [choice["message"]["content"] for choice in answer["choices"]]
        assert len(set(wanted)) == 3
        for count in range(4, 3 + 3 * NUM_EVENTS, 3):
            seen = await first_events(server, count, **fields)
            rest = await rest_of(server, seen.completion_id, starting_after=seen.numbers[-1])
            numbers = seen.numbers + rest.numbers
            assert numbers == list(range(len(numbers)))
            assert [seen.text(index) + rest.text(index) for index in range(3)] == wanted
            assert sorted(seen.finishes() + rest.finishes()) == [0, 1, 2]
            for index, choice in enumerate(answer["choices"]):
                of_choice = [c for c in seen.choices + rest.choices if c["index"] == index and c["logprobs"]]
                assert [e for c in of_choice for e in c["logprobs"]["content"]] == choice["logprobs"][
                    "content"
                ]
            assert rest.num_roles() == 0
            assert rest.is_done


async def test_one_answer_may_be_cut_at_every_event() -> None:
    async with running() as server:
        server.gate.close()
        everything = await first_events(server, 1)
        for _ in range(NUM_EVENTS):
            server.gate.step()
            after = {"starting_after": everything.numbers[-1]} if everything.numbers else {}
            async with (
                server.http() as http,
                http.stream(
                    "GET", f"{COMPLETIONS}/{everything.completion_id}", params={"stream": "true", **after}
                ) as response,
            ):
                async for event in events_in(response):
                    before = len(everything.numbers)
                    everything.take(event)
                    if len(everything.numbers) > before:
                        break
    assert everything.numbers == list(range(NUM_EVENTS))
    assert everything.text() == said("hello", TOKENS)
    assert everything.finishes() == [0]


async def test_many_that_are_cut_all_the_time_get_all_of_their_answers() -> None:
    """With less memory than they want, so that answers are preempted and computed again as well."""

    async def talk(server: RunningServer, index: int) -> Events:
        dice = random.Random(index)
        messages = [{"role": "user", "content": f"number {index}"}]
        everything = await first_events(server, dice.randint(1, 9), messages=messages, max_tokens=40)
        while not everything.is_done:
            after = {"starting_after": everything.numbers[-1]} if everything.numbers else {}
            path = f"{COMPLETIONS}/{everything.completion_id}"
            async with (
                server.http() as http,
                http.stream("GET", path, params={"stream": "true", **after}) as response,
            ):
                wanted = len(everything.chunks) + dice.randint(1, 9)
                async for event in events_in(response):
                    everything.take(event)
                    if len(everything.chunks) == wanted:
                        break
        return everything

    async with running(num_blocks=14, max_num_seqs=8) as server:
        answers = await asyncio.gather(*(talk(server, index) for index in range(12)))
        assert server.stats().num_preemptions > 0
    for index, everything in enumerate(answers):
        assert everything.numbers == list(range(len(everything.numbers)))
        assert everything.text() == said(f"number {index}", 40)
        assert everything.finishes() == [0]


async def test_any_number_of_readers_get_the_same_from_wherever_they_begin() -> None:
    async with running() as server:
        server.gate.close()
        seen = await first_events(server, 1)
        await nobody_reads(server)
        readers = [asyncio.create_task(rest_of(server, seen.completion_id)) for _ in range(3)]
        await eventually(lambda: [kept.num_readers for kept in the_chat(server).shelf._by_id.values()] == [3])
        server.gate.open()
        answers = [await reader for reader in readers]
        late = await rest_of(server, seen.completion_id)
        tail = await rest_of(server, seen.completion_id, starting_after=late.numbers[-2])
        nothing = await rest_of(server, seen.completion_id, starting_after=late.numbers[-1])
    assert answers[0].text() == said("hello", TOKENS)
    assert answers == [late] * 3
    assert late.num_roles() == 1
    assert (tail.numbers, tail.finishes()) == (late.numbers[-1:], [0])
    assert nothing == Events(is_done=True)


async def test_an_answer_goes_on_and_ends_while_nobody_reads() -> None:
    async with running() as server:
        server.gate.close()
        seen = await first_events(server, 1)
        await nobody_reads(server)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        ((_, end),) = server.engine.ended.values()
        rest = await rest_of(server, seen.completion_id)
    assert end.reason is FinishReason.LENGTH
    assert rest.text() == said("hello", TOKENS)


async def test_without_stream_the_whole_answer_comes_at_its_end() -> None:
    async with running() as server:
        server.gate.close()
        seen = await first_events(server, 1)
        reader = asyncio.create_task(get(server, seen.completion_id))
        await eventually(lambda: [kept.num_readers for kept in the_chat(server).shelf._by_id.values()] == [1])
        server.gate.open()
        response = await reader
        answer = response.json()
    assert (answer["id"], answer["object"]) == (seen.completion_id, "chat.completion")
    assert answer["choices"][0]["message"]["content"] == said("hello", TOKENS)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert response.headers["x-should-retry"] == "false"


async def test_a_browser_that_connects_again_goes_on_where_it_was() -> None:
    """An EventSource keeps the address and says in a header what it saw last."""
    async with running() as server:
        seen = await first_events(server, 2)
        after = {"last-event-id": str(seen.numbers[-1])}
        rest = await rest_of(server, seen.completion_id, after, starting_after=0)
        both = await get(server, seen.completion_id, {"last-event-id": "x"}, stream="true")
    numbers = seen.numbers + rest.numbers
    assert numbers == list(range(len(numbers)))
    assert seen.text() + rest.text() == said("hello", TOKENS)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "Last-Event-ID")


# -- what cannot be taken up -----------------------------------------------------------------------------


BAD_QUERIES = [
    ({"stream": "true", "starting_after": "99"}, "starting_after", "at most 6, the last one so far"),
    ({"stream": "true", "starting_after": "7"}, "starting_after", "got 7, allowed: at most 6"),
    ({"stream": "true", "starting_after": "-1"}, "starting_after", "in digits"),
    ({"stream": "true", "starting_after": "two"}, "starting_after", "got 'two', allowed: the number"),
    ({"stream": "true", "starting_after": ""}, "starting_after", "in digits"),
    ({"starting_after": "1"}, "starting_after", "only together with stream=true"),
    ({"stream": "yes"}, "stream", "got 'yes', allowed: true or false"),
    ({"stream": "true", "from": "1"}, "from", "unknown parameter; allowed: stream, starting_after"),
]


async def test_a_number_that_nobody_was_given_is_refused() -> None:
    async with running() as server:
        server.gate.close()
        seen = Events()
        async with cut_short(server) as events:
            seen.take(await anext(events))
            for _ in range(NUM_EVENTS):
                server.gate.step()
                seen.take(await anext(events))
        for query, param, says in BAD_QUERIES:
            response = await get(server, seen.completion_id, **query)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), query
            assert says in error["message"]


async def test_a_number_is_refused_while_there_is_none_at_all() -> None:
    async with running() as server:
        server.gate.close()
        seen = await first_events(server, 1)
        response = await get(server, seen.completion_id, stream="true", starting_after=0)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "starting_after: got 0, allowed: none, for there is no event yet"
    )


async def test_answers_are_their_key_s_alone() -> None:
    one, two = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    async with running() as server:
        seen = await first_events(server, 2, one)
        mine = await rest_of(server, seen.completion_id, one)
        refused = [await get(server, seen.completion_id, headers) for headers in (two, None)]
        refused.append(await get(server, "chatcmpl-0", one))
    assert mine.text() == said("hello", TOKENS)
    for response in refused:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "response_not_found")
        assert error["param"] == "completion_id"


async def test_what_nobody_took_up_in_time_is_gone_and_never_told_in_part() -> None:
    async with running(resume_grace_s=0) as server:
        server.gate.close()
        seen = await first_events(server, 1, max_tokens=500)
        await eventually(lambda: server.engine.aborted)
        crossing = await get(server, seen.completion_id, stream="true")
        server.gate.open()
        await eventually(lambda: server.is_idle)
        later = await get(server, seen.completion_id)
        ((_, end),) = server.engine.ended.values()
    assert end.reason is FinishReason.ABORT
    for response in (crossing, later):
        assert (response.status_code, response.json()["error"]["code"]) == (410, "response_gone")


async def test_an_ended_answer_is_forgotten_after_the_grace_time() -> None:
    async with running(resume_grace_s=0) as server:
        seen = await first_events(server, 1 + NUM_EVENTS)
        assert seen.is_done or seen.finishes()
        await eventually(lambda: not len(the_chat(server).shelf))
        response = await get(server, seen.completion_id)
    assert response.status_code == 410


async def test_an_answer_that_is_not_to_go_on_ends_with_its_last_reader() -> None:
    async with running() as server:
        server.gate.close()
        seen = await first_events(server, 1, on_disconnect="cancel", max_tokens=500)
        await eventually(lambda: server.engine.aborted)
        crossing = await get(server, seen.completion_id)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        later = await get(server, seen.completion_id)
    assert (crossing.status_code, later.status_code) == (410, 410)
    assert len(the_chat(server).shelf) == 0


async def test_numbers_are_for_answers_that_can_be_taken_up() -> None:
    async with running() as server, server.http() as http:
        plain = (await http.post(COMPLETIONS, json=body(on_disconnect=None))).text
        chosen = (await http.post(COMPLETIONS, json=body())).text
    assert "id: " not in plain
    assert "id: 0\ndata: " in chosen
    async with running(on_disconnect="continue") as server, server.http() as http:
        by_default = (await http.post(COMPLETIONS, json=body(on_disconnect=None))).text
        cancelled = (await http.post(COMPLETIONS, json=body(on_disconnect="cancel"))).text
    assert "id: 0\ndata: " in by_default
    assert "id: " not in cancelled


async def test_an_answer_in_one_piece_ends_with_its_client_whatever_the_default() -> None:
    """Nobody knows its id yet, so nobody could take it up."""
    async with running(on_disconnect="continue") as server:
        server.gate.close()
        async with server.http() as http:
            whole = body(stream=False, on_disconnect=None, max_tokens=500)
            request = asyncio.create_task(http.post(COMPLETIONS, json=whole))
            await eventually(lambda: server.service.bridge.num_open)
            request.cancel()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()


class BreaksLater(FakeRunner):
    """In its fourth step it computes no number."""

    def _choose(self, contexts: list[list[int]], batch: Any) -> Any:
        output = super()._choose(contexts, batch)
        if len(self.batches) == 4:
            output.ids[0] = NOT_A_NUMBER
        return output


async def test_an_answer_that_failed_fails_for_whoever_takes_it_up_too() -> None:
    async with running(runner=BreaksLater) as server:
        server.gate.close()
        seen = Events()
        async with cut_short(server, n=2, max_tokens=400) as events:
            for _ in range(2):
                seen.take(await anext(events))
            while len(seen.numbers) < 2:
                server.gate.step()
                seen.take(await anext(events))
        server.gate.open()
        readings = [await rest_of(server, seen.completion_id, starting_after=number) for number in (1, 0)]
        whole = await get(server, seen.completion_id)
        await eventually(lambda: server.is_idle)
        ((_, end),) = server.engine.ended.values()
    assert end.reason is FinishReason.ABORT, "nobody waits for the other choice"
    for rest in readings:
        *_, last = rest.chunks
        assert last["error"]["code"] == "server_error"
        assert not rest.is_done
        assert rest.numbers == list(range(rest.numbers[0], rest.numbers[0] + len(rest.chunks) - 1))
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "server_error")
