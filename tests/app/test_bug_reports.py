"""What other servers of this kind have been reported for, looked for wherever an answer can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import orjson
import pytest
from websockets.asyncio.client import connect

from engine.detokenizer import Vocabulary
from tests.app import harness
from tests.app.event_stream import opened
from tests.app.harness import RunningServer, eventually, running, said
from tests.app.test_views import VIEWS, Ask
from tests.fakes import SamplingRunner

FAMILY = "👩‍👩‍👧‍👦 삼겹살 é नमस्ते 日本 ✓"
EOS = 0

Pieces = list[str]
Reader = Callable[[RunningServer, dict[str, Any]], Awaitable[Pieces]]


# -- what a reader is given, piece by piece --------------------------------------------------------------


async def events_of(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with server.http() as http:
        content = (await http.post(path, json=body | {"stream": True, "temperature": 0})).text
    lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    return [orjson.loads(line) for line in lines if line != "[DONE]"]


async def chat(server: RunningServer, fields: dict[str, Any]) -> Pieces:
    messages = [{"role": "user", "content": "hello"}]
    chunks = await events_of(server, "/v1/chat/completions", {"messages": messages} | fields)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return [delta["content"] for delta in deltas if "content" in delta and "role" not in delta]


async def completion(server: RunningServer, fields: dict[str, Any]) -> Pieces:
    chunks = await events_of(server, "/v1/completions", {"prompt": "user:hello;"} | fields)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["text"] for choice in choices if choice["finish_reason"] is None]


def as_response(fields: dict[str, Any]) -> dict[str, Any]:
    limit = {"max_output_tokens": fields["max_tokens"]}
    return {"input": "hello"} | limit | {k: v for k, v in fields.items() if k != "max_tokens"}


async def response(server: RunningServer, fields: dict[str, Any]) -> Pieces:
    async with opened(server, "/v1/responses", as_response(fields) | {"stream": True}) as stream:
        events = await stream.rest()
    return [event["delta"] for event in events if event["type"].endswith(".delta")]


async def response_socket(server: RunningServer, fields: dict[str, Any]) -> Pieces:
    async with server.socket() as socket:
        await socket.send(type="response.create", **as_response(fields))
        events = await socket.until("response.completed", "response.incomplete", "response.failed", "error")
    return [event["delta"] for event in events if event["type"].endswith(".delta")]


async def ui_chat(server: RunningServer, fields: dict[str, Any]) -> Pieces:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    head = {"type": "send", "requestId": "r", "id": "chat", "trigger": "submit-message"}
    async with server.socket("/api/chat") as socket:
        await socket.send(**head, messages=[message], headers={}, body=fields | {"temperature": 0})
        frames = await socket.until("end", "error")
    chunks = [frame["chunk"] for frame in frames if frame["type"] == "chunk"]
    return [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"]


READERS: dict[str, Reader] = {
    each.__name__: each for each in (chat, completion, response, response_socket, ui_chat)
}

ASKING = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/responses/input_tokens": "input",
    "/v1/tokenize": "prompt",
}
"""Path -> the field that the prompt is in."""


def asking(path: str, text: str, **fields: Any) -> dict[str, Any]:
    content = [{"role": "user", "content": text}] if ASKING[path] == "messages" else text
    return {ASKING[path]: content} | fields


# -- text -------------------------------------------------------------------------------------------------


def byte_vocabulary() -> Vocabulary:
    """A token for each byte: nothing but characters cut into pieces."""
    return Vocabulary(token_bytes=(b"", *(bytes([byte]) for byte in range(256))), eos_ids=frozenset({EOS}))


def recite(server: RunningServer, text: bytes, prompt_tokens: int) -> None:
    """The model says this, a byte at a time, and ends."""
    ids = [byte + 1 for byte in text] + [EOS]
    server.runner.script = lambda context: ids[len(context) - prompt_tokens]


@pytest.fixture
def bytes_for_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "fake_vocabulary", byte_vocabulary)


@pytest.mark.usefixtures("bytes_for_tokens")
async def test_characters_that_come_in_pieces_come_whole_to_every_reader() -> None:
    async with running() as server:
        recite(server, FAMILY.encode(), len("user:hello;"))
        for name, read in READERS.items():
            pieces = await read(server, {"max_tokens": 200})
            assert "".join(pieces) == FAMILY, name
            assert not any("\ufffd" in piece for piece in pieces), name
            assert all(pieces), f"{name}: an empty piece"


@pytest.mark.usefixtures("bytes_for_tokens")
async def test_an_answer_that_ends_inside_a_character_is_the_same_for_every_reader() -> None:
    whole = "é日"
    async with running() as server:
        recite(server, whole.encode(), len("user:hello;"))
        for limit in range(1, len(whole.encode()) + 1):
            told = {"".join(await read(server, {"max_tokens": limit})) for read in READERS.values()}
            # What was begun is shown as what it is: no character.
            assert told == {whole.encode()[:limit].decode(errors="replace")}


async def test_no_part_of_a_stop_string_is_shown_and_what_was_held_back_for_one_is() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    stops = {
        "DEFGHIJ": "ABC",
        "A": "",
        "DEFGHIX": alphabet,  # begins, and comes to nothing
        "XYZ.": alphabet,  # is begun when the answer ends
    }
    async with running() as server:
        start = len("user:hello;")
        letters = harness.fake_ids(alphabet)
        server.runner.script = lambda context: letters[(len(context) - start) % 26]
        for stop, wanted in stops.items():
            for name, read in READERS.items():
                pieces = await read(server, {"max_tokens": 26, "stop": [stop]})
                assert "".join(pieces) == wanted, (name, stop)
                assert all(pieces), f"{name}: an empty piece"


# -- requests that are none -------------------------------------------------------------------------------

NO_REQUESTS = {
    "GBK": '{"prompt": "你好"}'.encode("gbk"),
    "a byte that begins nothing": b'{"prompt": "\xff"}',
    "UTF-16": '{"prompt": "hi"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "hi"}',
    "half a pair": rb'{"prompt": "\ud83d"}',
    "a pair the wrong way round": rb'{"prompt": "\udc00\ud83d"}',
    "cut off": b'{"prompt": "h',
    "two objects": b"{}{}",
    "a deep nest": b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "no number": b'{"prompt": "hi", "temperature": NaN}',
    "a number without end": b'{"prompt": "hi", "temperature": 1e999}',
    "null": b"null",
    "a string": b'"hi"',
    "nothing": b"",
}


async def test_what_is_no_json_object_is_refused_everywhere_and_harms_nobody() -> None:
    async with running() as server, server.http() as http:
        for path in ASKING:
            for name, content in NO_REQUESTS.items():
                answer = await http.post(path, content=content)
                assert answer.status_code == 400, (path, name)
                assert answer.json()["error"]["type"] == "invalid_request_error"
        assert server.stats().num_ticks == 0
        assert await chat(server, {"max_tokens": 8}) != []


async def test_a_prompt_of_the_wrong_shape_is_refused_by_name() -> None:
    async with running() as server, server.http() as http:
        for path, field in ASKING.items():
            for wrong in ([], {}, 5, True, [None], [[]], [{}], [{"role": "wizard", "content": "hi"}]):
                answer = await http.post(path, json={field: wrong})
                assert answer.status_code == 400, (path, wrong)
                assert answer.json()["error"]["param"].split(".")[0] == field, (path, wrong)


async def test_no_order_of_roles_is_a_fault() -> None:
    system, user, assistant = ({"role": role, "content": "hi"} for role in ("system", "user", "assistant"))
    orders = (
        [system],
        [user, user],
        [assistant, user],
        [system, system, user],
        [user, system],
        [user, assistant, assistant],
        [assistant],
    )
    async with running() as server, server.http() as http:
        for messages in orders:
            for path, field in (("/v1/chat/completions", "messages"), ("/v1/responses", "input")):
                limit = {"max_tokens" if field == "messages" else "max_output_tokens": 5}
                answer = await http.post(path, json={field: messages, **limit})
                assert answer.status_code == 200, (path, messages)


# -- lengths ----------------------------------------------------------------------------------------------


async def test_the_context_is_filled_to_its_last_token_and_never_overrun_whoever_asks() -> None:
    overhead = len("user:;")
    async with running(num_blocks=8, max_model_len=64) as server:
        for name, view in VIEWS.items():
            told = await view(server, Ask("x" * (63 - overhead), 1, {}))
            assert (told.input_tokens, told.output_tokens) == (63, 1), name
    async with running(num_blocks=8, max_model_len=64) as server, server.http() as http:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            for length, most in ((64, 1), (65, 1), (640, 1), (63, 2), (20, 60), (20, 2**31 - 1)):
                text = "x" * (length if path == "/v1/completions" else length - overhead)
                answer = await http.post(path, json=asking(path, text, **{limit: most}))
                assert answer.status_code == 400, (path, length, most)
                error = answer.json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert {str(length), "64"} <= set(error["message"].replace(",", " ").split())
        assert server.stats().num_ticks == 0, "the engine was asked to compute something"


# -- parameters -------------------------------------------------------------------------------------------


async def test_a_temperature_of_almost_nothing_is_none() -> None:
    async with running(runner=SamplingRunner) as server, server.http() as http:

        async def text(**fields: Any) -> str:
            body = asking("/v1/completions", "user:hello;", max_tokens=20, seed=1, ignore_eos=True)
            whole: dict[str, Any] = (await http.post("/v1/completions", json=body | fields)).json()
            said: str = whole["choices"][0]["text"]
            return said

        greedy = await text(temperature=0)
        assert [await text(temperature=heat) for heat in (1e-9, 1e-5, 5e-324)] == [greedy] * 3
        assert await text(temperature=2) != greedy


WRONG_VALUES: dict[str, tuple[object, ...]] = {
    "temperature": (-0.1, 2.01, 1e9, "0.7", True, [], {}),
    "top_p": (-1, 0, 1.01, "1", True),
    "top_k": (-2, 0.5, "1", True, 2**31),
    "min_p": (-0.1, 1.1, "0"),
    "repetition_penalty": (0, -1, 2.1, "1"),
    "presence_penalty": (-2.1, 2.1, 1e308),
    "seed": (1.5, 2**63, "7", True),
    "stop": ("", [""], ["x"] * 17, 5, [None]),
    "logit_bias": ({"-1": 0}, {"x": 0}, {"1": 101}, {"1": "5"}, []),
    "stream": (1, 0, "true"),
}


async def test_values_out_of_range_or_of_another_type_are_refused_everywhere() -> None:
    async with running() as server, server.http() as http:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            for field, values in WRONG_VALUES.items():
                for value in values:
                    answer = await http.post(path, json=asking(path, "hi", **{field: value}))
                    assert answer.status_code == 400, (path, field, value)
                    assert answer.json()["error"]["param"].split(".")[0] == field
        assert server.stats().num_ticks == 0


async def test_zero_is_not_false_and_one_is_not_true_at_any_depth() -> None:
    async with running() as server, server.http() as http:
        for path, fields in (
            ("/v1/chat/completions", {"stream": True, "stream_options": {"include_obfuscation": 0}}),
            ("/v1/chat/completions", {"parallel_tool_calls": 1}),
            ("/v1/responses", {"stream_options": {"include_obfuscation": 0}}),
            ("/v1/responses", {"store": 0}),
        ):
            answer = await http.post(path, json=asking(path, "hi", **fields))
            assert answer.status_code == 400, fields


# -- counts -----------------------------------------------------------------------------------------------


async def test_usage_is_what_a_recount_finds_over_all_choices_and_stops() -> None:
    answer = said("hello", 40)
    stop = answer[10:13]
    drawn = answer.index(stop) + len(stop)
    chat_body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    async with running() as server:
        for path, body in (
            ("/v1/chat/completions", chat_body),
            ("/v1/completions", {"prompt": "user:hello;"}),
        ):
            for fields, count in (({"n": 3, "max_tokens": 7}, 21), ({"max_tokens": 40, "stop": stop}, drawn)):
                options = {"stream_options": {"include_usage": True}}
                *chunks, last = await events_of(server, path, body | fields | options)
                assert all(chunk["usage"] is None for chunk in chunks)
                assert last["usage"]["prompt_tokens"] == len("user:hello;")
                assert last["usage"]["completion_tokens"] == count
                assert last["usage"]["total_tokens"] == len("user:hello;") + count
                ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
                assert sorted(each["index"] for each in ends) == list(range(fields.get("n", 1)))


# -- health and connections -------------------------------------------------------------------------------


async def test_probes_are_answered_while_the_engine_stands_still_and_ask_nothing_of_it() -> None:
    async with running() as server, server.http() as http:
        server.gate.close()
        running_answer = asyncio.create_task(chat(server, {"max_tokens": 8}))
        await eventually(lambda: server.stats().num_running == 1)
        submitted = len(server.engine.submitted)
        paths = ("/health", "/livez", "/readyz", "/metrics", "/v1/models", "/openapi.json")
        answers = await asyncio.gather(*(http.get(path) for path in paths * 20))
        assert {answer.status_code for answer in answers} == {200}
        assert len(server.engine.submitted) == submitted
        server.gate.open()
        assert "".join(await running_answer) == said("hello", 8)


async def test_sockets_do_not_compress() -> None:
    """What is offered for it is declined: it would cost memory for every connection."""
    async with running() as server:
        for path in ("/v1/responses", "/api/chat"):
            async with connect(f"ws://127.0.0.1:{server.port}{path}", compression="deflate") as connection:
                assert connection.protocol.extensions == []


async def test_every_phase_of_a_request_can_be_left_a_hundred_times_and_the_counts_come_back() -> None:
    async with running(max_num_seqs=4, never_ends=True) as server:
        server.gate.close()
        body = asking("/v1/chat/completions", "hello", max_tokens=400, stream=True)
        async with httpx.AsyncClient(base_url=server.url, timeout=httpx.Timeout(20, pool=None)) as http:
            tasks = [asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(100)]
            await eventually(lambda: server.holds(100))
            server.gate.step(3)
            await eventually(lambda: server.stats().num_waiting == 96)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        async with server.http() as http:
            lines = [each for each in (await http.get("/metrics")).text.splitlines() if each[0] != "#"]
        counts = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
        assert counts['tickwire:request_success_total{finished_reason="abort"}'] == 100
        assert counts["tickwire:num_requests_running"] == counts["tickwire:num_requests_waiting"] == 0
