"""Models, health and metrics."""

from __future__ import annotations

import re

from tests.app.harness import MODEL, eventually, running


def values(text: str) -> dict[str, float]:
    """Sample -> value."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


async def test_the_model_is_listed_with_its_context() -> None:
    async with running(num_blocks=100) as server, server.http() as http:
        models = (await http.get("/v1/models")).json()
        one = (await http.get(f"/v1/models/{MODEL}")).json()
        missing = await http.get("/v1/models/someone/else")
    assert models["object"] == "list"
    assert models["data"] == [one]
    assert one["id"] == MODEL
    assert one["object"] == "model"
    assert one["max_model_len"] == 1600
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert MODEL in missing.json()["error"]["message"]


async def test_a_healthy_server_says_so() -> None:
    async with running() as server, server.http() as http:
        assert (await http.get("/livez")).json() == {"status": "alive"}
        for path in ("/readyz", "/health"):
            response = await http.get(path)
            assert (response.status_code, response.json()) == (200, {"status": "ready"})


async def test_the_metrics_count_what_happened() -> None:
    async with running(max_num_seqs=1) as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=8)
        server.gate.close()
        await socket.create("one", stream_id="a", max_output_tokens=100)
        await socket.create("two", stream_id="b", max_output_tokens=100)
        await eventually(lambda: server.holds(2))
        server.gate.step()  # whoever came while a tick was running is taken in by the next
        await eventually(lambda: server.stats().num_running == 1 and server.stats().num_waiting == 1)
        response = await http.get("/metrics")
        busy = values(response.text)
        assert busy["tickwire:num_requests_running"] == 1
        assert busy["tickwire:num_requests_waiting"] == 1
        assert busy["tickwire:kv_cache_usage_perc"] == 1 / 512
        assert busy["tickwire:websocket_connections_active"] == 1
        server.gate.open()
        for _ in range(2):
            await socket.until("response.incomplete")
        idle = values((await http.get("/metrics")).text)
    assert response.headers["content-type"].startswith("text/plain")
    assert idle["tickwire:num_requests_running"] == idle["tickwire:num_requests_waiting"] == 0
    assert idle["tickwire:kv_cache_usage_perc"] == 0
    assert idle["tickwire:time_to_first_token_seconds_count"] == 3
    assert idle["tickwire:inter_token_latency_seconds_count"] == 7 + 99 + 99
    assert idle["tickwire:generation_tokens_total"] == 208
    assert idle["tickwire:prompt_tokens_total"] == len("user:hello;") + 2 * len("user:one;")
    assert idle['tickwire:request_success_total{finished_reason="length"}'] == 3
    assert {name for name in idle if "request_success_total" in name} == {
        f'tickwire:request_success_total{{finished_reason="{reason}"}}'
        for reason in ("stop", "length", "abort", "timeout", "error")
    }
    assert idle["tickwire:num_preemptions_total"] == 0
    assert idle["tickwire:e2e_request_latency_seconds_count"] == 3


async def test_preemptions_are_counted() -> None:
    async with running(num_blocks=8) as server, server.http() as http, server.socket() as socket:
        for lane in "abc":
            await socket.create("x" * 20, stream_id=lane, max_output_tokens=60)
        for _ in range(3):
            await socket.until("response.incomplete")
        text = (await http.get("/metrics")).text
    assert values(text)["tickwire:num_preemptions_total"] > 0
    assert not re.search(r"^tickwire:\S+ -", text, re.MULTILINE)
