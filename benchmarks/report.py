"""The ladder's figures as a table, as a chart, and against what was aimed at.

Knows: figures and how they are read. Does not know: how they came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.measure import Figures
from benchmarks.plot import COLOURS, Panel, svg

BASE = "S0"
PAGED = "S3"
AIM_RATIO = 2.0
"""Useful tokens per time, paged over static."""
AIM_UTILISATION = 0.96
"""Of paged KV memory, on the workload shaped like ShareGPT."""

_COLUMNS: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "useful/T": ("9.4g", lambda f: f.useful_tokens_rate),
    "total/T": ("9.4g", lambda f: f.total_tokens_rate),
    "norm.lat": ("9.3g", lambda f: f.normalized_latency),
    "TTFT p50": ("9.3g", lambda f: f.ttft_p50),
    "p99": ("8.3g", lambda f: f.ttft_p99),
    "gap p50": ("8.3g", lambda f: f.inter_token_p50),
    "gap p99": ("8.3g", lambda f: f.inter_token_p99),
    "max": ("8.3g", lambda f: f.inter_token_max),
    "rows": ("6.1f", lambda f: f.rows_per_tick),
    "useful": ("6.1f", lambda f: f.useful_per_tick),
    "used%": ("6.1f", lambda f: 100 * f.utilisation),
    "resv%": ("6.1f", lambda f: 100 * f.reserved),
    "lost%": ("6.1f", lambda f: 100 * f.internal),
    "preempt": ("7d", lambda f: f.preemptions),
    "again": ("8d", lambda f: f.computed_again),
    "hits%": ("6.1f", lambda f: 100 * f.prefix_hits),
}


def table(results: Sequence[Figures], unit: str) -> str:
    """One line per arm of one workload."""
    widths = {name: int(spec.partition(".")[0].rstrip("d")) for name, (spec, _) in _COLUMNS.items()}
    lines = [
        f"T, and all times, in {unit}; gap: between two tokens; rows: per tick, useful: tokens per tick;",
        "used + reserved + lost: of the allocated KV slots; again: tokens computed twice, or as padding",
        "arm   speed " + " ".join(f"{name:>{widths[name]}}" for name in _COLUMNS),
    ]
    base = next((f for f in results if f.arm == BASE), None)
    for figure in results:
        speed = f"{figure.useful_tokens_rate / base.useful_tokens_rate:5.2f}x" if base else "     -"
        cells = " ".join(format(value(figure), spec) for spec, value in _COLUMNS.values())
        lines.append(f"{figure.arm:<4} {speed} {cells}")
    return "\n".join(lines)


def aims(results: Sequence[Figures]) -> list[str]:
    """A sentence for each aim that these results can tell about."""
    by_key = {(f.workload, f.arm): f for f in results}
    lines = []
    for workload in dict.fromkeys(f.workload for f in results):
        static, paged = by_key.get((workload, BASE)), by_key.get((workload, PAGED))
        if static and paged:
            ratio = paged.useful_tokens_rate / static.useful_tokens_rate
            lines.append(
                f"{_verdict(ratio >= AIM_RATIO)}: on {workload} paged makes {ratio:.2f} times static's "
                f"useful tokens per time; aim: {AIM_RATIO:g}"
            )
        if paged and workload == "c":
            lines.append(
                f"{_verdict(paged.utilisation >= AIM_UTILISATION)}: on {workload} paged uses "
                f"{100 * paged.utilisation:.1f} % of the KV memory it takes; aim: {100 * AIM_UTILISATION:g} %"
            )
    return lines


def chart(results: Sequence[Figures], arms: Mapping[str, str], machine: str, unit: str) -> str:
    """Speed, normalized latency and where KV memory went, for each workload and arm, as SVG.

    Args:
        arms: what to call each arm.
    """
    workloads = list(dict.fromkeys(f.workload for f in results))
    present = list(dict.fromkeys(f.arm for f in results))
    by_key = {(f.workload, f.arm): f for f in results}

    def by_arm(value: Callable[[Figures], float | None]) -> dict[str, list[float | None]]:
        found = {arm: [by_key.get((workload, arm)) for workload in workloads] for arm in present}
        return {
            f"{arm} {arms[arm]}": [value(f) if f else None for f in figures] for arm, figures in found.items()
        }

    def of_base(figure: Figures) -> float | None:
        base = by_key.get((figure.workload, BASE))
        return figure.useful_tokens_rate / base.useful_tokens_rate if base else None

    speed = (
        Panel(f"Useful tokens in the same time: {machine}", f"times {BASE}", workloads, by_arm(of_base))
        if BASE in present
        else Panel(
            f"Useful tokens: {machine}",
            f"tokens per {unit}",
            workloads,
            by_arm(lambda f: f.useful_tokens_rate),
        )
    )
    latency = Panel(
        "Normalized latency: mean of latency / tokens of the answer",
        f"{unit} per token",
        workloads,
        by_arm(lambda f: f.normalized_latency),
    )
    memory = Panel(
        "Where the allocated KV memory is, over all ticks",
        "%",
        [f"{f.workload} {f.arm}" for f in results],
        {
            "holds keys and values": [100 * f.utilisation for f in results],
            "reserved": [100 * f.reserved for f in results],
            "lost": [100 * f.internal for f in results],
        },
        stacked=True,
        colours=(COLOURS[3], COLOURS[1], COLOURS[0]),
    )
    return svg([speed, latency, memory])


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
