"""The figures of a small run, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.measure import Answers, Figures, Meter, figures
from engine.batch import Batch, StepOutput
from engine.ledger import MemoryOverTicks
from engine.request import FinishedEvent, FinishReason, Timings, TokenEvent


def ended(
    name: str, prompt: int, output: int, arrival: float, end: float, **changes: object
) -> FinishedEvent:
    given = {"num_cached_tokens": 0, "num_preemptions": 0, "reason": FinishReason.LENGTH} | changes
    return FinishedEvent(
        request_id=name,
        choice=0,
        stop=None,
        error=None,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        timings=Timings(arrival, arrival, None, end),
        **given,
    )


class NoModel:
    def execute(self, batch: Batch) -> StepOutput:
        return StepOutput(np.empty(0, dtype=np.int64), None)

    def reset(self) -> None:
        pass


def two_answers() -> Figures:
    answers, meter = Answers(), Meter(NoModel())
    meter.ticks, meter.rows, meter.tokens = 10, 25, 40
    answers([TokenEvent("a", 0, "x", 1, 4.0), TokenEvent("b", 0, "x", 1, 4.0)])
    answers([TokenEvent("a", 0, "x", 2, 5.0)])
    answers([TokenEvent("a", 0, "x", 3, 8.0)])
    answers([ended("a", 20, 3, arrival=2.0, end=8.0, num_preemptions=2)])
    answers([ended("b", 12, 1, arrival=3.0, end=4.0, num_cached_tokens=8)])
    memory = MemoryOverTicks(ticks=10, used=60, reserved=30, internal=10)
    return figures("w", "S3", answers, meter, memory, began=0.0)


def test_rates_are_over_the_whole_run():
    f = two_answers()
    assert (f.requests, f.duration, f.useful_tokens) == (2, 8.0, 4)
    assert f.useful_tokens_rate == 4 / 8
    assert f.total_tokens_rate == (4 + 20 + 12) / 8


def test_latencies_count_from_arrival():
    f = two_answers()
    assert f.normalized_latency == pytest.approx(((8 - 2) / 3 + (4 - 3) / 1) / 2)
    assert f.ttft_p50 == pytest.approx((2 + 1) / 2)
    assert f.ttft_p99 == pytest.approx(1 + 0.99 * (2 - 1))


def test_gaps_are_within_answers():
    f = two_answers()
    assert (f.inter_token_p50, f.inter_token_max) == (2.0, 3.0)
    assert f.inter_token_p99 == pytest.approx(1 + 0.99 * 2)


def test_ticks_memory_and_what_was_computed_again():
    f = two_answers()
    assert (f.ticks, f.rows_per_tick, f.useful_per_tick) == (10, 2.5, 0.4)
    assert (f.utilisation, f.reserved, f.internal) == (0.6, 0.3, 0.1)
    # Needed once: 20 and 12 - 8 prompt tokens, and of the answers all but the last ones: 2 and 0.
    assert f.computed_again == 40 - (20 + 4 + 2)
    assert (f.preemptions, f.prefix_hits) == (2, 8 / 32)


def test_text_released_at_the_end_is_no_further_token():
    answers = Answers()
    answers([TokenEvent("a", 0, "", 1, 4.0), TokenEvent("a", 0, "x", 1, 4.0)])
    assert answers.num_tokens == 1
    assert "".join(answers.by_id["a"].text) == "x"


def test_answers_without_gaps_have_no_inter_token_time():
    answers, meter = Answers(), Meter(NoModel())
    meter.ticks = meter.rows = meter.tokens = 1
    answers([TokenEvent("a", 0, "x", 1, 4.0), ended("a", 1, 1, arrival=0.0, end=4.0)])
    f = figures("w", "S3", answers, meter, MemoryOverTicks(0, 0, 0, 0), began=0.0)
    assert (f.inter_token_p50, f.inter_token_p99, f.inter_token_max) == (0.0, 0.0, 0.0)


def test_a_run_that_is_not_over_has_no_figures():
    answers = Answers()
    answers([TokenEvent("a", 0, "x", 1, 4.0)])
    with pytest.raises(RuntimeError, match="a has not ended"):
        figures("w", "S3", answers, Meter(NoModel()), MemoryOverTicks(0, 0, 0, 0), began=0.0)


def test_an_answer_that_ended_otherwise_spoils_the_run():
    with pytest.raises(RuntimeError, match="a ended with"):
        Answers()([ended("a", 1, 1, arrival=0.0, end=1.0, reason=FinishReason.ERROR)])
