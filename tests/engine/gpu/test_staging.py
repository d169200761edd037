"""What is sent arrives, in one copy, and nothing is overwritten on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.gpu.staging import ALIGNMENT, FIRST_BYTES, Results, Staging
from tests.devices import DEVICES
from tests.engine.gpu.drivers import Eager, Watched, driver_for


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def some_arrays(rng: np.random.Generator, longest: int = 40) -> dict[str, Any]:
    def length() -> int:
        return int(rng.integers(0, longest))

    return {
        "ids": rng.integers(-(2**60), 2**60, length()),
        "odd": rng.integers(0, 99, length()).astype(np.int32),
        "floats": rng.standard_normal(length()).astype(np.float32),
        "none": np.empty(0, dtype=np.int64),
        "last": rng.integers(0, 9, length()),
    }


def test_everything_arrives_in_one_copy(device: torch.device) -> None:
    driver, rng = driver_for(device), np.random.default_rng(1)
    staging = Staging(driver, device)
    for ticks in range(1, 30):
        arrays = some_arrays(rng)
        sent = staging.send(arrays)
        assert len(driver.sent) == ticks
        assert sent.keys() == arrays.keys()
        for name, array in arrays.items():
            assert sent[name].device.type == device.type
            assert sent[name].data_ptr() % ALIGNMENT == 0 or not array.size
            np.testing.assert_array_equal(sent[name].numpy(force=True), array, strict=True)
    assert driver.num_allocated == 2


def test_buffers_grow_when_a_batch_is_bigger_than_ever_and_not_again(device: torch.device) -> None:
    driver = driver_for(device)
    staging = Staging(driver, device)
    numbers = np.arange(FIRST_BYTES // 4 + 5, dtype=np.int32)
    for _ in range(2):
        assert staging.send({"numbers": numbers})["numbers"].tolist() == numbers.tolist()
    assert driver.num_allocated == 4
    for extra in range(40):
        staging.send({"numbers": np.arange(len(numbers) + extra, dtype=np.int32)})
    assert driver.num_allocated == 4


def test_a_buffer_is_not_filled_again_before_its_copy_is_done() -> None:
    """The driver says so where an event comes too late; here one waits for each of the last two copies."""
    driver = Eager()
    staging = Staging(Watched(driver), torch.device("cpu"))
    for number in range(7):
        assert len(driver.under_way) == min(number, 2)
        staging.send({"a": np.full(9, number)})
    driver.synchronize()


def test_results_come_back_in_one_copy_and_stay(device: torch.device) -> None:
    driver = driver_for(device)
    results = Results(driver)
    ids = torch.tensor([5, -1, 2**50], device=device)
    chosen = torch.tensor([-0.5], device=device)
    top_ids = torch.tensor([[3, 4, 5]], dtype=torch.int32, device=device)
    alone = results.fetch([ids])
    together = results.fetch([ids, chosen, top_ids, chosen.expand(1, 3).contiguous()])
    results.fetch([ids * 0])
    assert driver.fetched == [24, 24 + 4 + 12 + 12, 24]
    assert [array.tolist() for array in alone] == [[5, -1, 2**50]]
    assert [array.tolist() for array in together] == [[5, -1, 2**50], [-0.5], [[3, 4, 5]], [[-0.5] * 3]]
    assert [array.dtype for array in together] == [np.int64, np.float32, np.int32, np.float32]


def test_results_without_columns_and_very_many(device: torch.device) -> None:
    driver = driver_for(device)
    results = Results(driver)
    ids, nothing = torch.arange(2, device=device), torch.empty((2, 0), dtype=torch.int32, device=device)
    fetched = results.fetch([ids, ids.float(), nothing, nothing.float()])
    assert [array.shape for array in fetched] == [(2,), (2,), (2, 0), (2, 0)]
    many = torch.arange(FIRST_BYTES // 8 + 1, device=device)
    assert results.fetch([many])[0].tolist() == many.tolist()
    assert driver.num_allocated == 2
