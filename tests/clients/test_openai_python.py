"""The official OpenAI SDK for Python against the server, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.harness import continued, expected, said
from tests.clients.environments import environment
from tests.clients.serving import ServerProcess, run_script, serving

SCRIPT = "openai_sdk.py"


@pytest.fixture(scope="session")
def sdk() -> Path:
    return environment("openai", ["openai[realtime]>=3.57"])


@pytest.fixture(scope="module")
def results(sdk: Path) -> dict[str, Any]:
    """Of what needs nothing but a server, by scenario."""
    with serving() as server:
        return run_script(
            sdk,
            SCRIPT,
            server.base_url,
            *("chat", "completions", "errors", "responses", "background", "lanes", "session", "steering"),
        )


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server


def test_chat_completions(results: dict[str, Any]) -> None:
    result = results["chat"]
    answer = said("hello", 30)
    assert result["whole"] == result["streamed"] == answer
    assert result["finish"] == "length"
    assert result["usage"]["prompt_tokens"] == len("user:hello;")
    assert result["usage"]["completion_tokens"] == 30
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "more"},
    ]
    assert result["again"] == expected(talk, 30)
    assert result["request_id"]
    assert result["models"] == [["fake-model", "tickwire"]]


def test_completions(results: dict[str, Any]) -> None:
    result = results["completions"]
    answer = continued("Once upon", 20)
    assert result["id"].startswith("cmpl-")
    assert result["object"] == "text_completion"
    assert result["whole"] == result["streamed"] == answer
    assert result["finish"] == "length"
    assert result["usage"] == result["streamed_usage"] == [len("Once upon"), 20]
    assert result["echoed"] == "Once upon" + answer
    assert result["several"] == [continued("a", 20), continued("b", 20)]


def test_responses(results: dict[str, Any]) -> None:
    result = results["responses"]
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said("one", 20)},
        {"role": "user", "content": "two"},
    ]
    assert result["first"] == result["streamed"] == said("one", 20)
    assert result["final"] == said("one", 10)
    assert result["second"] == result["again"] == expected(talk, 20)
    assert result["numbers"] == list(range(len(result["numbers"])))
    assert result["kinds"][0] == "response.created"
    assert result["kinds"][-1] == "response.incomplete"
    assert result["rest_is_the_rest"]
    assert result["items"] == [["user", "one"], ["assistant", said("one", 20)], ["user", "two"]]
    assert result["gone"] == [410, "response_gone"]


def test_responses_in_the_background(results: dict[str, Any]) -> None:
    result = results["background"]
    assert result["begun"][0] in ("queued", "in_progress")
    assert result["begun"][1] is True
    assert result["followed"] == said("one", 200)
    assert result["ended"] == ["incomplete", said("one", 200)]
    assert result["cancelled"] == ["cancelled", "cancelled"]


def test_choices_and_log_probabilities(sdk: Path) -> None:
    with serving(sampling=True) as server:
        result = run_script(sdk, SCRIPT, server.base_url, "choices")["choices"]
    assert len(set(result["whole"])) == 3
    assert result["streamed"] == result["whole"][:2]
    assert result["order"][:2] == [0, 1]
    assert result["finishes"] == [[0, "length"], [1, "length"]]
    assert result["usage"] == [len("user:hello;"), 60]
    assert result["final"] == result["whole"][:2], "the SDK's own accumulator"
    tokens = result["tokens"]
    assert ["".join(of_choice) for of_choice in tokens] == result["whole"]
    assert result["bytes"] == result["whole"]
    assert set(result["top"]) == {2}
    assert result["response"]["text"] == result["whole"][0]
    assert result["response"]["tokens"] == result["response"]["done"] == tokens[0]


def test_limits_become_the_sdk_s_own_exceptions(sdk: Path) -> None:
    with serving(max_num_seqs=1, max_queue=3, max_queue_per_session=1) as server:
        result = run_script(sdk, SCRIPT, server.base_url, "limits")["limits"]
    kind, code, status, retry_after, told = result["session"]
    assert [kind, code, status] == ["RateLimitError", "rate_limit_exceeded", 429]
    assert int(retry_after) == told >= 1
    assert result["all"][:3] == ["InternalServerError", "server_overloaded", 503]
    assert result["queue"][:3] == ["InternalServerError", "queue_timeout", 503]
    assert result["retried"] == said("hello", 5), "the SDK came back after the time it was told"
    assert result["cut"] == ["length", "max_time_ms"]
    assert result["incomplete"] == ["incomplete", "max_time_ms"]


def test_errors_become_the_sdk_s_own_exceptions(results: dict[str, Any]) -> None:
    assert results["errors"] == {
        "temperature": ["BadRequestError", "temperature", "out_of_range", True],
        "model": ["NotFoundError", "model", "model_not_found", True],
        "messages": ["BadRequestError", "messages", "empty_value", True],
        "long": ["BadRequestError", "messages", "context_length_exceeded", True],
        "stream": ["BadRequestError", "n", "out_of_range", True],
    }


def test_two_lanes_at_once_over_one_connection(results: dict[str, Any]) -> None:
    result = results["lanes"]
    wanted = {lane: said(f"I am {lane}", 100) for lane in ("left", "right")}
    assert result["texts"] == result["final"] == wanted
    assert result["switches"] > 20, "the lanes took turns only now and then"
    for kinds in result["kinds"].values():
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert set(kinds[4:-4]) == {"response.output_text.delta"}
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]


def test_the_sdk_s_session_of_lanes(results: dict[str, Any]) -> None:
    result = results["session"]
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said("one", 20)},
        {"role": "user", "content": "two"},
    ]
    assert result["first"] == result["after"] == said("one", 20)
    assert result["other"] == said("uno", 20)
    assert result["second"] == result["by_hand"] == expected(talk, 20)
    assert result["usage"]["output_tokens"] == 20
    assert result["error"] == ["ResponseWsError", "out_of_range", "temperature", 400]
    assert result["cancelled"] == ["cancelled", None]


def test_the_sdk_s_session_steers_and_warms_up(results: dict[str, Any]) -> None:
    result = results["steering"]
    assert result["warm"] == ["completed", [], len("user:one;")]
    assert result["accepted"] == ["ResponseSteerAcceptedEvent", True]
    assert result["failed"] == ["ResponseSteerFailedEvent", "invalid_input", ""]
    assert result["steered"] == ["incomplete", "steered"]
    assert result["successor"] == ["response.created", True, True]
    first, second = result["said"]
    before = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    assert first == expected(before, len(first))
    after = [*before, {"role": "assistant", "content": first}, {"role": "user", "content": "no"}]
    assert second == expected(after, len(second))
    assert second


@pytest.mark.parametrize("scenario", ["vanish", "vanish_chat"])
def test_a_client_killed_in_the_middle_is_aborted_within_a_tick(
    sdk: Path, server: ServerProcess, scenario: str
) -> None:
    script = Path(__file__).with_name(SCRIPT)
    client = subprocess.Popen(
        [sdk, script, server.base_url, scenario], stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "reading\n"
    client.kill()
    client.communicate()
    # The server says in which tick it was told and in which the answer was over.
    line = server.line()
    assert line["reason"] == "abort"
    assert line["ended"] - line["aborted"] <= 1
    metrics = server.metrics()
    assert metrics["tickwire:num_requests_running"] == 0
    assert metrics["tickwire:kv_cache_usage_perc"] == 0
    assert metrics['tickwire:request_success_total{finished_reason="abort"}'] == 1


def test_sigterm_ends_the_process_well_and_sigint_too(sdk: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        server = ServerProcess()
        script = Path(__file__).with_name(SCRIPT)
        client = subprocess.Popen(
            [sdk, script, server.base_url, "vanish"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "reading\n"
            server.process.send_signal(number)
            # The answer is long: it is cut after the patience of the settings, and that is told.
            assert server.line()["reason"] == "abort"
            assert server.process.wait(timeout=30) == 0
        finally:
            client.kill()
            client.communicate()
            server.process.kill()
            server.process.wait()
