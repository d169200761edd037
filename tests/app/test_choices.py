"""Several choices of one request, and log probabilities, over real connections. The fake model samples here
as the oracle does; what a request must get is what an engine driven by hand gives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
import pytest

from engine.batch import NOT_A_NUMBER
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import ChosenLogprob, FinishReason, Request, TokenEvent
from engine.sampling import SamplingParams
from tests.app.harness import RunningServer, eventually, fake_prompt, running
from tests.fakes import Recorder, SamplingRunner, fake_ids, fake_vocabulary, run_until_idle

HELLO = [{"role": "user", "content": "hello"}]
VOCABULARY = fake_vocabulary()


@dataclass
class Choice:
    text: str = ""
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    num_tokens: int = 0


def by_hand(**sampling: Any) -> list[Choice]:
    """What the engine says to HELLO."""
    recorder = Recorder()
    engine = Engine(SamplingRunner(64), VOCABULARY, EngineConfig(64, 1024), recorder)
    params = SamplingParams(seed=7, max_tokens=20, ignore_eos=True, **sampling)
    engine.submit(Request("x", fake_ids(fake_prompt(HELLO)), params, arrival=0.0))
    run_until_idle(engine)
    choices = [Choice() for _ in range(params.n)]
    for event in recorder.events("x"):
        if isinstance(event, TokenEvent):
            choices[event.choice].text += event.text
            choices[event.choice].logprobs += event.logprobs
        choices[event.choice].num_tokens = event.num_output_tokens
    return choices


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 20, "seed": 7, "ignore_eos": True} | fields


async def chunks_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    async with server.http() as http:
        response = await http.post("/v1/chat/completions", json=body(stream=True, **fields))
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


async def test_choices_in_one_piece() -> None:
    async with running(runner=SamplingRunner) as server, server.http() as http:
        answer = (await http.post("/v1/chat/completions", json=body(n=3))).json()
        metrics = (await http.get("/metrics")).text
        alone = (await http.post("/v1/chat/completions", json=body())).json()
    wanted = [choice.text for choice in by_hand(n=3)]
    assert len(set(wanted)) == 3
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == wanted
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert alone["choices"][0]["message"]["content"] == wanted[0]
    prompt = len(fake_prompt(HELLO))
    assert answer["usage"]["prompt_tokens"] == prompt
    assert f"tickwire:prompt_tokens_total {prompt:.1f}" in metrics
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["usage"]["total_tokens"] == prompt + 60


async def test_choices_are_streamed_mixed_and_each_begins_and_ends_once() -> None:
    async with running(runner=SamplingRunner) as server:
        *chunks, usage = await chunks_of(server, n=3, stop=["e"], stream_options={"include_usage": True})
    wanted = by_hand(n=3, stop=("e",))
    events: list[list[dict[str, Any]]] = [[], [], []]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert chunk["usage"] is None
        events[choice["index"]].append(choice)
    for of_choice, expected in zip(events, wanted, strict=True):
        first, *texts, last = of_choice
        assert first["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert all(set(text["delta"]) == {"content"} for text in texts)
        assert "".join(text["delta"]["content"] for text in texts) == expected.text
        assert last["delta"] == {}
        assert last["finish_reason"] in ("stop", "length")
        assert {choice["finish_reason"] for choice in (first, *texts)} == {None}
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order[:3] == [0, 1, 2]
    assert sum(a != b for a, b in pairwise(order)) > 5, "one choice came after the other"
    assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == len(fake_prompt(HELLO))
    assert usage["usage"]["completion_tokens"] == sum(choice.num_tokens for choice in wanted) < 60


async def test_all_choices_end_when_their_client_leaves() -> None:
    async with running(runner=SamplingRunner) as server:
        server.gate.close()
        async with (
            server.http() as http,
            http.stream("POST", "/v1/chat/completions", json=body(n=3, stream=True, max_tokens=400)),
        ):
            await eventually(lambda: server.holds(3))
            server.gate.step(3)
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: server.is_idle)
    metrics = server.service.bridge._metrics.exposition().decode()
    assert 'request_success_total{finished_reason="abort"} 3.0' in metrics


class OneBreaks(SamplingRunner):
    """In its third step the first row is not a number."""

    def _choose(self, contexts: list[list[int]], batch: Any) -> Any:
        output = super()._choose(contexts, batch)
        if len(self.batches) == 3:
            output.ids[0] = NOT_A_NUMBER
        return output


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_fails_fails_the_answer_and_ends_the_others(stream: bool) -> None:
    async with running(runner=OneBreaks) as server, server.http() as http:
        response = await http.post("/v1/chat/completions", json=body(n=3, stream=stream, max_tokens=400))
        await eventually(lambda: server.is_idle)
    if stream:
        *_, last, rest = response.text.split("\n\n")
        error = orjson.loads(last.removeprefix("data: "))["error"]
        assert (rest, "[DONE]" in response.text) == ("", False)
    else:
        error = response.json()["error"]
        assert response.status_code == 500
        assert response.headers["x-should-retry"] == "false"
    assert (error["code"], error["type"]) == ("server_error", "server_error")
    ((_, end),) = server.engine.ended.values()
    assert end.reason is FinishReason.ABORT


def written(logprobs: list[ChosenLogprob]) -> list[dict[str, Any]]:
    def entry(token: int, value: float) -> dict[str, Any]:
        content = VOCABULARY.token_bytes[token]
        return {"token": content.decode(), "logprob": pytest.approx(value), "bytes": list(content)}

    return [entry(*c.chosen) | {"top_logprobs": [entry(*each) for each in c.top]} for c in logprobs]


async def test_log_probabilities_of_a_chat_completion() -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "n": 2, "stop": "e"}
    async with running(runner=SamplingRunner) as server, server.http() as http:
        answer = (await http.post("/v1/chat/completions", json=body(**fields))).json()
        chunks = await chunks_of(server, **fields)
        few = (await http.post("/v1/chat/completions", json=body(logprobs=True))).json()
        none = (await http.post("/v1/chat/completions", json=body())).json()
    wanted = by_hand(n=2, logprobs=3, stop=("e",))
    for index, (choice, expected) in enumerate(zip(answer["choices"], wanted, strict=True)):
        assert choice["logprobs"]["refusal"] is None
        assert choice["logprobs"]["content"] == written(expected.logprobs)
        joined = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
        assert joined.decode() == choice["message"]["content"] == expected.text
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        streamed = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert streamed == choice["logprobs"]["content"]
        for part in mine[1:-1]:
            text = "".join(entry["token"] for entry in part["logprobs"]["content"])
            assert text == part["delta"]["content"]
    assert {len(entry["top_logprobs"]) for entry in few["choices"][0]["logprobs"]["content"]} == {0}
    assert none["choices"][0]["logprobs"] is None


async def test_log_probabilities_of_a_response() -> None:
    fields = {"temperature": 1, "seed": 7, "max_output_tokens": 20, "ignore_eos": True}
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with running(runner=SamplingRunner) as server, server.socket() as socket:
        events = await socket.answer("hello", **fields, **include)
        plain = await socket.answer("hello", **fields)
    (wanted,) = by_hand(logprobs=2)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == written(wanted.logprobs)
    for delta in deltas:
        assert "".join(entry["token"] for entry in delta["logprobs"]) == delta["delta"]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    part = events[-1]["response"]["output"][0]["content"][0]
    assert done["logprobs"] == part["logprobs"] == written(wanted.logprobs)
    assert part["text"] == wanted.text
    assert all(event.get("logprobs", []) == [] for event in plain)


async def test_bad_words_do_not_appear_whether_a_space_is_before_them_or_not() -> None:
    async with running(runner=SamplingRunner) as server, server.http() as http:

        async def text(**fields: Any) -> str:
            response = await http.post("/v1/chat/completions", json=body(max_tokens=60, **fields))
            content: str = response.json()["choices"][0]["message"]["content"]
            return content

        free = await text()
        words = [free[5:7], free[20]]
        tame = await text(bad_words=words)
    assert free != tame
    assert not any(word in tame for word in words)
    (_, (request, _)) = server.engine.submitted
    assert request.sampling.bad_words == tuple(
        fake_ids(spelling) for word in words for spelling in (word, f" {word}")
    )


async def test_many_choices_at_once_from_many_clients() -> None:
    wanted = [choice.text for choice in by_hand(n=5)]
    async with running(runner=SamplingRunner, num_blocks=40, max_num_seqs=8) as server, server.http() as http:
        answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body(n=5)) for _ in range(6)))
    for answer in answers:
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == wanted
