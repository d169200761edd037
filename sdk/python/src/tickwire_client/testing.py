"""A server for tests of programs that use this client: it says, and breaks, what it is told to.

Knows: the protocol from the server's side, lanes and resuming included. Does not know: any model, limits,
authentication beyond refusing a handshake.

    async with FakeServer() as server, Client(server.url) as client:
        server.say("Hel", "lo")
        assert (await client.chat().send("Hi")).text == "Hello"

`Backend` and `Wire` are the same without sockets.
"""

from __future__ import annotations

import asyncio
import http
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.http11 import Response as HttpResponse

Json = dict[str, Any]

OPENING = 4
CLOSING = 4


@dataclass(frozen=True, slots=True)
class Script:
    """What is to become of a request."""

    deltas: tuple[str, ...]
    pause_after: int | None = None
    """Deltas after which it waits for `Backend.release`."""
    refusal: Json | None = None
    """The error event that is sent instead of an answer."""
    failure: Json | None = None
    """The error with which it fails after its deltas."""


@dataclass(frozen=True, slots=True)
class _End:
    kind: str
    status: str
    reason: str | None = None
    error: Json | None = None


class Told:
    """A response: a numbered log, for any number of readers."""

    def __init__(self, name: str, request: Json, script: Script) -> None:
        self.id = f"resp_{name}"
        self.request = request
        self._item_id = f"msg_{name}"
        self._deltas = list(script.deltas)
        self._pause_after = script.pause_after
        self._num_taken = 0
        self._end = _End("response.completed", "completed")
        if script.failure is not None:
            self._end = _End("response.failed", "failed", error=script.failure)

    @property
    def warms_up(self) -> bool:
        return self.request.get("generate") is False

    @property
    def num_events(self) -> int:
        return 3 if self.warms_up else OPENING + len(self._deltas) + CLOSING

    @property
    def has_ended(self) -> bool:
        """Its end was told to somebody."""
        return self._num_taken == self.num_events

    def release(self) -> None:
        self._pause_after = None

    def cut(self, status: str, reason: str | None) -> None:
        """Say no more than was said. Its end stays as it is if somebody knows of it."""
        num_told = max(0, self._num_taken - OPENING)
        if num_told > len(self._deltas):
            return
        del self._deltas[num_told:]
        self.release()
        self._end = _End("response.incomplete", status, reason)

    def event(self, number: int) -> Json | None:
        """None: it has not happened yet."""
        event = self._warming(number) if self.warms_up else self._event(number)
        if event is not None:
            self._num_taken = max(self._num_taken, number + 1)
            event["sequence_number"] = number
        return event

    def stats(self) -> Json:
        output_tokens = max(0, min(len(self._deltas), self._num_taken - OPENING))
        return {
            "status": "ended" if self.has_ended else "generating",
            "queue_position": None,
            "prompt_tokens": 1,
            "computed_tokens": 1 + output_tokens,
            "cached_tokens": 0,
            "output_tokens": output_tokens,
            "max_output_tokens": self.request.get("max_output_tokens"),
            "context_left": 1000,
            "tokens_per_s": None,
            "waited_ms": 0.0,
            "first_token_ms": None,
            "preemptions": 0,
            "readers": 1,
        }

    def _warming(self, number: int) -> Json:
        kinds = ("response.created", "response.in_progress", "response.completed")
        is_last = number == len(kinds) - 1
        response = self._response("completed") | self._usage() if is_last else self._response("in_progress")
        return {"type": kinds[number], "response": response}

    def _event(self, number: int) -> Json | None:
        index = number - OPENING
        if index < 0:
            return self._opening(number)
        if self._pause_after is not None and index >= self._pause_after:
            return None
        if index < len(self._deltas):
            return self._at_part("response.output_text.delta", delta=self._deltas[index], logprobs=[])
        return self._closing(index - len(self._deltas))

    def _opening(self, number: int) -> Json:
        match number:
            case 0:
                return {"type": "response.created", "response": self._response("in_progress")}
            case 1:
                return {"type": "response.in_progress", "response": self._response("in_progress")}
            case 2:
                return self._item("response.output_item.added", [])
        return self._at_part("response.content_part.added", part=_part(""))

    def _closing(self, step: int) -> Json:
        text = "".join(self._deltas)
        match step:
            case 0:
                return self._at_part("response.output_text.done", text=text, logprobs=[])
            case 1:
                return self._at_part("response.content_part.done", part=_part(text))
            case 2:
                return self._item("response.output_item.done", [_part(text)])
        end = self._end
        response = self._response(end.status) | {
            "incomplete_details": {"reason": end.reason} if end.reason else None,
            "error": end.error,
        }
        return {"type": end.kind, "response": response | self._usage()}

    def _usage(self) -> Json:
        usage = {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(self._deltas),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 1 + len(self._deltas),
        }
        return {"usage": usage}

    def _response(self, status: str) -> Json:
        previous_id = self.request.get("previous_response_id")
        response = {"id": self.id, "object": "response", "status": status, "model": "fake-model"}
        return response | {"previous_response_id": previous_id, "usage": None}

    def _item(self, kind: str, content: list[Json]) -> Json:
        item = {"id": self._item_id, "type": "message", "role": "assistant", "content": content}
        return {"type": kind, "output_index": 0, "item": item}

    def _at_part(self, kind: str, **fields: object) -> Json:
        return {"type": kind, "item_id": self._item_id, "output_index": 0, "content_index": 0, **fields}


