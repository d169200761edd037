"""What is counted, and how it is exposed to Prometheus.

Knows: the metrics' names (those of vLLM under our prefix, so that dashboards and routers find them) and
the engine's statistics, read when somebody asks. Does not know: who serves the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from app.transport import Wire
from engine.engine import EngineStats
from engine.request import FinishedEvent, FinishReason

PREFIX = "tickwire:"

QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
INTER_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
CONNECTION_BUCKETS = (1, 10, 60, 300, 900, 3600, 14_400, 43_200, 86_400)
CLOSE_CODES = (1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 1013, 4401, 4408)
"""Those that are told apart; clients may send thousands."""
REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960)


class Metrics:
    """One set of metrics with a registry of its own, so that several servers may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._first_token = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "From the arrival of the request to its first token.",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._inter_token = Histogram(
            f"{PREFIX}inter_token_latency_seconds",
            "Between two tokens of one answer, by the engine's clock.",
            buckets=INTER_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._request = Histogram(
            f"{PREFIX}e2e_request_latency_seconds",
            "From the arrival of the request to the end of its answer.",
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._queue = Histogram(
            f"{PREFIX}request_queue_time_seconds",
            "From the arrival of the request to its entry, of those that entered.",
            buckets=QUEUE_BUCKETS,
            registry=self.registry,
        )
        self._prompt_tokens = Counter(
            f"{PREFIX}prompt_tokens", "Tokens of the prompts of all ended requests.", registry=self.registry
        )
        self._generation_tokens = Counter(
            f"{PREFIX}generation_tokens", "Tokens sampled.", registry=self.registry
        )
        ended = Counter(
            f"{PREFIX}request_success",
            "Ended requests by how they ended.",
            ["finished_reason"],
            registry=self.registry,
        )
        # Created now, so that a reason that has not happened yet shows as 0.
        self._ended = {reason: ended.labels(finished_reason=reason.value) for reason in FinishReason}
        self.websocket_connections = Gauge(
            f"{PREFIX}websocket_connections_active", "Open WebSocket connections.", registry=self.registry
        )
        self._connection = Histogram(
            f"{PREFIX}websocket_connection_duration_seconds",
            "From the acceptance of a WebSocket connection to its end.",
            buckets=CONNECTION_BUCKETS,
            registry=self.registry,
        )

    def watch(self, stats: Callable[[], EngineStats]) -> None:
        """Expose the engine's own numbers; `stats` is called at every scrape."""
        self.registry.register(_EngineCollector(stats))

    def watch_wire(self, wire: Wire) -> None:
        """Expose what is counted about connections."""
        wire.on_closed = self._connection.observe
        self.registry.register(_WireCollector(wire))

    def token(self, time: float, arrival: float, previous: float | None) -> None:
        """A token was sampled at `time`; `previous` is when the one before it was, if any."""
        self._generation_tokens.inc()
        if previous is None:
            self._first_token.observe(time - arrival)
        else:
            self._inter_token.observe(time - previous)

    def finished(self, end: FinishedEvent) -> None:
        if end.choice == 0:
            # A request's choices have one prompt.
            self._prompt_tokens.inc(end.num_prompt_tokens)
        self._ended[end.reason].inc()
        self._request.observe(end.timings.finished - end.timings.arrival)
        if end.timings.admitted is not None:
            self._queue.observe(end.timings.admitted - end.timings.arrival)

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing: without it the registry would collect, and so ask the engine, while registering."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        used = 1 - stats.num_free_blocks / stats.num_blocks
        for name, text, value in (
            ("num_requests_running", "Sequences that take part in the ticks.", stats.num_running),
            (
                "num_requests_waiting",
                "Sequences that wait for a place, or to be recomputed.",
                stats.num_waiting,
            ),
            ("kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1.", used),
        ):
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value)
        for name, text, value in (
            ("num_preemptions", "Sequences preempted.", stats.num_preemptions),
            ("num_ticks", "Forward passes.", stats.num_ticks),
            ("num_restarts", "Faults of the device that the engine survived.", stats.num_restarts),
            ("prefix_cache_queries", "Prompt tokens of all that entered.", stats.num_queried_tokens),
            ("prefix_cache_hits", "Of these, tokens found computed.", stats.num_hit_tokens),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value)
        yield from _memory(stats)
        yield from _shadow(stats)


class _WireCollector(Collector):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def collect(self) -> Iterator[Metric]:
        wire = self._wire
        for name, text, value in (
            ("websocket_connections", "WebSocket connections accepted.", wire.sockets),
            ("websocket_frames_sent", "Text frames handed to WebSocket connections.", wire.frames),
            ("websocket_bytes_sent", "Their bytes.", wire.frame_bytes),
            ("deferred_deliveries", "News of a stream that found its socket full.", wire.deferred),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value)
        told_apart = {str(code): wire.closes[code] for code in CLOSE_CODES}
        closes = told_apart | {"other": wire.closes.total() - sum(told_apart.values())}
        kinds = {kind: wire.cut[kind] for kind in ("http", "websocket")}
        refused = {str(status): wire.refused[status] for status in (400, 408, 431)}
        for name, text, label, values in (
            ("websocket_closes", "Ended WebSocket connections; 1006: it broke.", "code", closes),
            ("readers_cut", "Clients that took nothing for too long.", "connection", kinds),
            ("requests_not_read", "Requests that never came as whole ones.", "status", refused),
        ):
            family = CounterMetricFamily(f"{PREFIX}{name}", text, labels=[label])
            for value_of, count in values.items():
                family.add_metric([value_of], count)
            yield family


def _memory(stats: EngineStats) -> Iterator[Metric]:
    memory, sums = stats.memory, stats.memory_over_ticks
    slots = GaugeMetricFamily(
        f"{PREFIX}kv_slots",
        "Token slots of KV memory by what they are good for; the kinds add up to all of it.",
        labels=["kind"],
    )
    for kind in ("used", "reserved", "internal", "cached", "free"):
        slots.add_metric([kind], getattr(memory, kind))
    yield slots
    # Of two scrapes a dashboard makes the utilisation of the time between them.
    over_ticks = CounterMetricFamily(
        f"{PREFIX}kv_slot_ticks", "Held token slots of KV memory, summed over ticks.", labels=["kind"]
    )
    for kind in ("used", "reserved", "internal"):
        over_ticks.add_metric([kind], getattr(sums, kind))
    yield over_ticks
    yield GaugeMetricFamily(
        f"{PREFIX}kv_utilisation",
        "Of the held token slots, the share that held keys and values, over all ticks.",
        sums.utilisation,
    )


def _shadow(stats: EngineStats) -> Iterator[Metric]:
    """What other policies of admission would have taken on the same arrivals."""
    for name, text, family in (
        ("slots", "Token slots that the policy would hold.", GaugeMetricFamily),
        ("running", "Sequences that it would run.", GaugeMetricFamily),
        ("waiting", "Sequences that it would let wait.", GaugeMetricFamily),
        ("utilisation", "Share of its held slots with keys and values, over all ticks.", GaugeMetricFamily),
        ("ticks", "Ticks that it would have needed.", CounterMetricFamily),
        ("missed", "Sequences left out of its simulation, for its queue was full.", CounterMetricFamily),
    ):
        metric = family(f"{PREFIX}kv_shadow_{name}", text, labels=["policy"])
        for policy, arm in stats.shadow.items():
            metric.add_metric([policy.value], getattr(arm, name))
        yield metric
