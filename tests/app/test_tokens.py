"""POST /v1/tokenize and /v1/detokenize."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from app.protocol.tokens import TokenTexts
from engine.detokenizer import Vocabulary
from tests.app.harness import MODEL, PATIENCE, eventually, fake_prompt, running
from tests.fakes import ALPHABET, EOS, fake_ids, fake_vocabulary

HELLO = [{"role": "user", "content": "hello"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "I am"}]


async def test_a_text_and_its_tokens() -> None:
    async with running() as server, server.http() as http:
        answer = (await http.post("/v1/tokenize", json={"model": MODEL, "prompt": "hello"})).json()
        with_texts = {"prompt": "hello", "return_token_strs": True}
        shown = (await http.post("/v1/tokenize", json=with_texts)).json()
        back = (await http.post("/v1/detokenize", json={"model": MODEL, "tokens": answer["tokens"]})).json()
        nothing = (await http.post("/v1/tokenize", json={"prompt": ""})).json()
        assert server.stats().num_ticks == 0
    ids = list(fake_ids("hello"))
    assert answer == {"count": 5, "max_model_len": 512 * 16, "tokens": ids, "token_strs": None}
    assert shown["token_strs"] == list("hello")
    assert back == {"prompt": "hello"}
    assert (nothing["count"], nothing["tokens"]) == (0, [])


async def test_a_chat_s_tokens_are_what_a_completion_would_compute() -> None:
    messages = [{"role": "developer", "content": "be brief"}, *HELLO]
    async with running() as server, server.http() as http:
        answer = (await http.post("/v1/tokenize", json={"messages": messages})).json()
        bare = {"messages": messages, "add_generation_prompt": False, "return_token_strs": True}
        without = (await http.post("/v1/tokenize", json=bare)).json()
        completion = {"messages": messages, "max_tokens": 1}
        usage = (await http.post("/v1/chat/completions", json=completion)).json()["usage"]
    prompt = fake_prompt([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
    assert answer["tokens"] == list(fake_ids(prompt))
    assert answer["count"] == usage["prompt_tokens"]
    assert "".join(without["token_strs"]) == prompt[:-1]


async def test_a_message_that_goes_on_has_no_end() -> None:
    body = {"messages": BEGUN, "continue_final_message": True, "return_token_strs": True}
    async with running() as server, server.http() as http:
        answer = (await http.post("/v1/tokenize", json=body)).json()
        same = (await http.post("/v1/tokenize", json=body | {"add_generation_prompt": False})).json()
    assert "".join(answer["token_strs"]) == "user:hello;assistant:I am"
    assert same == answer


async def test_what_comes_before_a_text_is_counted_unless_it_is_not_wanted() -> None:
    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "text_prefix", (EOS,))
        for wanted, count in ((None, 6), (True, 6), (False, 5)):
            body = {"prompt": "hello", "add_special_tokens": wanted, "return_token_strs": True}
            answer = (await http.post("/v1/tokenize", json=body)).json()
            assert answer["count"] == count
            assert answer["token_strs"] == ["<end>", *"hello"][-count:]


async def test_large_texts_go_and_come_back_too() -> None:
    text = "long " * 20_000
    async with running() as server, server.http() as http:
        answer = (await http.post("/v1/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        back = (await http.post("/v1/detokenize", json={"tokens": answer["tokens"]})).json()
    assert (answer["count"], "".join(answer["token_strs"])) == (100_000, text)
    assert back["prompt"] == text


async def test_whoever_counts_leaves_room_for_those_who_want_an_answer() -> None:
    large = "long " * 1000
    may_go = threading.Event()

    def slow(text: str) -> list[int]:
        may_go.wait(PATIENCE)
        return list(fake_ids(text))

    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "encode_text", slow)
        counts = [asyncio.create_task(http.post("/v1/tokenize", json={"prompt": large})) for _ in range(3)]
        await eventually(lambda: server.service._counting.locked())
        body = {"messages": [{"role": "user", "content": large}], "max_tokens": 1}
        answer = await http.post("/v1/chat/completions", json=body)
        assert not any(count.done() for count in counts)
        may_go.set()
        assert [(await count).json()["count"] for count in counts] == [len(large)] * 3
    assert answer.status_code == 200


REFUSED: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("tokenize", {}, 400, "prompt"),
    ("tokenize", {"prompt": "x", "messages": HELLO}, 400, "prompt"),
    ("tokenize", {"prompt": 5}, 400, "prompt"),
    ("tokenize", {"messages": []}, 400, "messages"),
    ("tokenize", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages.0.role"),
    ("tokenize", {"messages": [{"role": "user", "content": "refuse me"}]}, 400, "messages"),
    ("tokenize", {"messages": HELLO, "add_special_tokens": True}, 400, "add_special_tokens"),
    ("tokenize", {"prompt": "x", "add_generation_prompt": False}, 400, "add_generation_prompt"),
    ("tokenize", {"messages": HELLO, "continue_final_message": True}, 400, "continue_final_message"),
    (
        "tokenize",
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
        400,
        "continue_final_message",
    ),
    ("tokenize", {"prompt": "x", "continue_final_message": True}, 400, "continue_final_message"),
    ("tokenize", {"messages": HELLO, "chat_template": "x"}, 400, "chat_template"),
    ("tokenize", {"prompt": "x", "colour": "red"}, 400, "colour"),
    ("tokenize", {"prompt": "x", "model": "gpt-9"}, 404, "model"),
    ("tokenize", {"prompt": "x" * 5000}, 413, None),
    ("detokenize", {}, 400, "tokens"),
    ("detokenize", {"tokens": "x"}, 400, "tokens"),
    ("detokenize", {"tokens": [1, -1]}, 400, "tokens.1"),
    ("detokenize", {"tokens": [1, 2, len(ALPHABET) + 1]}, 400, "tokens.2"),
    ("detokenize", {"tokens": [1.5]}, 400, "tokens.0"),
    ("detokenize", {"tokens": [1], "model": "gpt-9"}, 404, "model"),
]


async def test_what_is_refused_is_named() -> None:
    async with running(max_message_bytes=4096) as server, server.http() as http:
        for path, body, status, param in REFUSED:
            response = await http.post(f"/v1/{path}", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (status, param), body
            if param is not None:
                assert error["message"].startswith(f"{param}: "), body
        broken = await http.post("/v1/tokenize", content=b'{"prompt": "\\ud83d"}')
    assert broken.json()["error"]["code"] == "invalid_json"


async def test_who_may_not_ask_is_told_nothing() -> None:
    async with running(api_keys=("secret",)) as server, server.http() as http:
        for path, body in (("tokenize", {"prompt": "x"}), ("detokenize", {"tokens": [1]})):
            assert (await http.post(f"/v1/{path}", json=body)).status_code == 401
            key = {"authorization": "Bearer secret"}
            assert (await http.post(f"/v1/{path}", json=body, headers=key)).status_code == 200


def test_control_tokens_are_shown_as_they_are_spelled() -> None:
    texts = TokenTexts(fake_vocabulary(), {"<end>": EOS})
    tokens = [*fake_ids("ab"), EOS, *fake_ids("c")]
    assert texts.detokenized(tokens) == {"prompt": "ab<end>c"}
    assert texts.tokenized(tokens, 10, True)["token_strs"] == ["a", "b", "<end>", "c"]


@pytest.mark.parametrize(("strips", "text"), [(False, " é b"), (True, "é b")])
def test_characters_of_several_tokens_are_whole_again(strips: bool, text: str) -> None:
    vocabulary = Vocabulary((b"", b" \xc3", b"\xa9", b" b"), frozenset({0}), strip_leading_space=strips)
    assert TokenTexts(vocabulary, {}).detokenized([1, 2, 3]) == {"prompt": text}
