"""The official OpenAI SDK for Node against the server, each in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.harness import said
from tests.clients.node import node_environment
from tests.clients.serving import serving

REFUSED = ["BadRequestError", 400, "out_of_range", "temperature", True]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What came of each scenario."""
    with serving() as server:
        scenarios = ("chat", "responses", "lanes", "errors")
        return node_environment().run("openai_sdk.mjs", server.base_url, *scenarios)


def test_chat_completions(results: dict[str, Any]) -> None:
    chat = results["chat"]
    assert chat["whole"] == chat["streamed"] == said("hello", 30)
    assert chat["final"] == chat["whole"], "the SDK's own accumulator"
    assert chat["finish"] == "length"
    assert chat["usage"] == [len("user:hello;"), 30]
    assert chat["models"] == ["fake-model"]
    assert chat["refused"] == REFUSED


def test_responses_over_http(results: dict[str, Any]) -> None:
    responses = results["responses"]
    assert responses["whole"] == responses["streamed"] == said("hello", 30)
    assert responses["final"] == responses["whole"], "the SDK's own accumulator"
    assert responses["numbers"] == list(range(len(responses["numbers"])))
    assert responses["rest"] == responses["numbers"][6:]
    assert responses["refused"] == REFUSED


def test_two_lanes_over_one_socket(results: dict[str, Any]) -> None:
    lanes = results["lanes"]
    assert lanes["texts"] == lanes["final"] == {lane: said(f"I am {lane}", 100) for lane in ("left", "right")}


def test_an_error_and_a_cancel_over_a_socket(results: dict[str, Any]) -> None:
    errors = results["errors"]
    assert errors["error"] == ["error", 400, "out_of_range", "temperature"]
    assert errors["count"] == 1
    assert errors["cancelled"] == "cancelled"
