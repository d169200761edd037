"""The served documents: valid by their own standards, and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openapi_spec_validator
import orjson
import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from starlette.routing import Mount, Route, WebSocketRoute

from app.spec.asyncapi import asyncapi
from app.spec.openapi import REQUESTS, openapi
from tests.app.harness import running
from tests.clients.node import node_environment

ROOT = Path(__file__).resolve().parents[2]


async def test_the_documents_are_served_as_they_are() -> None:
    async with running() as server, server.http() as http:
        for path, document in (("/openapi.json", openapi()), ("/asyncapi.json", asyncapi())):
            response = await http.get(path)
            assert response.headers["content-type"] == "application/json"
            assert response.json() == orjson.loads(orjson.dumps(document))


def test_the_openapi_document_is_valid() -> None:
    openapi_spec_validator.validate(openapi())


def test_the_asyncapi_document_is_valid() -> None:
    scripts = node_environment().scripts
    schema = scripts.parent / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json"
    Draft7Validator(orjson.loads(schema.read_bytes())).validate(asyncapi())


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return here.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("make", [openapi, asyncapi])
def test_every_reference_leads_somewhere_and_every_schema_is_used(make: Any) -> None:
    document = make()
    found = references(document)
    for reference in found:
        at = document
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]
    schemas = document["components"]["schemas"]
    assert {f"#/components/schemas/{name}" for name in schemas} <= found
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
        Draft7Validator.check_schema(schema)


async def test_every_route_is_documented_and_nothing_else() -> None:
    async with running() as server:
        routes = server.app.routes
    served = {
        (method.lower(), re.sub(r"{(\w+):path}", r"{\1}", route.path))
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or {"POST"}) - {"HEAD"}
    } | {("get", f"{route.path}/{{path}}") for route in routes if isinstance(route, Mount)}
    paths = openapi()["paths"]
    assert served == {
        (method, path)
        for path, operations in paths.items()
        for method in operations
        if method != "parameters"
    }
    sockets = {route.path for route in routes if isinstance(route, WebSocketRoute)}
    assert sockets == {channel["address"] for channel in asyncapi()["channels"].values()}
    assert len(served) + len(sockets) == len(routes), "no other kind of route"


async def test_who_asks_for_another_method_is_told_those_that_are_documented() -> None:
    async with running() as server, server.http() as http:
        for path, operations in openapi()["paths"].items():
            refused = await http.patch(re.sub("[{}]", "", path))
            assert refused.status_code == 405
            told = {method.strip().lower() for method in refused.headers["allow"].split(",")}
            assert told - {"head"} == set(operations) - {"parameters"}, path


def test_every_field_of_a_request_is_documented_and_so_are_those_that_are_refused() -> None:
    schemas = openapi()["components"]["schemas"]
    for model, unsupported in REQUESTS:
        properties = schemas[model.__name__]["properties"]
        assert set(properties) == set(model.model_fields) | set(unsupported)
        for name, neutral in unsupported.items():
            assert properties[name]["enum"] == [*neutral, None]


def test_the_client_messages_of_the_protocol_s_description_are_documented() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    described = set(re.findall(r'^    {"type": "([a-z.]+)"', text, re.MULTILINE))
    messages = asyncapi()["channels"]["responses"]["messages"]
    documented = {name.split(".", 1)[1] for name in messages}
    assert described <= documented
