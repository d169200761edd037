"""What /metrics tells of the engine's memory, its prefix cache, its queue, and of what others would take."""

from __future__ import annotations

import pytest

from tests.app.harness import eventually, running
from tests.app.test_health import values

POLICIES = ("static", "reserve_max", "reserve_pow2")


async def test_slots_are_told_by_kind_and_add_up() -> None:
    async with running(num_blocks=100) as server, server.http() as http, server.socket() as socket:
        await socket.answer("x" * 50, max_output_tokens=8)
        server.gate.close()
        await socket.create("y" * 50, max_output_tokens=100)
        await eventually(lambda: server.holds(1))
        server.gate.step()
        await eventually(lambda: server.stats().memory.used)
        busy = values((await http.get("/metrics")).text)
        server.gate.open()
        await socket.until("response.incomplete")
    kinds = {kind: busy[f'tickwire:kv_slots{{kind="{kind}"}}'] for kind in ("used", "reserved", "internal")}
    idle = {kind: busy[f'tickwire:kv_slots{{kind="{kind}"}}'] for kind in ("cached", "free")}
    prompt = len("user:" + "y" * 50 + ";")
    assert kinds == {"used": prompt, "reserved": -prompt % 16, "internal": 0}
    assert idle["cached"] > 0
    assert sum(kinds.values()) + sum(idle.values()) == 1600
    assert busy["tickwire:kv_cache_usage_perc"] == pytest.approx(sum(kinds.values()) / 1600)


async def test_utilisation_is_used_over_held() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=30)
        text = values((await http.get("/metrics")).text)
    used, reserved, internal = (
        text[f'tickwire:kv_slot_ticks_total{{kind="{kind}"}}'] for kind in ("used", "reserved", "internal")
    )
    assert 0 < text["tickwire:kv_utilisation"] == used / (used + reserved + internal) < 1


async def test_other_policies_are_shown_beside_it() -> None:
    async with running(max_model_len=1024) as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=30)
        await eventually(lambda: server.holds(1))
        server.gate.step(2)
        await eventually(lambda: server.stats().memory_over_ticks.ticks == 2)
        busy = values((await http.get("/metrics")).text)
        server.gate.open()
        await socket.until("response.incomplete")
        idle = values((await http.get("/metrics")).text)
    prompt = len("user:hello;")
    slots = {policy: busy[f'tickwire:kv_shadow_slots{{policy="{policy}"}}'] for policy in POLICIES}
    assert slots == {"static": 1024, "reserve_max": 1024, "reserve_pow2": -(-(prompt + 32) // 16) * 16}
    for policy in POLICIES:
        label = f'{{policy="{policy}"}}'
        assert busy[f"tickwire:kv_shadow_running{label}"] == 1
        assert busy[f"tickwire:kv_shadow_waiting{label}"] == 0
        assert idle[f"tickwire:kv_shadow_slots{label}"] == 0
        assert idle[f"tickwire:kv_shadow_ticks_total{label}"] == 30
        assert idle[f"tickwire:kv_shadow_missed_total{label}"] == 0
        assert 0 < idle[f"tickwire:kv_shadow_utilisation{label}"] < idle["tickwire:kv_utilisation"]


async def test_prefix_hits_are_counted_in_tokens() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        for _ in range(2):
            await socket.answer("z" * 50, max_output_tokens=2)
        text = values((await http.get("/metrics")).text)
    prompt = len("user:" + "z" * 50 + ";")
    assert text["tickwire:prefix_cache_queries_total"] == 2 * prompt
    assert text["tickwire:prefix_cache_hits_total"] == prompt // 16 * 16


async def test_the_wait_in_the_queue_is_measured_of_those_that_entered() -> None:
    async with running(max_num_seqs=1) as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        await socket.create("one", stream_id="a", max_output_tokens=5)
        await socket.create("two", stream_id="b", max_output_tokens=5)
        await eventually(lambda: server.holds(2))
        server.gate.step()
        await eventually(lambda: server.stats().num_running == 1 and server.stats().num_waiting == 1)
        server.service.bridge.cut_all()
        server.gate.open()
        for _ in range(2):
            await socket.until("response.incomplete", "response.failed", "error")
        text = values((await http.get("/metrics")).text)
    assert text["tickwire:request_queue_time_seconds_count"] == 1
    assert text["tickwire:num_restarts_total"] == 0
