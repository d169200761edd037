"""litellm against the server, each in a process of its own."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.app.harness import continued, expected, said
from tests.clients.environments import environment
from tests.clients.serving import run_script, serving


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Of all scenarios: it takes seconds to import litellm, and no time to talk to us."""
    python = environment("litellm", ["litellm>=1.110"])
    # It would ask the network for the prices of models.
    offline = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with serving() as server:
        return run_script(python, "litellm_sdk.py", server.base_url, environ=offline)


def test_chat(results: dict[str, Any]) -> None:
    chat = results["chat"]
    answer = said("hello", 30)
    assert chat["whole"] == chat["streamed"] == chat["rebuilt"] == answer
    assert chat["finish"] == "length"
    assert chat["usage"] == chat["rebuilt_usage"] == [len("user:hello;"), 30]
    assert chat["stopped"] == [answer[:5], "stop"]


def test_several_at_once(results: dict[str, Any]) -> None:
    at_once = results["at_once"]
    assert at_once["answers"] == [said(f"number {n}", 20) for n in range(8)]
    assert at_once["streamed"] == said("hello", 20)


def test_completions(results: dict[str, Any]) -> None:
    texts = results["texts"]
    assert texts["whole"] == texts["streamed"] == continued("Once upon", 20)


def test_responses(results: dict[str, Any]) -> None:
    responses = results["responses"]
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said("hello", 20)},
        {"role": "user", "content": "more"},
    ]
    assert responses["first"] == responses["streamed"] == said("hello", 20)
    assert responses["status"] == "incomplete"
    assert responses["second"] == expected(talk, 20)
    assert responses["kinds"][0] == "response.created"
    assert len(responses["kinds"]) > 5


def test_errors_become_litellm_s_own_exceptions(results: dict[str, Any]) -> None:
    assert results["errors"] == {
        "temperature": ["BadRequestError", 400],
        "model": ["NotFoundError", 404],
        "long": ["ContextWindowExceededError", 400],
    }
