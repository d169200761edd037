"""Where the Triton kernels are tested: on a GPU if there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from kernels.gpu.device import Device

PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=[False, True], ids=["", "batch_invariant"])
def device(request: pytest.FixtureRequest) -> Device:
    return Device.of(PLACE, batch_invariant=request.param)
