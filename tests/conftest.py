"""Fixtures that the tests of several parts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.loading import default_model


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs the real model for longer than a few seconds")


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's folder in the user's own cache, fetched if it is not there yet (93 MB, once)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tickwire"
    return default_model.ensure(cache, print)
