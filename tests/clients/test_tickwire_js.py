"""The page's socket client, `static/tickwire.js`, in Node: against the whole server, through cuts.

The server is in the test's own process, so that tests see what its engine did.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.harness import PATIENCE, RunningServer, eventually, expected, running, said
from tests.clients.cutting import cutting
from tests.clients.node import Node, node_environment

CLIENT = Path(__file__).resolve().parents[2] / "static" / "tickwire.js"
TICK_S = 0.002
"""How long a forward pass takes: so long that each token has a frame of its own."""


@pytest.fixture(scope="session")
def node() -> Node:
    return node_environment()


async def run(node: Node, scenario: str, url: str, **options: Any) -> Any:
    process = await asyncio.create_subprocess_exec(
        *node.command("tickwire.mjs", str(CLIENT), scenario, url, json.dumps(options)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


def url_of(server: RunningServer) -> str:
    return f"ws://127.0.0.1:{server.port}/v1/responses"


def pace(server: RunningServer) -> None:
    server.runner.during = lambda: time.sleep(TICK_S)


FRAMES = 2 * (4 + 12 + 4)
"""Of two answers of 12 tokens, each with a frame of its own."""
FEWEST_FRAMES = 2 * (4 + 1 + 4)
"""If all tokens of an answer come in one frame."""


@pytest.mark.parametrize("how", ["reset", "half", "silence"])
async def test_a_cut_at_any_frame_loses_and_doubles_nothing(node: Node, how: str) -> None:
    async with running() as server, cutting(server.port) as proxy:
        pace(server)
        result = await run(node, "cuts", proxy.url, after=list(range(FRAMES)), hows=[how])
    assert sum(proxy.cuts.values()) >= FEWEST_FRAMES
    for answers in result["wires"]:
        for lane, answer in zip(("left", "right"), answers, strict=True):
            assert answer["joined"] == answer["text"] == said(f"I am {lane}", 12)
            assert (answer["status"], answer["error"], answer["ends"]) == ("length", None, 1)
            assert answer["usage"]["output_tokens"] == 12


async def test_a_line_that_breaks_all_the_time_still_brings_everything(node: Node) -> None:
    async with running() as server, cutting(server.port) as proxy:
        pace(server)
        result = await run(node, "cuts", proxy.url, after=[5], hows=["reset", "half"], times=100)
    assert min(proxy.cuts.values()) >= 3
    for answers in result["wires"]:
        assert [answer["joined"] for answer in answers] == [said("I am left", 12), said("I am right", 12)]


async def test_a_steered_answer_and_its_successors_survive_a_cut_at_any_frame(node: Node) -> None:
    async with running() as server, cutting(server.port) as proxy:
        pace(server)
        result = await run(node, "steer", proxy.url, after=list(range(30)), hows=["reset", "half"])
    assert sum(proxy.cuts.values()) > 30
    for first, second, third, late in result["wires"]:
        talk = [{"role": "user", "content": "hello"}]
        for answer in (first, second, third):
            assert answer["joined"] == expected(talk, answer["usage"]["output_tokens"])
            assert answer["error"] is None
            talk.append({"role": "assistant", "content": answer["text"]})
            talk.append({"role": "user", "content": "more" if answer is first else "and more"})
        # It is not, if the message was lost on its way and the answer had come to its end meanwhile.
        assert {first["status"], second["status"]} <= {"steered", "length"}
        assert third["status"] == "length"
        assert (late["status"], late["text"]) == ("stopped", "")


async def test_stop_ends_an_answer_within_a_tick(node: Node) -> None:
    async with running() as server:
        pace(server)
        result = await run(node, "stop", url_of(server))
        await eventually(lambda: len(server.engine.ended) == 4)
        aborted, ended = server.engine.aborted, server.engine.ended
    assert len(aborted) == 3
    assert all(ended[request][0] - tick <= 1 for request, tick in aborted.items())
    long, early, after, left = result["answers"]
    assert [long["status"], early["status"], after["status"]] == ["stopped", "stopped", "length"]
    assert left["status"] == "interrupted", "whoever closes the connection wants no answers any more"
    assert long["text"]
    assert long["text"] == said("hello", long["usage"]["output_tokens"])
    assert after["text"] == said("hello", 12)


async def test_another_connection_takes_an_answer_up_from_any_number(node: Node) -> None:
    async with running() as server:
        pace(server)
        result = await run(node, "attach", url_of(server))
    assert result["whole"]["joined"] == said("hello", 200)
    assert result["beginning"] == result["whole"]
    assert result["rest"] == result["whole"]["text"]
    assert (result["again"]["text"], result["again"]["status"]) == ("", "length")
    missing = result["missing"]
    assert (missing["status"], missing["error"]["code"]) == ("interrupted", "response_not_found")


async def test_warm_up_stats_ping_and_what_comes_after_the_end(node: Node) -> None:
    async with running() as server:
        pace(server)
        result = await run(node, "extras", url_of(server))
    assert (result["warm"]["status"], result["warm"]["text"]) == ("completed", "")
    hello = {"role": "user", "content": "hello"}
    more = {"role": "user", "content": "more"}
    assert result["built"]["text"] == expected([hello, more], 12)
    assert result["trip"] > 0
    assert result["afterwards"] is None
    assert result["tooEarly"] is result["tooLate"] is None
    assert (result["stats"]["status"], result["stats"]["max_output_tokens"]) == ("generating", 5000)
    assert result["stats"]["output_tokens"] >= 1
    talk = [hello, {"role": "assistant", "content": result["long"]}, more]
    tokens = result["ended"]["usage"]["output_tokens"]
    assert result["ended"]["text"] == expected(talk, tokens)


async def test_a_token_opens_what_keys_close(node: Node) -> None:
    async with running(api_keys=("right",)) as server:
        result = await run(node, "token", url_of(server), keys=["right", "wrong"])
    right, wrong = result["results"]
    assert (right["state"], right["answer"]["text"]) == ("open", said("hello", 12))
    assert (wrong["state"], wrong["code"], wrong["answer"]["status"]) == ("refused", 4401, "interrupted")
    assert wrong["answer"]["error"]["code"] == "invalid_api_key"


async def test_another_key_is_used_at_once_and_what_runs_is_taken_up(node: Node) -> None:
    async with running(api_keys=("right",), handshake_timeout_s=1.0) as server:
        pace(server)
        result = await run(node, "keys", url_of(server), right="right")
    none, wrong, right = result["outcomes"]
    assert (none["status"], none["text"]) == ("interrupted", "")
    assert (wrong["status"], wrong["code"]) == ("interrupted", "invalid_api_key")
    assert (right["status"], right["text"]) == ("length", said("hello", 12))
    assert result["whole"]["joined"] == result["whole"]["text"] == said("hello", 200)


async def test_the_ws_package_serves_older_nodes(node: Node) -> None:
    async with running() as server, cutting(server.port) as proxy:
        pace(server)
        result = await run(node, "ws", proxy.url)
    assert proxy.cuts["ws"] == 1
    assert result["answer"]["joined"] == said("hello", 12)


async def test_close_codes_say_whether_to_come_back(node: Node) -> None:
    stay = [1002, 1003, 1007, 1008, 1009, 4401, 4408]
    come = [1001, 1011, 1012, 1013]
    result = await run(node, "closes", "", codes=[*stay, *come])
    refused = {
        "status": "interrupted",
        "error": "connection_lost",
        "state": "refused",
        "tries": 1,
        "final": True,
    }
    # A request that its connection died of three times is not sent again.
    given_up = refused | {"state": "waiting", "tries": 3, "final": False}
    assert result == {str(code): refused for code in stay} | {str(code): given_up for code in come}


async def test_events_count_once_and_a_gap_is_no_answer(node: Node) -> None:
    whole = list(range(10))
    runs = [whole, [*range(5), *range(3, 10)], [0, 1, 2, 4, *range(5, 10)]]
    result = await run(node, "numbers", "", runs=runs)
    plain, twice, gap = result["answers"]
    assert plain["joined"] == twice["joined"] == "12345678"
    assert plain["status"] == twice["status"] == "completed"
    assert (gap["joined"], gap["status"], gap["error"]["code"]) == ("12", "interrupted", "events_missing")
    assert result["asked"].count("response.create") == 3
