"""Fixtures that the tests of several parts share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from engine.loading import default_model

if not torch.cuda.is_available():
    # Triton reads it when a kernel is defined, so it must stand before any is imported.
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever started the tests in the background meant them alone, and not the programs that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, so that a change answers for itself alone, and none is judged by the clock.
# New ones are looked for by `pytest --hypothesis-profile=search`.
no_clock = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", no_clock, derandomize=True)
settings.register_profile("search", no_clock, derandomize=False, print_blob=True)
settings.load_profile("suite")

if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a process for each core already.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's folder in the user's own cache, fetched if it is not there yet (93 MB, once)."""
    # Not at the top: a GPU machine that has torch but not the server's packages can run the engine's tests.
    from app.settings import default_cache_dir

    return default_model.ensure(default_cache_dir(), print)
