"""POST /v1/completions: texts that are continued, one or many in a request."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import orjson
import pytest

from app.protocol.completions import UNSUPPORTED, CompletionRequest, parse_completion
from app.protocol.errors import ApiError
from app.protocol.logprobs import legacy_entries
from engine.batch import NOT_A_NUMBER
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine
from engine.request import ChosenLogprob, FinishReason, Request, TokenEvent, TokenLogprob
from engine.sampling import SamplingParams
from tests.app.harness import MODEL, RunningServer, eventually, running
from tests.fakes import (
    Recorder,
    SamplingRunner,
    continuation,
    fake_ids,
    fake_vocabulary,
    run_until_idle,
)

PATH = "/v1/completions"
VOCABULARY = fake_vocabulary()


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "once upon", "temperature": 0, "max_tokens": 20} | fields


def continued(text: str, count: int = 20) -> str:
    """What the fake model adds to a text: the oracle."""
    return b"".join(VOCABULARY.token_bytes[token] for token in continuation(fake_ids(text), count)).decode()


def texts_of(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


async def chunks_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    async with server.http() as http:
        response = await http.post(PATH, json=body(stream=True, **fields))
    assert response.status_code == 200
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


def of_choice(chunks: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


# -- over HTTP -------------------------------------------------------------------------------------------


async def test_a_text_is_continued_as_it_is() -> None:
    async with running() as server, server.http() as http:
        response = await http.post(PATH, json=body())
        short = (await http.post(PATH, json=body(max_tokens=None))).json()
        from_tokens = (await http.post(PATH, json=body(prompt=list(fake_ids("once upon"))))).json()
    answer = response.json()
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": continued("once upon"),
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert (
        answer["usage"] | {"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29} == answer["usage"]
    )
    assert texts_of(short) == [continued("once upon", 16)], "the API's own default"
    assert texts_of(from_tokens) == texts_of(answer)
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-ratelimit-remaining-requests"]


async def test_many_prompts_are_one_request_with_choices_numbered_prompt_by_prompt() -> None:
    prompts = ["once upon", "a time", "there was"]
    async with running() as server, server.http() as http:
        answer = (await http.post(PATH, json=body(prompt=prompts))).json()
        tokens = (await http.post(PATH, json=body(prompt=[list(fake_ids(each)) for each in prompts]))).json()
        twice = (await http.post(PATH, json=body(prompt=prompts, n=2))).json()
    wanted = [continued(each) for each in prompts]
    assert texts_of(answer) == texts_of(tokens) == wanted
    assert texts_of(twice) == [text for text in wanted for _ in range(2)]
    sizes = sum(map(len, prompts))
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (sizes, 60)
    assert (twice["usage"]["prompt_tokens"], twice["usage"]["completion_tokens"]) == (sizes, 120)


async def test_choices_are_streamed_mixed_and_each_ends_once() -> None:
    prompts = ["once upon", "a time", "there was"]
    options = {"include_usage": True}
    async with running() as server:
        *chunks, usage = await chunks_of(server, prompt=prompts, n=2, stream_options=options)
        plain = await chunks_of(server)
    for index in range(6):
        *texts, last = of_choice(chunks, index)
        assert "".join(each["text"] for each in texts) == continued(prompts[index // 2])
        assert all(each["text"] and each["finish_reason"] is None for each in texts)
        assert (last["text"], last["finish_reason"]) == ("", "length")
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert sum(a != b for a, b in pairwise(order)) > 5, "one choice came after the other"
    assert len({(chunk["id"], chunk["created"]) for chunk in (*chunks, usage)}) == 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 120)
    assert all("usage" not in chunk for chunk in plain)


async def test_an_echo_comes_before_the_answer() -> None:
    prompts: list[Any] = ["once upon", list(fake_ids("a time"))]
    async with running() as server, server.http() as http:
        answer = (await http.post(PATH, json=body(prompt=prompts, echo=True, n=2))).json()
        chunks = await chunks_of(server, prompt=prompts, echo=True, n=2)
    wanted = [text + continued(text) for text in ("once upon", "once upon", "a time", "a time")]
    assert texts_of(answer) == wanted
    assert ["".join(each["text"] for each in of_choice(chunks, index)) for index in range(4)] == wanted
    assert [chunk["choices"][0]["text"] for chunk in chunks[:4]] == [
        "once upon",
        "once upon",
        "a time",
        "a time",
    ]


async def test_a_stop_string_ends_the_text_before_it() -> None:
    text = continued("once upon")
    stop = text[10:13]
    async with running() as server, server.http() as http:
        choice = (await http.post(PATH, json=body(stop=stop))).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        text[: text.index(stop)],
        "stop",
        stop,
    )


async def test_what_a_model_wants_before_a_text_is_put_there() -> None:
    prefix = fake_ids("BOS")
    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "text_prefix", prefix)
        text = (await http.post(PATH, json=body())).json()
        tokens = (await http.post(PATH, json=body(prompt=list(fake_ids("once upon"))))).json()
    assert texts_of(text) == [continued("BOSonce upon")]
    assert texts_of(tokens) == [continued("once upon")], "tokens are taken as they are"
    assert text["usage"]["prompt_tokens"] == 12


async def test_log_probabilities_in_the_older_shape() -> None:
    recorder = Recorder()
    engine = Engine(SamplingRunner(64), VOCABULARY, EngineConfig(64, 1024), recorder)
    params = SamplingParams(seed=7, max_tokens=20, min_tokens=20, logprobs=2)
    engine.submit(Request("x", fake_ids("once upon"), params, arrival=0.0))
    run_until_idle(engine)
    wanted = [
        each for event in recorder.events("x") if isinstance(event, TokenEvent) for each in event.logprobs
    ]
    fields = {"temperature": 1, "seed": 7, "min_tokens": 20}
    async with running(runner=SamplingRunner) as server, server.http() as http:
        whole = (await http.post(PATH, json=body(logprobs=2, **fields))).json()["choices"][0]
        chunks = of_choice(await chunks_of(server, logprobs=2, **fields), 0)
        few = (await http.post(PATH, json=body(logprobs=0, **fields))).json()["choices"][0]
    logprobs = whole["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert "".join(logprobs["tokens"]) == whole["text"]
    assert logprobs["text_offset"] == list(range(20))
    assert logprobs["token_logprobs"] == pytest.approx([each.chosen.logprob for each in wanted])
    for top, token, each in zip(logprobs["top_logprobs"], logprobs["tokens"], wanted, strict=True):
        likeliest = {VOCABULARY.token_bytes[t.token_id].decode(): t.logprob for t in each.top}
        assert top == pytest.approx(likeliest | {token: each.chosen.logprob})
        assert list(top.values()) == sorted(top.values(), reverse=True)
    for column, values in logprobs.items():
        assert [
            value for chunk in chunks if chunk["logprobs"] for value in chunk["logprobs"][column]
        ] == values
    for chunk in chunks[:-1]:
        assert "".join(chunk["logprobs"]["tokens"]) == chunk["text"]
    assert [len(top) for top in few["logprobs"]["top_logprobs"]] == [1] * 20


async def test_the_context_is_filled_to_the_last_token_and_not_beyond() -> None:
    """128 tokens of prompt and answer; the last one needs no place in memory, but counts."""
    async with running(num_blocks=8) as server, server.http() as http:
        for size, wanted, fits in (
            (127, 1, True),
            (126, 2, True),
            (128, 1, False),
            (127, 2, False),
            (1280, 1, False),
        ):
            response = await http.post(PATH, json=body(prompt="x" * size, max_tokens=wanted))
            if fits:
                assert texts_of(response.json()) == [continued("x" * size, wanted)]
                continue
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            assert str(size) in error["message"]
            assert "128" in error["message"]


# -- all or nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_cannot_be_continued_leaves_nothing_running(stream: bool) -> None:
    prompts: list[Any] = ["once upon", "long " * 400, "there was"]
    async with running(num_blocks=64) as server, server.http() as http:
        response = await http.post(PATH, json=body(prompt=prompts, stream=stream, max_tokens=500))
        await eventually(lambda: server.is_idle)
        bad = await http.post(PATH, json=body(prompt=[[1, 2], [1, 9999]], stream=stream, max_tokens=500))
        await eventually(lambda: server.is_idle)
        assert server.engine.ended, "the first had begun"
    assert {end.reason for _, end in server.engine.ended.values()} == {FinishReason.ABORT}
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (
        400,
        "prompt.1",
        "context_length_exceeded",
    )
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "prompt")
    assert "got the token id 9999, allowed: 0 to" in bad.json()["error"]["message"]


async def test_a_full_queue_refuses_the_whole_request() -> None:
    async with running(max_num_seqs=1, engine={"max_queue_per_session": 4}) as server, server.http() as http:
        server.gate.close()
        key = {"authorization": "Bearer one"}
        first = asyncio.create_task(http.post(PATH, json=body(max_tokens=400), headers=key))
        await eventually(lambda: server.stats().num_running == 1)
        waiting = asyncio.create_task(http.post(PATH, json=body(prompt=["a", "b"]), headers=key))
        await eventually(lambda: server.stats().num_waiting == 2)
        refused = await http.post(PATH, json=body(prompt=["a", "b", "c"]), headers=key)
        never = await http.post(PATH, json=body(prompt=["a"] * 5), headers=key)
        assert server.service.bridge.num_open <= 5
        server.gate.open()
        assert [(await each).status_code for each in (first, waiting)] == [200, 200]
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-limit-requests"] == "4"
    assert int(refused.headers["retry-after-ms"]) >= 1
    assert never.status_code == 400
    assert never.json()["error"]["message"].startswith("prompt: got 5 prompts with n=1, allowed: at most 4 ")


async def test_all_choices_end_when_their_client_leaves() -> None:
    async with running() as server:
        server.gate.close()
        fields = body(prompt=["once upon", "a time"], n=2, stream=True, max_tokens=400)
        async with server.http() as http, http.stream("POST", PATH, json=fields):
            await eventually(lambda: server.holds(4))
            server.gate.step(3)
        await eventually(lambda: len(server.engine.aborted) == 2)
        server.gate.open()
        await eventually(lambda: server.is_idle)
    metrics = server.service.bridge._metrics.exposition().decode()
    assert 'request_success_total{finished_reason="abort"} 4.0' in metrics


class OneBreaks(SamplingRunner):
    """In its fourth step the first row is not a number."""

    def _choose(self, contexts: list[list[int]], batch: Any) -> Any:
        output = super()._choose(contexts, batch)
        if len(self.batches) == 4:
            output.ids[0] = NOT_A_NUMBER
        return output


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_fails_fails_the_answer_and_ends_the_others(stream: bool) -> None:
    fields = body(prompt=["once upon", "a time"], stream=stream, max_tokens=400, ignore_eos=True)
    async with running(runner=OneBreaks) as server, server.http() as http:
        response = await http.post(PATH, json=fields)
        await eventually(lambda: server.is_idle)
    if stream:
        *_, last, rest = response.text.split("\n\n")
        assert (rest, "[DONE]" in response.text) == ("", False)
        error = orjson.loads(last.removeprefix("data: "))["error"]
    else:
        assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")
        error = response.json()["error"]
    assert error["code"] == "server_error"
    reasons = sorted(end.reason.value for _, end in server.engine.ended.values())
    assert reasons == ["abort", "error"]


# -- requests as data ------------------------------------------------------------------------------------


def parsed(**fields: Any) -> CompletionRequest:
    return parse_completion(orjson.dumps({"prompt": "x"} | fields))


REFUSED = [
    (
        {"prompt": None},
        "prompt",
        "invalid_type",
        "got null, allowed: a non-empty string or list of token ids",
    ),
    ({"prompt": 5}, "prompt", "invalid_type", "got 5"),
    ({"prompt": {"a": 1}}, "prompt", "invalid_type", "got an object"),
    ({"prompt": ""}, "prompt", "empty_value", "got '', allowed: a non-empty string"),
    ({"prompt": []}, "prompt", "empty_value", "got an empty list"),
    ({"prompt": ["x", ""]}, "prompt.1", "empty_value", "got ''"),
    ({"prompt": [[1], []]}, "prompt.1", "empty_value", "got an empty list"),
    ({"prompt": ["x", 5]}, "prompt.1", "invalid_type", "got 5"),
    ({"prompt": [5, "x"]}, "prompt.1", "invalid_type", "got 'x', allowed: a token id"),
    ({"prompt": [[5, -1]]}, "prompt.0.1", "invalid_type", "got -1, allowed: a token id"),
    ({"prompt": [True]}, "prompt.0", "invalid_type", "got true, allowed: a token id"),
    ({"prompt": [1.5]}, "prompt.0", "invalid_type", "got 1.5, allowed: a token id"),
    ({"prompt": [2**40]}, "prompt.0", "invalid_type", "allowed: a token id"),
    (
        {"prompt": ["x"] * 65, "n": 2},
        "prompt",
        "invalid_value",
        "got 65 prompts with n=2, allowed: at most 128",
    ),
    ({"n": 129}, "n", "out_of_range", "an integer from 1 to 128"),
    ({"best_of": 3}, "best_of", "invalid_value", "got 3, allowed: the same as n, 1"),
    ({"n": 2, "best_of": 1}, "best_of", "invalid_value", "got 1, allowed: the same as n, 2"),
    ({"suffix": "the end"}, "suffix", "unsupported_value", "got 'the end'"),
    ({"echo": True, "logprobs": 1}, "echo", "invalid_value", "only without logprobs"),
    ({"echo": "yes"}, "echo", "invalid_type", "true or false"),
    ({"logprobs": 21}, "logprobs", "out_of_range", "an integer from 0 to 20"),
    ({"logprobs": True}, "logprobs", "invalid_type", "got true"),
    ({"max_tokens": 0}, "max_tokens", "out_of_range", "at least 1"),
    ({"min_tokens": 17}, "min_tokens", "invalid_value", "at most max_tokens (16)"),
    ({"stream_options": {}}, "stream_options", "invalid_value", "only together with stream=true"),
    ({"on_disconnect": "continue"}, "on_disconnect", "invalid_value", "allowed: 'cancel'"),
    ({"messages": []}, "messages", "unknown_parameter", "unknown field"),
    ({"temperature": 3}, "temperature", "out_of_range", "a number from 0 to 2"),
]


@pytest.mark.parametrize(("fields", "param", "code", "says"), REFUSED)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str, code: str, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message.startswith(f"{param}: ")
    assert says in error.message


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(ApiError, match="prompt: missing, expected: a non-empty string") as caught:
        parse_completion(b"{}")
    assert caught.value.code == "missing_required_parameter"


def test_values_that_change_nothing_are_fine() -> None:
    request = parsed(suffix=None, best_of=2, n=2, echo=False, on_disconnect="cancel", logprobs=None)
    assert request.sampling == SamplingParams(n=2, max_tokens=16, in_mid_text=True)


SDK_FIELDS = """
    model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop
    stream stream_options suffix temperature top_p user