class Backend:
    """What a server knows beyond a single connection: responses, and what it is to say next."""

    def __init__(self) -> None:
        self.scripts: deque[Script] = deque()
        """Of the next requests; one for which there is none gets "You said: ...", word by word."""
        self.requests: list[Json] = []
        """All `response.create` messages that came, and the requests that steering made."""
        self._told: dict[str, Told] = {}
        self._names = itertools.count(1)

    def create(self, request: Json) -> Told | Json:
        """A response, or the error event that is sent instead."""
        self.requests.append(request)
        previous_id = request.get("previous_response_id")
        if previous_id is not None and previous_id not in self._told:
            return error_event(400, "previous_response_not_found", "previous_response_id")
        script = self._script(request)
        if script.refusal is not None:
            return script.refusal
        told = Told(f"{next(self._names):08}", request, script)
        self._told[told.id] = told
        return told

    def find(self, response_id: object) -> Told | None:
        return self._told.get(str(response_id))

    def release(self) -> None:
        """Let all that have paused go on."""
        for told in self._told.values():
            told.release()

    def forget(self) -> None:
        """As if it had just been started."""
        self._told.clear()

    def _script(self, request: Json) -> Script:
        if request.get("generate") is False:
            return Script(())
        if self.scripts:
            return self.scripts.popleft()
        content = request["input"] if isinstance(request["input"], str) else request["input"][-1]["content"]
        words = f"You said: {content}".split(" ")
        return Script((words[0], *(f" {word}" for word in words[1:])))


@dataclass(slots=True)
class _Lane:
    waiting: deque[Json] = field(default_factory=deque)
    """Messages: response.create and response.resume."""
    told: Told | None = None
    next_number: int = 0


