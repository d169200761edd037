"""The arms measure what they say: all rows running, and the queue as long as it was."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import tick


def test_an_arm_keeps_its_rows_busy_and_its_queue_long() -> None:
    arm = tick.Arm(rows=16, queued=50, sessions=3)
    for _ in range(100):
        arm.tick()
    arm.measure(tick.ROUND_TICKS)
    stats = arm.engine.stats()
    assert stats.num_running >= 16 - 2
    assert stats.num_waiting == pytest.approx(50, abs=2)
    assert len(arm.samples) == tick.ROUND_TICKS
    assert all(sample.cpu > 0 for sample in arm.samples)


def test_an_arm_that_is_not_in_its_steady_state_is_not_measured() -> None:
    arm = tick.Arm(rows=64, queued=0, sessions=3)
    with pytest.raises(RuntimeError, match="ticks had fewer than"):
        arm.measure(1)


def test_the_figures_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tick.json"
    monkeypatch.setattr(
        sys, "argv", ["tick", "--rows", "16", "--queued", "3,30", "--ticks", "20", "--json", str(path)]
    )
    tick.main()
    assert "16 rows, 30 queued in 100 sessions, 20 ticks" in capsys.readouterr().out
    few, many = json.loads(path.read_text())
    assert (few["queued"], many["queued"]) == (3, 30)
    for name in ("commands", "schedule", "build", "apply", "publish", "tick", "all", "cpu"):
        median, p99, most = few["figures"][name]
        assert 0 < median <= p99 <= most
