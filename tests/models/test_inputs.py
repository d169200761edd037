"""KV memory: one block of it is the same block in all layers."""

from __future__ import annotations

import pytest
import torch

from engine.models.inputs import KVCache
from tests.devices import DEVICES
from tests.engine.tiny import CONFIG


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


def filled(dtype: torch.dtype, device: str) -> tuple[KVCache, torch.Tensor]:
    """With random bits, and a copy of them."""
    kv = KVCache.allocate(CONFIG, 6, dtype, device)
    bits = kv.storage.view(torch.uint8)
    bits.random_(generator=torch.Generator(device).manual_seed(5))
    return kv, bits.clone()


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_is_copied_in_all_layers_and_no_other_changes(dtype: torch.dtype, device: str) -> None:
    kv, expected = filled(dtype, device)
    kv.copy(4, 1)
    kv.copy(1, 5)
    for target in (1, 5):
        expected[:, :, target] = expected[:, :, 4]
    assert torch.equal(kv.storage.view(torch.uint8), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_cleared_memory_is_as_new_and_where_it_was(dtype: torch.dtype, device: str) -> None:
    kv, _ = filled(dtype, device)
    address = kv.storage.data_ptr()
    kv.clear()
    assert not kv.storage.view(torch.uint8).any()
    assert kv.storage.data_ptr() == address


@pytest.mark.parametrize("device", DEVICES)
def test_layers_are_views_of_all_of_it(dtype: torch.dtype, device: str) -> None:
    kv, bits = filled(dtype, device)
    for layer in range(CONFIG.num_layers):
        for kind, views in enumerate((kv.keys, kv.values)):
            assert views[layer].shape == (6, CONFIG.num_kv_heads, 16, CONFIG.head_dim)
            assert views[layer].is_contiguous()
            assert torch.equal(views[layer].view(torch.uint8), bits[layer, kind])
    assert kv.storage.nbytes == 6 * KVCache.bytes_per_block(CONFIG, dtype)
