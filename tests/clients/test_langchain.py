"""LangChain's OpenAI classes against the server, each in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.harness import continued, expected, said
from tests.clients.environments import environment
from tests.clients.serving import run_script, serving


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    python = environment("langchain", ["langchain-openai>=1.7"])
    with serving() as server, serving(sampling=True) as sampling:
        return run_script(python, "langchain_sdk.py", server.base_url, sampling.base_url)


def test_chat(results: dict[str, Any]) -> None:
    chat = results["chat"]
    answer = said("hello", 30)
    assert chat["whole"] == chat["streamed"] == answer
    assert chat["pieces"] > 3
    assert chat["finish"] == "length"
    for usage in (chat["usage"], chat["streamed_usage"]):
        assert (usage["input_tokens"], usage["output_tokens"]) == (len("user:hello;"), 30)
    talk = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "more"},
    ]
    assert chat["again"] == expected(talk, 30)
    assert chat["stopped"] == answer[:5]


def test_a_batch(results: dict[str, Any]) -> None:
    assert results["batch"]["answers"] == [said(f"number {n}", 20) for n in range(8)]


def test_log_probabilities(results: dict[str, Any]) -> None:
    logprobs = results["logprobs"]
    assert "".join(logprobs["tokens"]) == logprobs["content"]
    assert logprobs["top"] == [3] * 10


def test_completions(results: dict[str, Any]) -> None:
    texts = results["texts"]
    assert texts["whole"] == texts["streamed"] == continued("Once upon", 20)
    assert texts["batch"] == [continued("a", 20), continued("b", 20)]


def test_responses(results: dict[str, Any]) -> None:
    responses = results["responses"]
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said("hello", 20)},
        {"role": "user", "content": "more"},
    ]
    assert responses["first"] == responses["streamed"] == said("hello", 20)
    assert responses["second"] == expected(talk, 20)


def test_a_prompt_that_is_too_long_becomes_langchain_s_own_exception(results: dict[str, Any]) -> None:
    assert results["too_long"] == {"raised": "OpenAIContextOverflowError"}