class Wire:
    """One connection, without a socket."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lanes: dict[str | None, _Lane] = {}
        self._ready: deque[Json] = deque()
        """Frames that belong to no lane's order."""

    def receive(self, message: Json) -> None:
        told = self._backend.find(message.get("response_id"))
        match message["type"]:
            case "response.create" | "response.resume":
                lane = self._lanes.setdefault(message.get("stream_id"), _Lane())
                lane.waiting.append(message)
            case "response.cancel":
                if told is None:
                    self._ready.append(_in_lane(not_found(message["response_id"]), message.get("stream_id")))
                elif not told.has_ended:
                    told.cut("cancelled", None)
            case "response.steer":
                self._steer(message)
            case "response.stats":
                response_id = message["response_id"]
                event = {"type": "response.stats", "response_id": response_id}
                self._ready.append(
                    not_found(response_id) if told is None else event | {"stats": told.stats()}
                )
            case "ping":
                self._ready.append({"type": "pong", "id": message.get("id"), "time": 0.0})
            case kind:
                self._ready.append(error_event(400, "unknown_message_type", "type", f"got {kind!r}"))

    def next_frame(self) -> Json | None:
        """What is to be sent next; lanes take turns. None: nothing, for now."""
        if self._ready:
            return self._ready.popleft()
        for name, lane in list(self._lanes.items()):
            frame = self._frame_of(lane)
            if lane.told is None and not lane.waiting:
                del self._lanes[name]
            if frame is not None:
                if name in self._lanes:
                    self._lanes[name] = self._lanes.pop(name)
                return _in_lane(frame, name)
        return None

    def _frame_of(self, lane: _Lane) -> Json | None:
        if lane.told is None:
            return self._begin(lane, lane.waiting.popleft())
        event = lane.told.event(lane.next_number)
        if event is not None:
            lane.next_number += 1
            if lane.next_number == lane.told.num_events:
                lane.told = None
        return event

    def _begin(self, lane: _Lane, message: Json) -> Json | None:
        if message["type"] == "response.resume":
            told = self._backend.find(message["response_id"])
            if told is None:
                return not_found(message["response_id"])
            number = message.get("starting_after", -1)
            lane.told, lane.next_number = told, number + 1
            if lane.next_number == told.num_events:
                lane.told = None
            status = "completed" if told.has_ended else "in_progress"
            resumed = {"type": "response.resumed", "response_id": told.id, "starting_after": number}
            return resumed | {"status": status}
        created = self._backend.create(message)
        if isinstance(created, Told):
            lane.told, lane.next_number = created, 0
            return self._frame_of(lane)
        return created

    def _steer(self, message: Json) -> None:
        steered_id = message["previous_response_id"]
        for name, lane in self._lanes.items():
            if lane.told is not None and lane.told.id == steered_id and not lane.told.has_ended:
                lane.told.cut("incomplete", "steered")
                successor = lane.told.request | {
                    "input": message["input"],
                    "previous_response_id": steered_id,
                }
                lane.waiting.appendleft(successor)
                steer: Json = {"id": f"steer_{steered_id}", "previous_response_id": steered_id}
                accepted = {"type": "response.steer.accepted", "sequence_number": 0, "steer": steer}
                self._ready.append(_in_lane(accepted, name))
                return
        error = {"type": "invalid_request_error", "code": "response_already_completed", "message": "it ended"}
        steer = {"previous_response_id": steered_id, "input": message["input"]}
        failed = {"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error}
        self._ready.append(failed)


class FakeServer:
    """An async context manager: a server on a free port of this machine.

    Args:
        delay: seconds between two frames of answers.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self.backend = Backend()
        self.delay = delay
        self.messages: list[Json] = []
        """All that came, from all connections."""
        self.api_keys: list[str | None] = []
        """Of each connection."""
        self.is_mute = False
        """It reads, and sends nothing: a dead connection, as far as a client can tell."""
        self._server: Server | None = None
        self._connections: dict[ServerConnection, asyncio.Event] = {}
        self._frames_until_cut: deque[int] = deque()
        self._refusals: deque[int] = deque()
        self._news = asyncio.Event()

    # -- what tests say ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("use it inside of `async with FakeServer()`")
        host, port = next(iter(self._server.sockets)).getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def requests(self) -> list[Json]:
        """The requests for answers that came, in order."""
        return self.backend.requests

    def say(self, *deltas: str, pause_after: int | None = None) -> None:
        """The next request gets these. After `pause_after` of them it waits for `release`."""
        self.backend.scripts.append(Script(deltas, pause_after))

    def refuse(
        self, status: int, code: str, message: str = "no", param: str | None = None, **more: Any
    ) -> None:
        """The next request gets this error. `more` are further fields of it, such as `retry_after`."""
        self.backend.scripts.append(Script((), refusal=error_event(status, code, param, message, **more)))

    def fail(self, *deltas: str, code: str = "server_error", message: str = "the server failed") -> None:
        """The next request gets these, and then fails."""
        self.backend.scripts.append(Script(deltas, failure={"code": code, "message": message}))

    def release(self) -> None:
        """Let all answers that have paused go on."""
        self.backend.release()
        self._wake()

    def cut_after(self, *frames: int) -> None:
        """Reset a connection that has been sent so many frames of answers from now on; then another one after
        the next number; and so on."""
        self._frames_until_cut.extend(frames)

    def cut(self) -> None:
        """Reset all connections."""
        for connection in self._connections:
            connection.transport.abort()

    async def close_with(self, code: int, reason: str = "") -> None:
        """Close all connections with a code."""
        for connection in list(self._connections):
            await connection.close(code, reason)

    async def send_raw(self, text: str) -> None:
        """Send this message on all connections, whatever it is."""
        for connection in list(self._connections):
            await connection.send(text)

    def restart(self) -> None:
        """Reset all connections, and know of no response any more."""
        self.cut()
        self.backend.forget()

    def refuse_handshakes(self, *statuses: int) -> None:
        """The next connections get these HTTP statuses instead."""
        self._refusals.extend(statuses)

    async def received(self, kind: str, count: int = 1) -> list[Json]:
        """Waits until `count` messages of this type have come, and returns them."""
        while True:
            self._news.clear()
            found = [message for message in self.messages if message["type"] == kind]
            if len(found) >= count:
                return found
            await self._news.wait()

    # -- the server -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            compression=None,
            ping_interval=None,
            process_request=self._process_request,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def _process_request(self, connection: ServerConnection, request: Request) -> HttpResponse | None:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        self.api_keys.append(key if scheme == "Bearer" else None)
        if self._refusals:
            status = http.HTTPStatus(self._refusals.popleft())
            return connection.respond(status, f"{status.phrase}\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        wire, news = Wire(self.backend), asyncio.Event()
        self._connections[connection] = news
        writer = asyncio.create_task(self._write(connection, wire, news))
        try:
            async for text in connection:
                message = orjson.loads(text)
                self.messages.append(message)
                wire.receive(message)
                news.set()
                self._news.set()
        except ConnectionClosed:
            pass
        finally:
            del self._connections[connection]
            writer.cancel()
            with suppress(asyncio.CancelledError):
                await writer

    async def _write(self, connection: ServerConnection, wire: Wire, news: asyncio.Event) -> None:
        with suppress(ConnectionClosed):
            while True:
                news.clear()
                for frame in self._frames(wire):
                    if self._is_cut_before(frame):
                        connection.transport.abort()
                        return
                    await connection.send(orjson.dumps(frame).decode())
                    if "sequence_number" in frame:
                        await asyncio.sleep(self.delay)
                await news.wait()

    def _frames(self, wire: Wire) -> Iterator[Json]:
        while not self.is_mute and (frame := wire.next_frame()) is not None:
            yield frame

    def _is_cut_before(self, frame: Json) -> bool:
        if not self._frames_until_cut or "sequence_number" not in frame:
            return False
        if self._frames_until_cut[0] == 0:
            self._frames_until_cut.popleft()
            return True
        self._frames_until_cut[0] -= 1
        return False

    def _wake(self) -> None:
        for news in self._connections.values():
            news.set()


def error_event(status: int, code: str, param: str | None = None, message: str = "no", **more: Any) -> Json:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code, **more}
    return {"type": "error", "status": status, "error": error}


def not_found(response_id: str) -> Json:
    return error_event(404, "response_not_found", "response_id", f"response_id: got {response_id!r}")


def _in_lane(frame: Json, lane: str | None) -> Json:
    return frame if lane is None else frame | {"stream_id": lane}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
