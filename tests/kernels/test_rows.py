"""Norms, the gated activation, rotation and cache writes, matrix products: equal to the oracle."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch

from kernels import cpu, for_device, reference
from kernels.cpu import onednn
from kernels.cpu.tile import NARROW, WIDE, Shape

EPS = 1e-5
TOKENS = [1, 2, 17, 100]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("width", [8, 576, 1000])
def test_norms(tokens: int, width: int) -> None:
    x, residual, weight = torch.randn(tokens, width), torch.randn(tokens, width), torch.randn(width)
    torch.testing.assert_close(cpu.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))
    changed, expected_residual = residual.clone(), residual + x
    got = cpu.add_rms_norm(x, changed, weight, EPS)
    assert torch.equal(changed, expected_residual)
    torch.testing.assert_close(got, reference.rms_norm(expected_residual, weight, EPS))


@pytest.mark.parametrize("tokens", TOKENS)
def test_silu_mul(tokens: int) -> None:
    gate_up = torch.randn(tokens, 2 * 1536) * 30
    torch.testing.assert_close(cpu.silu_mul(gate_up), reference.silu_mul(gate_up), atol=1e-6, rtol=1e-6)


def test_silu_mul_at_the_ends_of_the_range() -> None:
    gate = torch.tensor([[-200.0, -88.0, -87.0, 0.0, 88.0, 200.0, 1e30]])
    got = cpu.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(got, gate * torch.sigmoid(gate), atol=1e-35, rtol=1e-5)


def test_a_row_does_not_depend_on_its_company_bit_for_bit() -> None:
    x, weight = torch.randn(100, 1152), torch.randn(1152)
    for kernel in (lambda rows: cpu.rms_norm(rows, weight, EPS), cpu.silu_mul):
        together = kernel(x)
        for t in (0, 57, 99):
            assert torch.equal(kernel(x[t : t + 1])[0], together[t])


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim"), [(1, 9, 3, 64), (5, 8, 8, 96), (90, 4, 1, 128), (3, 2, 1, 256)]
)
def test_rope_and_cache(tokens: int, heads: int, kv_heads: int, dim: int, with_norm: bool) -> None:
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    positions, slots = torch.randint(0, 500, (tokens,)), torch.randperm(tokens * 16)[:tokens]
    angles = torch.rand(500, dim // 2) * 6
    norms = (torch.rand(dim), torch.rand(dim)) if with_norm else (None, None)
    results = []
    for kernels in (cpu, reference):
        caches = [torch.full((tokens, kv_heads, 16, dim), math.nan) for _ in range(2)]
        q = kernels.rope_and_cache(qkv, positions, slots, angles.cos(), angles.sin(), *caches, *norms, EPS)
        results.append((q, *caches))
    for got, expected in zip(*results, strict=True):
        # NaN must equal NaN: nothing but the slots may be written.
        torch.testing.assert_close(got, expected, equal_nan=True)


def test_a_width_that_fits_no_heads_is_refused() -> None:
    cache = torch.zeros(1, 3, 16, 64)
    with pytest.raises(ValueError, match="qkv: got width 900"):
        cpu.rope_and_cache(
            torch.zeros(1, 900),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(8, 32),
            torch.zeros(8, 32),
            cache,
            cache,
            None,
            None,
            EPS,
        )


def test_an_integer_where_a_float_belongs_is_refused() -> None:
    with pytest.raises(TypeError, match=r"[Nn]o matching definition"):
        cpu.rms_norm(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(8), EPS)


@pytest.mark.parametrize("shape", [WIDE, NARROW])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 16, 70])
@pytest.mark.parametrize(("width", "fan_in"), [(200, 96), (144, 576), (5, 1), (1, 1500), (49, 513)])
def test_linear(width: int, fan_in: int, tokens: int, with_bias: bool, shape: Shape) -> None:
    weight, bias = torch.randn(width, fan_in), torch.randn(width) if with_bias else None
    x = torch.randn(tokens, fan_in)
    got = cpu.Linear(weight, bias, shape)(x)
    torch.testing.assert_close(got, reference.Linear(weight, bias)(x), atol=1e-4, rtol=1e-5)


def test_linear_of_no_rows() -> None:
    assert cpu.Linear(torch.randn(5, 7))(torch.empty(0, 7)).shape == (0, 5)


@pytest.mark.parametrize("fan_in", [48, 576, 2048])
def test_linear_loses_no_more_to_rounding_than_a_library(fan_in: int) -> None:
    weight, x = torch.randn(300, fan_in), torch.randn(20, fan_in)
    exact = x.double() @ weight.double().T
    ours, theirs = (
        float((module.Linear(weight)(x).double() - exact).square().mean().sqrt())
        for module in (cpu, reference)
    )
    assert ours < 2 * theirs


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 16, 70])
@pytest.mark.parametrize("small_bytes", [0, onednn._SMALL_BYTES])
def test_linear_of_onednn(tokens: int, with_bias: bool, packing: bool, small_bytes: int) -> None:
    if packing and not onednn.packing_available():
        pytest.skip("this torch has no oneDNN")
    weight, bias = torch.randn(200, 96), torch.randn(200) if with_bias else None
    with (
        patch.object(onednn, "packing_available", lambda: packing),
        patch.object(onednn, "_SMALL_BYTES", small_bytes),
    ):
        product = onednn.Linear(weight, bias)
    x = torch.randn(tokens, 96)
    torch.testing.assert_close(product(x), reference.Linear(weight, bias)(x), atol=5e-5, rtol=1e-5)


def test_few_sizes_serve_all_numbers_of_rows_and_waste_little() -> None:
    sizes = {rows: onednn.padded_rows(rows) for rows in range(1, 2049)}
    assert len({sizes[rows] for rows in range(1, 513)}) < 50
    for rows, padded in sizes.items():
        assert rows <= padded <= rows * 1.42
        assert onednn.padded_rows(padded) == padded


def test_missing_private_operations_are_noticed() -> None:
    class WithoutThem:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    with patch.object(torch.ops, "mkldnn", WithoutThem()):
        assert not onednn.packing_available()


@pytest.mark.parametrize("kernels", [cpu, onednn])
def test_rows_that_do_not_fit_the_weight_are_refused(kernels: Any) -> None:
    with pytest.raises(ValueError, match="x: got rows of 7, allowed: 8"):
        kernels.Linear(torch.zeros(4, 8))(torch.zeros(1, 7))


@pytest.mark.parametrize("kernels", [cpu, onednn])
def test_a_bias_that_does_not_fit_the_weight_is_refused(kernels: Any) -> None:
    with pytest.raises(ValueError, match=r"bias: got shape \(8,\), allowed: \(4,\)"):
        kernels.Linear(torch.zeros(4, 8), torch.zeros(8))


def test_kernels_with_a_librarys_products_differ_in_nothing_else() -> None:
    library = for_device(torch.device("cpu"), batch_invariant=False)
    assert [name for name in cpu.__all__ if getattr(library, name) is not getattr(cpu, name)] == ["Linear"]
    assert library.Linear is onednn.Linear


def test_a_device_without_kernels_is_refused_by_name() -> None:
    assert for_device(torch.device("cpu")) is cpu
    with pytest.raises(ValueError, match="device: got 'meta', allowed: 'cpu' or 'cuda'"):
        for_device(torch.device("meta"))
