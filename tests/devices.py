"""The devices that tests run real models on: the CPU, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")

DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=needs_gpu)]
"""For `parametrize`, or a fixture's params."""
