"""The scene of the benchmark: sessions keep the visitor's waits within the bound, and nothing else does."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import fairness


def test_waits_are_within_the_bound_only_by_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fairness.json"
    monkeypatch.setattr(
        sys, "argv", ["fairness", "--floods", "1", "--rows", "4", "--ticks", "4000", "--json", str(path)]
    )
    fairness.main()
    alike, by_session = json.loads(path.read_text())
    assert by_session["most"] <= by_session["bound"]
    assert alike["median"] > 5 * by_session["bound"]
    assert by_session["answers"] > 5 * alike["answers"] > 0
    assert "by session" in capsys.readouterr().out
