"""Raw frames, valid and not, against both sockets of a running server: the right close code or error, nobody
else is disturbed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import pytest_asyncio
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.transport import MAX_UNSENT
from tests.app.harness import PATIENCE, RunningServer, eventually, running, said, text_of
from tests.fuzz.wire import BINARY, CLOSE, CONT, PING, PONG, TEXT, Raw, close, frame, raw_socket

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # The hook that is to replace that fixture would speak for all tests.
    pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy":DeprecationWarning'),
]

PATHS = ("/v1/responses", "/api/chat")
LIMIT = 256 * 1024
"""`max_message_bytes` here."""


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that we serve with: it reads and closes in ways of its own."""
    return uvloop.EventLoopPolicy()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with running(max_message_bytes=LIMIT) as server:
        yield server


@asynccontextmanager
async def bystander(server: RunningServer) -> AsyncIterator[None]:
    """Somebody whose answer goes on meanwhile, and who must get all of it; and whatever happened beside it
    must leave no task, file, connection, answer or block behind."""
    before = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    async with server.socket() as other:
        server.gate.close()
        await other.create("bystander", max_output_tokens=50)
        server.gate.step(10)
        yield
        server.gate.open()
        events = await other.until("response.incomplete", "error")
        assert text_of(events) == said("bystander", 50)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    await eventually(lambda: not server.server.server_state.connections)
    await eventually(lambda: (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))) == before)
    assert server.is_idle


