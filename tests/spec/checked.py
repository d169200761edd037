"""Clients that hold all they get against the documents that the server serves, and note what it was."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from websockets.asyncio.client import ClientConnection, connect

from app.spec.openapi import EVENTS
from tests.app.harness import PATIENCE, RunningServer, Socket

METHODS = {"get", "post", "delete", "put", "patch"}


class Document:
    """A document, and what was seen of what is in it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        resource = Resource.from_contents(content, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("document:", resource)
        self._validators: dict[str, Draft202012Validator] = {}

    def validate(self, value: object, *pointer: str) -> None:
        """`value` against the schema at `pointer`."""
        path = "document:#/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in pointer)
        if path not in self._validators:
            self._validators[path] = Draft202012Validator({"$ref": path}, registry=self._registry)
        errors = sorted(self._validators[path].iter_errors(value), key=lambda error: -len(error.path))
        assert not errors, f"{path}: {value!r}: {errors[0].json_path}: {errors[0].message}"

    def resolve(self, value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """What a reference stands for, and where it is."""
        pointer: list[str] = value["$ref"].removeprefix("#/").split("/")
        found: Any = self.content
        for step in pointer:
            found = found[step]
        return found, pointer


class Http:
    """A client of one server; `seen` has (method, path as documented, status), `events` their types."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen: set[tuple[str, str, int]] = set()
        self.events: set[str] = set()
        self._patterns = {
            path: re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(path)))
            for path in sorted(document.content["paths"], key=lambda path: (path.count("{"), -len(path)))
        }

    @property
    def documented(self) -> set[tuple[str, str, int]]:
        return {
            (method, path, int(status))
            for path, operations in self.document.content["paths"].items()
            for method in METHODS & set(operations)
            for status in operations[method]["responses"]
        }

    def check(self, response: httpx.Response) -> httpx.Response:
        """A response that was read to its end."""
        method = response.request.method.lower()
        at = response.request.url.path
        path = next(path for path, pattern in self._patterns.items() if pattern.fullmatch(at))
        pointer = ["paths", path, method, "responses", str(response.status_code)]
        operation = self.document.content["paths"][path][method]
        answer = operation["responses"][str(response.status_code)]
        if "$ref" in answer:
            answer, pointer = self.document.resolve(answer)
        for name, header in answer.get("headers", {}).items():
            assert name in response.headers or not header["required"], f"{at}: the header {name} is missing"
        kind = response.headers.get("content-type", "").split(";")[0]
        content = answer.get("content", {})
        assert kind in content or "*/*" in content or not response.content, f"{at}: {kind} is not documented"
        if kind == "application/json" and kind in content:
            self.document.validate(response.json(), *pointer, "content", kind, "schema")
        if kind == "text/event-stream":
            for event in events(response.text):
                self.document.validate(event, *pointer, "content", kind, EVENTS)
                self.events.add(event.get("type") or event.get("object") or "error")
        self.seen.add((method, path, response.status_code))
        return response

    @asynccontextmanager
    async def of(self, server: RunningServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        async def check(response: httpx.Response) -> None:
            await response.aread()
            self.check(response)

        hooks = {"response": [check]}
        async with httpx.AsyncClient(
            base_url=server.url, timeout=PATIENCE, event_hooks=hooks, **options
        ) as client:
            yield client


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events, without [DONE]."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [orjson.loads(each) for each in data if each != "[DONE]"]


class Sockets:
    """`seen` has (channel, direction, type), `chunks` the types of what is inside a message."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.chunks: set[str] = set()
        self.seen: set[tuple[str, str, str]] = set()

    @property
    def documented(self) -> set[tuple[str, str, str]]:
        names = self.document.content["components"]["messages"]
        return {tuple(name.split(".", 2)) for name in names}  # type: ignore[misc]

    def check(self, channel: str, direction: str, message: dict[str, Any]) -> None:
        kind = message["type"]
        name = f"{channel}.{direction}.{kind}"
        assert name in self.document.content["components"]["messages"], f"{name} is not documented"
        self.document.validate(message, "components", "messages", name, "payload")
        self.seen.add((channel, direction, kind))
        if "chunk" in message:
            self.chunks.add(message["chunk"]["type"])

    @asynccontextmanager
    async def of(self, server: RunningServer, channel: str, **options: Any) -> AsyncIterator[CheckedSocket]:
        address = self.document.content["channels"][channel]["address"]
        url = f"ws://127.0.0.1:{server.port}{address}"
        async with connect(url, max_size=None, compression=None, **options) as connection:
            yield CheckedSocket(connection, self, channel)


class CheckedSocket(Socket):
    def __init__(self, connection: ClientConnection, sockets: Sockets, channel: str) -> None:
        super().__init__(connection)
        self._sockets = sockets
        self._channel = channel

    async def send(self, **message: Any) -> None:
        self._sockets.check(self._channel, "receive", message)
        await super().send(**message)

    async def send_wrong(self, **message: Any) -> None:
        """Something that is not documented."""
        await super().send(**message)

    async def event(self) -> dict[str, Any]:
        event = await super().event()
        self._sockets.check(self._channel, "send", event)
        return event
