"""docs/protocol.md is true: what it shows of the responses socket is what a client sends and gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from app.protocol.lanes import Limits
from app.protocol.socket_messages import MAX_PING, Refused, Steer, SteerCode, understand
from tests.app.harness import Socket, running

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## `ws /v1/responses`") : PAGE.index("## `ws /api/chat`")]
EXAMPLES = [
    orjson.loads(example)
    for block in re.findall(r"(?:^    .*\n)+", SECTION, re.MULTILINE)
    for example in block.split("  ->  ")
]
CLIENT = [each for each in EXAMPLES if "stats" not in each and each["type"] in (
    "response.resume", "response.cancel", "response.steer", "session.auth", "ping", "response.stats",
)]  # fmt: skip
SERVER = [each for each in EXAMPLES if each not in CLIENT]


def test_every_message_is_shown() -> None:
    assert len(CLIENT) == 6
    assert [each["type"] for each in SERVER] == [
        "response.resumed",
        "response.steer.accepted",
        "response.steer.failed",
        "session.authenticated",
        "pong",
        "response.stats",
    ]


@pytest.mark.parametrize("message", CLIENT, ids=lambda message: message["type"])
def test_what_a_client_is_shown_to_send_is_understood(message: dict[str, Any]) -> None:
    understood = understand(orjson.dumps(message).decode())
    assert not isinstance(understood, Refused)
    assert not (isinstance(understood, Steer) and understood.error)


def shape(value: object) -> object:
    """The names in it, and of which type values are: numbers are numbers, and a null may be anything."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return {int: "number", float: "number", str: "text"}.get(type(value), "any")


def check(event: dict[str, Any]) -> None:
    (shown,) = (each for each in SERVER if each["type"] == event["type"])
    got, wanted = shape(event), shape(shown)
    if event["type"] == "response.stats":
        nullable = ("queue_position", "tokens_per_s", "first_token_ms")
        for stats in (got["stats"], wanted["stats"]):  # type: ignore[index]
            stats |= dict.fromkeys(nullable, "any")
    assert got == wanted


async def test_what_a_client_is_shown_to_get_is_what_it_gets() -> None:
    async with running() as server, server.socket() as socket:
        await socket.send(type="session.auth", token="KEY")
        check(await socket.event())
        await socket.send(type="ping", id="any text")
        check(await socket.event())
        events = await socket.answer("hello", stream_id="left", max_output_tokens=20)
        response_id = events[0]["response"]["id"]
        await socket.send(type="response.stats", response_id=response_id)
        check(await socket.event())
        await socket.send(type="response.resume", response_id=response_id, stream_id="left", starting_after=1)
        check(await socket.event())
        assert (await socket.until("response.incomplete"))[0]["sequence_number"] == 2
        await steer_two_ways(socket)


async def steer_two_ways(socket: Socket) -> None:
    await socket.create("hello", stream_id="left", max_output_tokens=2000)
    created = (await socket.until("response.created"))[-1]
    for text in ("shorter, please", ""):
        await socket.send(type="response.steer", previous_response_id=created["response"]["id"], input=text)
    check((await socket.until("response.steer.accepted"))[-1])
    check((await socket.until("response.steer.failed"))[-1])
    *_, successor = await socket.until("response.created")
    await socket.send(type="response.cancel", response_id=successor["response"]["id"])
    await socket.until("response.incomplete")


def test_codes_and_limits_are_those_that_hold() -> None:
    named = re.findall(r"^\| `(\w+)` \| \w", SECTION, re.MULTILINE)
    assert named == list(get_args(SteerCode))
    limits = Limits()
    for said in (
        f"lanes run at once, up to {limits.max_active} of them",
        f"up to {limits.max_lanes} named ones",
        f"Up to {limits.max_waiting} turns may wait",
        f"Up to {limits.max_steers} messages may wait for one response",
        f"Up to {limits.max_looks} questions may wait",
        f"has up to {MAX_PING} characters",
    ):
        assert re.sub(r"\s+", " ", said) in re.sub(r"\s+", " ", SECTION)