VIOLATIONS: dict[str, tuple[int, list[bytes]]] = {
    **{f"opcode {code}": (1002, [frame(code, b"x")]) for code in (3, 7, 11, 15)},
    **{f"reserved bits {bits}": (1002, [frame(TEXT, b"{}", rsv=bits)]) for bits in (1, 2, 4, 7)},
    "reserved bit in a ping": (1002, [frame(PING, rsv=2)]),
    "not masked": (1002, [frame(TEXT, b"{}", masked=False)]),
    "close, not masked": (1002, [frame(CLOSE, b"\x03\xe8", masked=False)]),
    "fragmented ping": (1002, [frame(PING, b"x", fin=False)]),
    "fragmented close": (1002, [frame(CLOSE, b"\x03\xe8", fin=False)]),
    "large ping": (1002, [frame(PING, b"x" * 126)]),
    "large close": (1002, [close(1000, b"x" * 124)]),
    "continuation of nothing": (1002, [frame(CONT, b"x")]),
    "continuation after the end": (1002, [frame(BINARY, b"x"), frame(CONT, b"x")]),
    "message in a message": (1002, [frame(TEXT, b"{", fin=False), frame(TEXT, b"}")]),
    "close of one byte": (1002, [frame(CLOSE, b"\x03")]),
    **{
        f"close code {code}": (1002, [close(code)])
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "close reason that is no UTF-8": (1007, [close(1000, b"\xff")]),
    **{
        f"text that is no UTF-8: {text!r}": (1007, [frame(TEXT, text)])
        for text in (b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
    },
    "fragments that are no UTF-8": (
        1007,
        [frame(TEXT, b"\xe2", fin=False), frame(CONT, b"\x82", fin=False), frame(CONT, b"\x28")],
    ),
    "something after it": (1007, [frame(TEXT, b"\xff"), frame(PING), frame(TEXT, b"\xff"), close(1000)]),
    "17 MiB": (1009, [frame(TEXT, b"x" * 100_000, claimed=17 << 20)]),
    "a length beyond all": (1009, [frame(TEXT, b"x", length_bits=64, claimed=(1 << 64) - 1)]),
    "fragments over the limit": (
        1009,
        [frame(TEXT, b"x" * (LIMIT // 2), fin=False), frame(CONT, b"x" * (LIMIT // 2 + 1), fin=False)],
    ),
}


@pytest.mark.parametrize("path", PATHS)
async def test_violations_are_closed_on_with_their_code(server: RunningServer, path: str) -> None:
    async with bystander(server):
        for name, (code, frames) in VIOLATIONS.items():
            async with raw_socket(server.port, path) as socket:
                socket.send(*frames)
                got, reason = await socket.closed_with()
                assert got == code, name
                assert reason, name
                if code == 1009:
                    assert str(LIMIT) in reason, name


@pytest.mark.parametrize("path", PATHS)
async def test_a_close_is_answered_with_the_same(server: RunningServer, path: str) -> None:
    beginnings = ([], [frame(TEXT, b"{", fin=False)], [frame(PING), frame(TEXT, b"", fin=False)])
    async with bystander(server):
        for code in (1000, 1001, 1003, 1007, 1011, 1012, 3000, 3999, 4000, 4999):
            async with raw_socket(server.port, path) as socket:
                socket.send(*beginnings[code % 3], close(code, "adieu é".encode()))
                assert await socket.closed_with() == (code, "adieu é")
        for beginning in beginnings:
            async with raw_socket(server.port, path) as socket:
                socket.send(*beginning, frame(CLOSE))
                assert await socket.closed_with() == (None, "")


async def test_a_violation_after_our_close_is_answered_with_no_other(server: RunningServer) -> None:
    async with bystander(server), raw_socket(server.port, "/api/chat") as socket:
        socket.send(frame(TEXT, b"no request"))
        assert (await socket.until(CLOSE))[1][:2] == (1008).to_bytes(2, "big")
        socket.send(frame(3))
        async with asyncio.timeout(PATIENCE):
            assert await socket.reader.read() == b""


NONSENSE = b'{"requestId": "r", "type": "nonsense", "padding": "%s"}'
"""What both sockets answer with an error event, and stay open."""


async def gets_error(socket: Raw) -> None:
    _, payload = await socket.until(TEXT)
    assert orjson.loads(payload)["type"] == "error"


@pytest.mark.parametrize("path", PATHS)
async def test_unusual_frames_that_are_right_are_read(server: RunningServer, path: str) -> None:
    start, snowman, end = (NONSENSE % "☃".encode()).partition("☃".encode())
    async with bystander(server), raw_socket(server.port, path) as socket:
        for frames in (
            [frame(TEXT, NONSENSE, length_bits=16)],
            [frame(TEXT, NONSENSE, length_bits=64)],
            [frame(TEXT, b"", fin=False), frame(CONT, NONSENSE, fin=False), frame(CONT, b"")],
            # A character in three fragments, and control frames between them.
            [
                frame(TEXT, start + snowman[:1], fin=False),
                frame(PONG),
                frame(CONT, snowman[1:2], fin=False),
                frame(PING),
                frame(CONT, snowman[2:] + end),
            ],
            [frame(TEXT, NONSENSE.ljust(LIMIT))],
        ):
            socket.send(*frames)
            await gets_error(socket)
        assert await socket.is_alive()


NOT_REQUESTS = {
    "binary": frame(BINARY, b'{"type": "response.create"}'),
    "empty": frame(TEXT, b""),
    "no JSON": frame(TEXT, b"hello"),
    "cut": frame(TEXT, b'{"type": "respon'),
    "no object": frame(TEXT, b"[1, 2]"),
    "byte order mark": frame(TEXT, b"\xef\xbb\xbf{}"),
    "lone surrogate": frame(TEXT, b'{"type": "\\ud83d"}'),
    "NaN": frame(TEXT, b'{"type": NaN}'),
    "beyond a double": frame(TEXT, b'{"type": 1e999}'),
    "a number that never ends": frame(TEXT, b'{"type": ' + b"9" * 10_000 + b"}"),
    "deep": frame(TEXT, b'{"type": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "null byte": frame(TEXT, b'{"type": "\x00"}'),
    "wrong types": frame(TEXT, b'{"type": {"type": []}}'),
    "same name twice": frame(TEXT, b'{"type": "ping", "type": 1}'),
    "many names": frame(TEXT, b"{" + b",".join(b'"k%d": 0' % each for each in range(10_000)) + b"}"),
}


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_no_request_is_told_so(server: RunningServer, path: str) -> None:
    async with bystander(server):
        for name, message in NOT_REQUESTS.items():
            async with raw_socket(server.port, path) as socket:
                socket.send(message)
                if path == "/api/chat":  # it has no event for an error that is no request's
                    code, reason = await socket.closed_with()
                    assert (code, bool(reason)) == (1008, True), name
                else:
                    await gets_error(socket)
                    assert await socket.is_alive(), name


async def fragments(socket: Raw) -> None:
    """A message in a hundred thousand pieces."""
    start, _, end = NONSENSE.partition(b"%s")
    piece = frame(CONT, b"x", fin=False)
    socket.send(frame(TEXT, start, fin=False), piece * 100_000, frame(CONT, end))
    await gets_error(socket)


async def pings(socket: Raw) -> None:
    """Thousands of pings, every one of which is answered to a client that reads."""
    count = 3000
    socket.send(*(frame(PING, str(each).encode()) for each in range(count)))
    assert [await socket.read() for _ in range(count)] == [
        (PONG, str(each).encode()) for each in range(count)
    ]


async def bad_messages(socket: Raw) -> None:
    """More than may be kept unread, from a client that reads."""
    socket.send(frame(TEXT, NONSENSE) * 1000)
    for _ in range(1000):
        await gets_error(socket)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("flood", [fragments, pings, bad_messages])
async def test_floods_are_read_and_hold_up_nobody(
    server: RunningServer, path: str, flood: Callable[[Raw], Coroutine[Any, Any, None]]
) -> None:
    async with bystander(server), raw_socket(server.port, path) as socket:
        await flood(socket)
        assert await socket.is_alive()


def connection_of(server: RunningServer, socket: Raw) -> Any:
    ours = socket.writer.get_extra_info("sockname")
    (connection,) = [c for c in server.server.server_state.connections if c.client == ours]
    return connection


@pytest.mark.parametrize("path", PATHS)
async def test_pings_of_a_client_that_reads_nothing_pile_up_nowhere(server: RunningServer, path: str) -> None:
    async with bystander(server), raw_socket(server.port, path) as socket:
        connection = connection_of(server, socket)
        socket.writer.transport.pause_reading()
        ping, count = frame(PING, b"x" * 125), 0
        while connection.writable.is_set() or count % 500:
            socket.send(ping * 100)
            await socket.writer.drain()
            count += 100
        for _ in range(50):
            socket.send(ping * 100)
            await socket.writer.drain()
        await eventually(lambda: not connection._unread)
        assert connection.transport.get_write_buffer_size() < 2 * MAX_UNSENT
        socket.writer.transport.resume_reading()
        assert await socket.is_alive()


@pytest.mark.parametrize("path", PATHS)
async def test_a_message_that_never_ends_takes_no_memory(server: RunningServer, path: str) -> None:
    async with bystander(server), raw_socket(server.port, path) as socket:
        connection = connection_of(server, socket)
        socket.send(frame(TEXT, b"x", fin=False))
        socket.send(frame(CONT, b"", fin=False) * 20_000)
        assert await socket.is_alive()
        assert connection.frames == [bytearray(b"x")]
        assert isinstance(connection.frames[0], bytearray), "it grows, and is not copied for every fragment"


@pytest.mark.parametrize("path", PATHS)
async def test_however_a_connection_ends_nothing_of_it_is_kept(server: RunningServer, path: str) -> None:
    ends = {
        "violation": frame(3),
        "close": close(1000),
        "no UTF-8": frame(TEXT, b"\xff"),
        "in a message": frame(TEXT, b"{", fin=False) * 2,
        "too large": frame(TEXT, claimed=LIMIT + 1),
        "break": b"",
        "break in a frame": frame(TEXT, b"{", claimed=1000),
    }
    kept = {}
    for name, data in ends.items():
        async with raw_socket(server.port, path) as socket:
            kept[name] = weakref.ref(connection_of(server, socket))
            socket.send(data)
            if not name.startswith("break"):
                await socket.closed_with()
    await eventually(lambda: not server.server.server_state.connections)
    await eventually(lambda: not server.server.server_state.tasks)
    gc.collect()
    assert [name for name, connection in kept.items() if connection() is not None] == []


# -- the handshake ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_frames_sent_with_the_handshake_are_read_after_it(server: RunningServer, path: str) -> None:
    async with bystander(server), raw_socket(server.port, path, early=frame(PING, b"early")) as socket:
        assert await socket.read() == (PONG, b"early")
    async with bystander(server), raw_socket(server.port, path, early=b"\x00garbage") as socket:
        assert (await socket.closed_with())[0] == 1002


async def test_connections_that_end_in_the_handshake_leave_nothing(server: RunningServer) -> None:
    head = b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    async with bystander(server):
        for size in range(0, len(head), 7):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head[:size])
            await writer.drain()
            writer.transport.abort()


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100, b"\xff\xfe" * 50, b"SSH-2.0\r\n"]
)
async def test_what_is_no_http_is_refused(server: RunningServer, garbage: bytes) -> None:
    async with bystander(server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 ")
        assert orjson.loads(body)["error"]["code"] == "invalid_request"


# -- any frames at all -----------------------------------------------------------------------------------

Sent = tuple[int, bytes, bool, int, bool]
"""Opcode, payload, fin, reserved bits, masked."""

PAYLOADS = st.one_of(st.binary(max_size=140), st.text(max_size=40).map(str.encode))
FRAMES: st.SearchStrategy[list[Sent]] = st.lists(
    st.tuples(
        st.sampled_from([CONT, CONT, TEXT, TEXT, BINARY, PING, PONG, CLOSE, 3, 11]),
        PAYLOADS,
        st.sampled_from([True, True, False]),
        st.sampled_from([0] * 15 + [4]),
        st.sampled_from([True] * 15 + [False]),
    ),
    max_size=8,
)


def outcome(frames: list[Sent]) -> int | None:
    """What RFC 6455 says of them: the code that a server closes with, 1005 for a close without one, or None
    if the connection stays open."""
    message: tuple[int, bytes] | None = None
    for opcode, payload, fin, rsv, masked in frames:
        is_control = opcode >= CLOSE
        if opcode not in (CONT, TEXT, BINARY, CLOSE, PING, PONG) or rsv or not masked:
            return 1002
        if is_control and (not fin or len(payload) > 125):
            return 1002
        if opcode == CLOSE:
            return close_outcome(payload)
        if is_control:
            continue
        if (opcode == CONT) != (message is not None):
            return 1002
        kind, before = message or (opcode, b"")
        message = kind, before + payload
        if fin:
            if kind == TEXT and not is_utf8(message[1]):
                return 1007
            message = None
    return None


def close_outcome(payload: bytes) -> int:
    if not payload:
        return 1005
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1:
        return 1002
    if not is_utf8(payload[2:]):
        return 1007
    allowed = {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}
    return code if code in allowed else 1002


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(frames=FRAMES, cuts=st.lists(st.integers(0, 200), max_size=3))
async def test_any_frames_are_taken_as_the_protocol_says(
    server: RunningServer, frames: list[Sent], cuts: list[int]
) -> None:
    """At the socket that closes on nobody for what a message says."""
    data = b"".join(
        frame(opcode, payload, fin=fin, rsv=rsv, masked=masked)
        for opcode, payload, fin, rsv, masked in frames
    )
    wanted = outcome(frames)
    async with raw_socket(server.port, "/v1/responses") as socket:
        start = 0
        for cut in sorted(cuts):
            socket.send(data[start:cut])
            await socket.writer.drain()
            await asyncio.sleep(0)
            start = max(start, cut)
        socket.send(data[start:])
        if wanted is None:
            assert await socket.is_alive()
        else:
            code, _ = await socket.closed_with()
            assert (1005 if code is None else code) == wanted
    await eventually(lambda: not server.server.server_state.connections)