"""
"""As of openai 3.57."""


@pytest.mark.parametrize("field", SDK_FIELDS.split())
def test_every_field_of_the_sdk_works_or_is_refused_by_name(field: str) -> None:
    assert (field in UNSUPPORTED) != (field in CompletionRequest.model_fields)


def test_tokens_inside_a_character_are_named_by_bytes_and_have_its_place() -> None:
    vocabulary = Vocabulary((b"", b"a", b"\xc3", b"\xa9", "é".encode(), b"b\xc3"), frozenset({0}))

    def chosen(token: int, *top: tuple[int, float]) -> ChosenLogprob:
        return ChosenLogprob(TokenLogprob(token, -1.0), tuple(TokenLogprob(*each) for each in top))

    tokens = [chosen(1), chosen(2), chosen(3, (4, -0.5)), chosen(5), chosen(3), chosen(1), chosen(0)]
    entries = legacy_entries(tokens, vocabulary, offset=10)
    assert entries["tokens"] == [
        "a",
        "bytes:\\xc3",
        "bytes:\\xa9",
        "bytes:\\x62\\xc3",
        "bytes:\\xa9",
        "a",
        "token_id:0",
    ]
    # The text is "a", "é", "bé", "a".
    assert entries["text_offset"] == [10, 11, 11, 12, 13, 14, 15]
    assert entries["top_logprobs"][2] == {"é": -0.5, "bytes:\\xa9": -1.0}
