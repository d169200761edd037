"""Rotation and cache writes: the oracle's numbers at the slots, and nothing anywhere else."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import rope
from kernels.gpu.ahead import RecordingDevice
from kernels.gpu.device import Device
from tests.kernels.gpu.conftest import PLACE
from tests.kernels.gpu.rounding import E4M3, assert_rounded_once, every_dtype, normal

EPS = 1e-5
SLOTS = 16
ON_META = RecordingDevice("cuda:90", 132, False)

every_shape = pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim"),
    [(1, 9, 3, 64), (5, 8, 8, 96), (3, 4, 1, 128), (3, 2, 1, 256), (2, 3, 1, 10)],
)


@dataclass(frozen=True)
class Call:
    """The arguments of `rope_and_cache`, with caches full of NaN."""

    qkv: Tensor
    positions: Tensor
    slots: Tensor
    cos: Tensor
    sin: Tensor
    key_cache: Tensor
    value_cache: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None

    @classmethod
    def of(
        cls,
        tokens: int,
        heads: int,
        kv_heads: int,
        dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        with_norm: bool = False,
    ) -> Call:
        angles = torch.rand(500, dim // 2, device=PLACE) * 6
        shape = (tokens + 1, kv_heads, SLOTS, dim)
        return cls(
            normal(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype),
            torch.randint(0, 500, (tokens,), device=PLACE),
            torch.randperm((tokens + 1) * SLOTS, device=PLACE)[:tokens],
            angles.cos(),
            angles.sin(),
            *(torch.full(shape, math.nan, device=PLACE).to(cache_dtype or dtype) for _ in range(2)),
            *(normal(dim, dtype=dtype) if with_norm else None for _ in range(2)),
        )

    def run(self, device: Device) -> Tensor:
        return rope.rope_and_cache(device, *self._values(), EPS)

    def exactly(self) -> tuple[Tensor, Call]:
        """The oracle's queries and caches, in fp64."""
        wide = replace(
            self, **{n: t.double() for n, t in vars(self).items() if t is not None and t.is_floating_point()}
        )
        return reference.rope_and_cache(*wide._values(), EPS), wide

    def _values(self) -> list[Any]:
        return list(vars(self).values())


@pytest.mark.parametrize("with_norm", [False, True])
@every_shape
@every_dtype
def test_rope_and_cache(
    device: Device, tokens: int, heads: int, kv_heads: int, dim: int, with_norm: bool, dtype: torch.dtype
) -> None:
    call = Call.of(tokens, heads, kv_heads, dim, dtype=dtype, with_norm=with_norm)
    q, expected = call.exactly()
    # NaN must equal NaN: nothing but the slots may be written.
    assert_rounded_once(call.run(device), q, error=5e-6)
    assert_rounded_once(call.key_cache, expected.key_cache, error=5e-6)
    assert_rounded_once(call.value_cache, expected.value_cache, error=0.0)


@pytest.mark.parametrize("arch", ["own", "cuda:80"])
@every_shape
@every_dtype
def test_e4m3_caches(
    device: Device, tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, arch: str
) -> None:
    """By the chip's instruction and by integer arithmetic."""
    if arch != "own":
        device = replace(device, arch=arch)
    call = Call.of(tokens, heads, kv_heads, dim, dtype=dtype, cache_dtype=E4M3)
    call.qkv.mul_(torch.logspace(-4, 3, dim, device=PLACE).repeat(heads + 2 * kv_heads))
    q, expected = call.exactly()
    assert_rounded_once(call.run(device), q, error=1e-3)
    for got, exact in ((call.key_cache, expected.key_cache), (call.value_cache, expected.value_cache)):
        assert_rounded_once(got, exact.clamp(-448, 448), error=1e-3)
    values = torch.full_like(call.value_cache.float(), math.nan)
    blocks, offsets = call.slots // SLOTS, call.slots % SLOTS
    values[blocks, :, offsets] = call.qkv.float().view(tokens, -1, dim)[:, heads + kv_heads :]
    assert torch.equal(call.value_cache.view(torch.uint8), values.clamp(-448, 448).to(E4M3).view(torch.uint8))


