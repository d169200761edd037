"""The Vercel AI SDK against the server: chats over its `WebSocketChatTransport`, and its provider for
OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.app.harness import expected, said
from tests.clients.node import node_environment
from tests.clients.serving import serving

KEY = "a-key"


class Told(NamedTuple):
    results: dict[str, Any]
    """What came of each scenario."""
    aborts: list[dict[str, Any]]
    """What the server said of the answers that were aborted, in that order."""


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    with serving(settings={"api_keys": [KEY]}) as server:
        scenarios = ("talk", "refusals", "cuts", "provider", "stop", "provider_abort")
        results = node_environment().run("ai_sdk.mjs", server.base_url, KEY, *scenarios)
        while (metrics := server.metrics())["tickwire:num_requests_running"]:
            pass
        num_aborts = metrics['tickwire:request_success_total{finished_reason="abort"}']
        yield Told(results, [server.line() for _ in range(int(num_aborts))])


def talk(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]


def test_pages_talk_over_one_socket(told: Told) -> None:
    page = told.results["talk"]
    first = said("one", 30)
    second = expected(talk("one", first, "two"), 30)
    assert page["told"] == [["user", "one"], ["assistant", first], ["user", "two"], ["assistant", second]]
    assert page["states"] == ["text", "step-start", "done"] * 2, "text parts end"
    assert page["distinct"] == 5, "each message has an id of its own, one that was asked for anew too"
    assert page["usage"]["outputTokens"] == 30
    assert page["usage"]["totalTokens"] == page["usage"]["inputTokens"] + 30
    assert page["finishes"] == [["length", False, False]] * 3
    assert page["others"] == [said(f"page {index}", 30) for index in range(2)]
    assert page["sockets"] == 1
    assert set(page["statuses"]) == {"ready"}


def test_what_is_refused_is_told_to_the_page(told: Told) -> None:
    page = told.results["refusals"]
    assert page["refused"] == ["error", "temperature: got 9, allowed: a number from 0 to 2"]
    assert page["after"] == ["assistant", said("hello", 30)]
    assert page["picture"].startswith("messages.2.parts.0.type: got 'file', allowed: 'text'")
    assert page["nothing"] == ["ready", 0]
    assert page["stranger"].startswith("Authorization: got an API key that is not known here")


def test_a_page_whose_connection_is_cut_takes_its_answer_up_again(told: Told) -> None:
    page = told.results["cuts"]
    assert page["disconnects"] == [True] * 5
    assert page["ended"] == page["again"] == [["user", "long"], ["assistant", said("long", 100)]]
    assert page["ids"] == 2, "the answer's message keeps its id"
    assert page["status"] == "ready"


def test_a_page_that_stops_an_answer_ends_it_within_a_tick(told: Told) -> None:
    page = told.results["stop"]
    assert page["isAbort"]
    assert page["stopped"]
    assert said("long", 1000).startswith(page["stopped"])
    assert page["status"] == "ready"
    assert page["after"] == expected(talk("long", page["stopped"], "more"), 5)
    abort, _ = told.aborts
    assert abort["ended"] - abort["aborted"] <= 1


def test_the_provider_for_compatible_servers(told: Told) -> None:
    provider = told.results["provider"]
    assert provider["whole"] == provider["streamed"] == [said("hello", 30), "length"]
    assert provider["pieces"] > 1
    assert provider["usage"] == [[len("user:hello;"), 30]] * 2
    name, status, message, is_retryable = provider["refused"]
    assert [name, status, is_retryable] == ["AI_APICallError", 400, False]
    assert message == "temperature: got 3, allowed: a number from 0 to 2"


def test_a_provider_s_request_that_is_aborted_ends_within_a_tick(told: Told) -> None:
    assert said("long", 1000).startswith(told.results["provider_abort"]["text"])
    _, abort = told.aborts
    assert abort["ended"] - abort["aborted"] <= 1
