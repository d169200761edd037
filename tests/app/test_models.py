"""What a model's entry says of sampling is what requests are held to, and what they get."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.protocol.sampling_fields import SAMPLING_FIELDS
from tests.app.harness import MODEL, running

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
RANGED = tuple(name for name in SAMPLING_FIELDS if name != "stop")


async def told(http: httpx.AsyncClient) -> dict[str, Any]:
    (model,) = (await http.get("/v1/models")).json()["data"]
    sampling: dict[str, Any] = model["sampling"]
    return sampling


async def refused(http: httpx.AsyncClient, name: str, value: Any) -> bool:
    fields = {"input": "hello", "max_output_tokens": 1} | {name: value}
    reply = await http.post("/v1/responses", json=fields)
    if reply.status_code == 200:
        return False
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, name), error
    return True


async def test_the_bounds_of_each_field_are_those_that_hold() -> None:
    async with running(max_model_len=160) as server, server.http() as http:
        sampling = await told(http)
        assert tuple(sampling) == SAMPLING_FIELDS
        for name in RANGED:
            schema = sampling[name]
            step = 1 if schema["type"] == "integer" else 0.001
            low = schema["minimum"] if "minimum" in schema else schema["exclusiveMinimum"] + step
            high = schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - step
            assert not await refused(http, name, low), (name, low)
            assert await refused(http, name, low - step), (name, low - step)
            if name == "max_output_tokens":
                continue  # A prompt takes its part of the context.
            assert not await refused(http, name, high), (name, high)
            assert await refused(http, name, high + step), (name, high + step)
        assert sampling["max_output_tokens"]["maximum"] == 160


async def test_stop_strings_are_bounded_as_told() -> None:
    async with running() as server, server.http() as http:
        one, several = (await told(http))["stop"]["anyOf"]
        assert one == several["items"]
        assert not await refused(http, "stop", ["x" * one["maxLength"]] * several["maxItems"])
        assert await refused(http, "stop", ["x"] * (several["maxItems"] + 1))
        assert await refused(http, "stop", "x" * (one["maxLength"] + 1))
        assert await refused(http, "stop", "x" * (one["minLength"] - 1))


@pytest.mark.parametrize("sent", [{}, dict.fromkeys(SAMPLING_FIELDS)])
async def test_the_defaults_are_what_a_request_gets_that_says_nothing(sent: dict[str, None]) -> None:
    async with running(never_ends=False, max_model_len=160) as server, server.http() as http:
        sampling = await told(http)
        assert (await http.post("/v1/responses", json={"input": "hello"} | sent)).status_code == 200
        got = server.engine.submitted[0][0].sampling
        assert {name: schema["default"] for name, schema in sampling.items() if name in RANGED[:-2]} == {
            name: getattr(got, name) for name in RANGED[:-2]
        }
        assert (sampling["max_output_tokens"]["default"], got.max_tokens) == (None, None)
        assert (sampling["stop"]["default"], got.stop) == ([], ())
        assert sampling["seed"]["default"] is None


async def test_a_key_can_be_tried() -> None:
    async with running(api_keys=("right",)) as server, server.http() as http:
        for path in ("/v1/models", f"/v1/models/{MODEL}"):
            for headers in ({}, {"authorization": "Bearer wrong"}):
                reply = await http.get(path, headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert (await http.get(path, headers={"authorization": "Bearer right"})).status_code == 200
