"""The table at the end, and whether the aims are met.

Knows: the results. Does not know: how they came about.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmarks.gpu.results import Results, Serving
from benchmarks.gpu.speed import Timing
from benchmarks.gpu.steps import Step

MOST_NOTES = 6
AIMED_MODEL = "llama-3-8b"
AIMED_ROWS = 64


@dataclass(frozen=True)
class Aim:
    what: str
    aim: str
    got: float | None
    """None: it was not measured."""
    kept: bool


def aims(results: Results) -> list[Aim]:
    def at_least(what: str, least: float, got: float | None, unit: str = "%") -> Aim:
        shown = f">= {100 * least:.0f} %" if unit == "%" else f">= {least:.0f}{unit}"
        return Aim(what, shown, got, got is not None and got >= least)

    found = []
    for batch in (1, AIMED_ROWS):
        for context in (512, 4096):
            step = _step(results.steps, batch, context)
            found.append(
                at_least(f"decode, B={batch} x {context}: of the byte floor", 0.75, step and step.share)
            )
    attention = [
        t.share
        for t in results.speed
        if t.kernel == "paged_attention" and t.case == f"{AIMED_ROWS} rows x 4096"
    ]
    found.append(
        at_least(f"attention, {AIMED_ROWS} x 4096: of copy bandwidth", 0.8, min(attention, default=None))
    )
    serving = next((s for s in results.serving if s.model == AIMED_MODEL), None)
    host = serving and serving.ours and serving.ours.host_ms
    found.append(Aim("host time per tick at 256 rows", "<= 1 ms", host, host is not None and host <= 1))
    found.append(at_least("tokens/s over transformers' batching", 5, serving and _ratio(serving), " x"))
    return found


def _step(steps: list[Step], batch: int, context: int) -> Step | None:
    wanted = (AIMED_MODEL, batch, context)
    return next((s for s in steps if (s.model, s.batch, s.context) == wanted), None)


def _ratio(serving: Serving) -> float | None:
    ours, theirs = serving.ours, serving.transformers_tokens_per_s
    return ours.tokens_per_s / theirs if ours and theirs else None


def table(results: Results) -> str:
    """About sixty lines."""
    lines = [*_head(results), *_numerics(results), *_speed(results.speed), *_steps(results.steps)]
    lines += [*_serving(results.serving), *_aims(results), *_notes(results)]
    return "\n".join(lines)


def _head(results: Results) -> Iterator[str]:
    if results.dry:
        yield "DRY RUN in Triton's interpreter: it shows that all of it runs. Its times mean nothing."
    yield ", ".join(f"{name} {value}" for name, value in results.machine.items())
    if results.rates:
        yield (
            f"copy {results.rates.copy_bytes_per_s / 1e12:.2f} TB/s, matmul"
            f" {results.rates.flops_per_s / 1e12:.0f} TFLOP/s, a launch {results.rates.launch_s * 1e6:.1f} us"
        )


def _numerics(results: Results) -> Iterator[str]:
    by_kernel = groupby(sorted(results.numerics, key=lambda c: c.kernel), key=lambda c: c.kernel)
    for kernel, group in by_kernel:
        checks = list(group)
        failed = [check for check in checks if not check.passed]
        worst = max(
            (c.error / c.bound for c in checks if c.bound), key=lambda x: math.inf if x != x else x, default=0
        )
        verdict = f"FAIL {len(failed)}, first: {failed[0].case}" if failed else "PASS"
        yield f"{kernel:<16} {len(checks):>4} checks, worst {worst:5.2f} of its bound  {verdict}"


def _speed(timings: list[Timing]) -> Iterator[str]:
    if not timings:
        return
    yield f"{'':<16} {'':<26} {'us':>8} {'floor':>8} {'share':>6} | not invariant: {'us':>6} {'cost':>6}"
    by_case: dict[tuple[str, str], dict[bool, Timing]] = {}
    for timing in timings:
        by_case.setdefault((timing.kernel, timing.case), {})[timing.batch_invariant] = timing
    for (kernel, case), modes in by_case.items():
        first = modes.get(True) or modes[False]
        line = f"{kernel:<16} {case:<26} {_us(first.seconds):>8} {_us(first.floor_seconds):>8}"
        line += f" {100 * first.share:>4.0f} % |"
        if len(modes) == 2:
            fast = modes[False].seconds
            line += f" {_us(fast):>21} {first.seconds / fast:>5.2f}x"
        yield line


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _steps(steps: list[Step]) -> Iterator[str]:
    if steps:
        yield (
            f"decode steps, ms{'':<14} {'floor':>7} {'step':>7} {'share':>6} {'forward':>7} {'share':>6}"
            f" {'invariant':>9} | transformers: {'generate':>8} {'batching':>8}"
        )
    for s in steps:
        yield (
            f"{s.model:<14} B={s.batch:<3} x {s.context:<5} {s.floor_ms:>7.2f} {_or_dash(s.step_ms)}"
            f" {_percent(s.share)} {_or_dash(s.forward_ms)} {_percent(s.forward_share)}"
            f" {_or_dash(s.invariant_ms):>9} |"
            f" {_or_dash(s.transformers_generate_ms):>22} {_or_dash(s.transformers_batching_ms):>8}"
        )


def _or_dash(x: float | None) -> str:
    return f"{'-' if x is None else f'{x:.2f}':>7}"


def _percent(x: float | None) -> str:
    return f"{'-' if x is None else f'{100 * x:.0f} %':>6}"


def _serving(serving: list[Serving]) -> Iterator[str]:
    for s in serving:
        if ours := s.ours:
            yield (
                f"engine, {s.model}: {ours.tokens_per_s:.0f} tokens/s"
                + (f" ({s.sampled.tokens_per_s:.0f} sampled)" if s.sampled else "")
                + f", {ours.ended}/{ours.requests} answers, {ours.rows_per_tick:.0f} rows per tick"
            )
            yield (
                f"    tick ms {_or_dash(ours.tick_ms)}, p99 {ours.tick_p99_ms:.2f}, decodes alone"
                f" {_or_dash(ours.step_ms)}, with prompts {_or_dash(ours.mixed_ms)};"
                f" host {_or_dash(ours.host_ms)}, p99 {ours.host_p99_ms:.2f}, {100 * ours.host_share:.0f} %"
            )
        if s.transformers_tokens_per_s is not None:
            yield (
                f"    transformers' batching: {s.transformers_tokens_per_s:.0f} tokens/s,"
                f" {s.transformers_requests} answers, {s.transformers_attention}"
            )


def _aims(results: Results) -> Iterator[str]:
    yield "aims, all of llama-3-8b's shape:"
    for aim in aims(results):
        got = "not measured" if aim.got is None else f"{aim.got:.2f}"
        verdict = "" if aim.got is None or results.dry else ("kept" if aim.kept else "MISSED")
        yield f"    {aim.what:<42} {aim.aim:>8}  {got:>12} {verdict}"


def _notes(results: Results) -> Iterator[str]:
    for title, notes in (("failed", results.failed), ("left out", results.left_out)):
        for note in notes[:MOST_NOTES]:
            yield f"{title}: {note[:150]}"
        if len(notes) > MOST_NOTES:
            yield f"{title}: {len(notes) - MOST_NOTES} more, in the JSON"
    yield "seconds per part: " + ", ".join(f"{part}: {took:.0f}" for part, took in results.seconds.items())
