"""Who a socket's client is: the Authorization header, or `session.auth` for those that cannot send one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.app.harness import RunningServer, Socket, eventually, running, said, text_of

KEYS = ("sk-ada", "sk-bob")
AUTHENTICATED = {"type": "session.authenticated"}


def bearer(key: str) -> dict[str, Any]:
    return {"additional_headers": {"authorization": f"Bearer {key}"}}


async def sign_in(socket: Socket, token: object) -> dict[str, Any]:
    await socket.send(type="session.auth", token=token)
    return await socket.event()


async def closed_with(socket: Socket) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        await socket.event()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def sessions(server: RunningServer) -> list[str]:
    return [request.session for request, _ in server.engine.submitted]


async def test_a_socket_without_a_header_signs_in_first() -> None:
    async with running(api_keys=KEYS) as server, server.socket() as socket:
        assert await sign_in(socket, "sk-ada") == AUTHENTICATED
        assert text_of(await socket.answer("hello")) == said("hello", 8)
        async with server.socket(**bearer("sk-ada")) as other:
            await other.answer("hello")
        first, second = sessions(server)
        assert first == second


NO_SIGN_IN: list[Any] = [
    {"type": "session.auth", "token": "sk-eve"},
    {"type": "session.auth", "token": "sk-ad"},
    {"type": "session.auth", "token": ""},
    {"type": "session.auth", "token": None},
    {"type": "session.auth", "token": "sk-ada", "scope": "all"},
    {"type": "session.auth"},
    {"type": "ping"},
    {"type": "response.create", "input": "hello"},
    "no JSON",
    b'{"type": "session.auth", "token": "sk-ada"}',
    {"type": "session.auth", "token": "x" * 100_000},
    # A good one in a message that is too large to be looked at.
    '{"type": "session.auth", "token": "sk-ada"}' + " " * 10_000,
]


async def test_anything_else_closes_it() -> None:
    async with running(api_keys=KEYS) as server:
        for first in NO_SIGN_IN:
            async with server.socket() as socket:
                raw = first if isinstance(first, (str, bytes)) else orjson.dumps(first).decode()
                await socket.connection.send(raw)
                event = await socket.event()
                assert event["type"] == "error"
                assert event["status"] == 401
                assert event["error"]["code"] == "invalid_api_key"
                assert "sk-" not in str(event)
                assert await closed_with(socket) == (4401, "no key, or a wrong one")
        assert not server.engine.submitted


async def test_what_is_sent_behind_a_wrong_key_is_not_done() -> None:
    async with running(api_keys=KEYS) as server, server.socket() as socket:
        await socket.send(type="session.auth", token="sk-eve")
        await socket.create("hello")
        assert (await socket.event())["status"] == 401
        assert (await closed_with(socket))[0] == 4401
        assert not server.engine.submitted


async def test_what_is_sent_behind_a_right_key_is_done() -> None:
    async with running(api_keys=KEYS) as server, server.socket() as socket:
        await socket.send(type="session.auth", token="sk-ada")
        await socket.create("hello")
        assert await socket.event() == AUTHENTICATED
        assert text_of(await socket.until("response.incomplete")) == said("hello", 8)


async def test_a_client_that_says_nothing_is_let_go() -> None:
    async with running(api_keys=KEYS, handshake_timeout_s=0.05) as server, server.socket() as socket:
        code, reason = await closed_with(socket)
        assert (code, reason) == (4408, "no key within 0.05 s")


async def test_one_that_has_signed_in_may_take_its_time() -> None:
    async with (
        running(api_keys=KEYS, handshake_timeout_s=1.0) as server,
        server.socket() as socket,
        server.socket() as silent,
    ):
        assert await sign_in(socket, "sk-ada") == AUTHENTICATED
        assert (await closed_with(silent))[0] == 4408  # so much time has passed
        assert text_of(await socket.answer("hello")) == said("hello", 8)


async def test_one_that_leaves_without_a_word_leaves_nothing() -> None:
    async with running(api_keys=KEYS) as server:
        async with server.socket() as socket:
            socket.connection.transport.abort()
        await eventually(lambda: not server.server.server_state.connections)


async def test_a_wrong_key_in_the_header_is_refused_before_the_upgrade() -> None:
    async with running(api_keys=KEYS) as server:
        for key in ("sk-eve", "sk-ada2"):
            with pytest.raises(InvalidStatus) as refused:
                async with server.socket(**bearer(key)):
                    pass
            response = refused.value.response
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert b"invalid_api_key" in (response.body or b"")


async def test_where_no_key_is_asked_for_it_says_whose_responses_they_are() -> None:
    async with running() as server, server.socket() as socket, server.socket(**bearer("ada")) as ada:
        mine = (await socket.answer("hello", stream_id="a"))[0]["response"]["id"]
        assert await sign_in(socket, "ada") == AUTHENTICATED
        hers = (await socket.answer("hello", stream_id="a"))[0]["response"]["id"]
        await ada.answer("hello")
        connection, signed_in, header = sessions(server)
        assert connection != signed_in == header
        for response_id, kind in ((hers, "response.resumed"), (mine, "error")):
            await ada.send(type="response.resume", response_id=response_id)
            assert (await ada.event())["type"] == kind
            if kind == "response.resumed":
                await ada.until("response.incomplete")


async def test_what_was_asked_before_belongs_to_whoever_asked() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("one", stream_id="a")
        response_id = (await socket.until("response.created"))[-1]["response"]["id"]
        await socket.send(type="response.resume", response_id=response_id, stream_id="a")
        await socket.create("two", stream_id="a")
        await socket.send(type="session.auth", token="ada")
        await socket.create("three", stream_id="a")
        await socket.send(type="response.resume", response_id=response_id, stream_id="a")
        server.gate.open()
        for _ in range(4):
            await socket.until("response.incomplete")
        (refused,) = await socket.until("error")
        assert refused["error"]["code"] == "response_not_found"
        one, two, three = sessions(server)
        assert one == two != three


async def test_a_wrong_key_later_on_changes_nothing() -> None:
    async with running(api_keys=KEYS) as server, server.socket(**bearer("sk-ada")) as socket:
        refused = await sign_in(socket, "sk-eve")
        assert (refused["type"], refused["status"]) == ("error", 401)
        await socket.answer("hello")
        assert await sign_in(socket, "sk-bob") == AUTHENTICATED
        await socket.answer("hello")
        ada, bob = sessions(server)
        assert ada != bob


async def test_no_key_is_ever_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(api_keys=KEYS, log_level="debug") as server:
        async with server.socket() as socket:
            await sign_in(socket, "sk-ada")
            await sign_in(socket, "sk-bob")
            await sign_in(socket, "sk-eve")
            await socket.answer("hello")
        async with server.socket() as socket:
            await sign_in(socket, "sk-mallory")
    captured = capsys.readouterr()
    assert "response_finished" in captured.out + captured.err
    assert "sk-" not in captured.out + captured.err