def test_what_is_no_number_stays_none(device: Device) -> None:
    call = Call.of(2, 2, 1, 8, cache_dtype=E4M3)
    for cache in (call.key_cache, call.value_cache):
        cache.view(torch.uint8).zero_()
    call.qkv[1] = math.nan
    assert call.run(device)[1].isnan().all()
    for cache in (call.key_cache, call.value_cache):
        assert cache.float().isnan().sum() == 8
        assert cache.float()[call.slots[1] // SLOTS, 0, call.slots[1] % SLOTS].isnan().all()


def test_infinite_values_are_stored_as_they_are(device: Device) -> None:
    """A rotation by no angle would make NaN of them: 0 times infinity."""
    call = Call.of(1, 2, 1, 8)
    call.qkv[0, 3 * 8 :] = math.inf
    call.run(device)
    stored = call.value_cache[call.slots[0] // SLOTS, 0, call.slots[0] % SLOTS]
    assert torch.equal(stored, torch.full_like(stored, math.inf))


def test_no_tokens_write_nothing(device: Device) -> None:
    call = Call.of(0, 9, 3, 64)
    assert call.run(device).shape == (0, 9, 64)
    assert call.key_cache.isnan().all()
    assert call.value_cache.isnan().all()


def test_padding_may_share_a_slot(device: Device) -> None:
    call = Call.of(6, 4, 2, 32)
    call.slots[3:] = 0
    call.slots[:3] = torch.tensor([SLOTS, SLOTS + 1, 2 * SLOTS])
    _, expected = call.exactly()
    call.run(device)
    for got, exact in ((call.key_cache, expected.key_cache), (call.value_cache, expected.value_cache)):
        assert_rounded_once(got[1:], exact[1:], error=5e-6)
        assert got[0, :, 1:].isnan().all()
    # Whose number it is may differ from one to the next.
    candidates = call.qkv.view(6, -1, 32)[3:, 6:]
    assert (call.value_cache[0, :, 0] == candidates).any(dim=0).all()


def test_a_token_does_not_depend_on_its_company_bit_for_bit(device: Device) -> None:
    call = Call.of(9, 4, 2, 48, with_norm=True)
    together = call.run(device)
    keys = call.key_cache.clone()
    for t in (0, 4, 8):
        one = slice(t, t + 1)
        call.key_cache.fill_(math.nan)
        alone = replace(call, qkv=call.qkv[one], positions=call.positions[one], slots=call.slots[one])
        assert torch.equal(alone.run(device)[0], together[t])
        place = call.slots[t] // SLOTS, slice(None), call.slots[t] % SLOTS
        assert torch.equal(call.key_cache[place], keys[place])


def test_a_cache_beyond_what_32_bits_count(device: Device) -> None:
    """4 GiB, of which only the last slot is touched: where memory is given on demand, the rest takes none."""
    call = Call.of(1, 2, 1, 256, cache_dtype=E4M3)
    blocks = 2**31 // (SLOTS * 256) + 1
    keys, values = (torch.empty(blocks, 1, SLOTS, 256, dtype=E4M3, device=PLACE) for _ in range(2))
    far = replace(call, key_cache=keys, value_cache=values, slots=call.slots * 0 + blocks * SLOTS - 1)
    assert torch.equal(call.run(device), far.run(device))
    place = call.slots[0] // SLOTS, 0, call.slots[0] % SLOTS
    for near, got in ((call.key_cache, keys), (call.value_cache, values)):
        assert torch.equal(got.view(torch.uint8)[-1, 0, -1], near.view(torch.uint8)[place])


def _on_meta(**changed: Any) -> dict[str, Any]:
    def empty(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    arguments = {
        "qkv": empty(7, 15 * 64),
        "positions": empty(7, dtype=torch.int64),
        "slots": empty(7, dtype=torch.int64),
        "cos": empty(500, 32, dtype=torch.float32),
        "sin": empty(500, 32, dtype=torch.float32),
        "key_cache": empty(100, 3, SLOTS, 64),
        "value_cache": empty(100, 3, SLOTS, 64),
        "q_norm": empty(64),
        "k_norm": empty(64),
    }
    return {**arguments, **changed, "eps": EPS}


def test_shapes_are_all_that_is_looked_at() -> None:
    device = replace(ON_META, launches=[])
    q = rope.rope_and_cache(device, **_on_meta())
    assert (q.shape, q.dtype, q.device.type) == ((7, 9, 64), torch.float16, "meta")
    assert len(device.launches) == 1


def test_a_width_that_fits_no_heads_is_refused() -> None:
    for width in (900, 8 * 64):
        with pytest.raises(ValueError, match=f"qkv: got width {width} and rotations"):
            rope.rope_and_cache(ON_META, **_on_meta(qkv=torch.empty(7, width, device="meta")))


REFUSED = {
    "positions: got torch.int32, allowed: torch.int64": ("positions", lambda t: t.int()),
    "slots: got shape (6,), allowed: (7,)": ("slots", lambda t: t[:6]),
    "qkv: got torch.float64, allowed: torch.float32, torch.float16, torch.bfloat16": (
        "qkv",
        lambda t: t.double(),
    ),
    "cos: got torch.float16, allowed: torch.float32": ("cos", lambda t: t.half()),
    "sin: got torch.float16, allowed: torch.float32": ("sin", lambda t: t.half()),
    "key_cache: got torch.float32, allowed: torch.float16, torch.float8_e4m3fn": (
        "key_cache",
        lambda t: t.float(),
    ),
    "value_cache: got torch.float8_e4m3fn, allowed: torch.float16": ("value_cache", lambda t: t.to(E4M3)),
    "value_cache: got shape (99, 3, 16, 64), allowed: (100, 3, 16, 64)": ("value_cache", lambda t: t[1:]),
    "q_norm: got shape (32,), allowed: (64,)": ("q_norm", lambda t: t[:32]),
    "k_norm: got torch.float32, allowed: torch.float16": ("k_norm", lambda t: t.float()),
    "q_norm, k_norm: got one of them, allowed: both or none": ("k_norm", lambda _: None),
    "value_cache: got strides (6144, 2048, 128, 2), allowed: a contiguous tensor": (
        "value_cache",
        lambda t: t.repeat(1, 1, 1, 2)[..., ::2],
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message: str) -> None:
    name, change = REFUSED[message]
    arguments = _on_meta()
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the whole message is compared)
        rope.rope_and_cache(ON_META, **arguments)
    assert str(refused.value) == message
