"""How much of the machine the engine gets: KV memory, context, threads; and what else it is told.

Knows: the settings, the model's sizes, the machine's memory and cores. Does not know: how memory is
handed out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings import Settings, SettingsError
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import Admission, Chaos, EngineConfig

if TYPE_CHECKING:
    from engine.models.config import ModelConfig

MEMORY_SHARE = 0.25
"""Of the memory that is free once the model is loaded. It is taken only as conversations fill it."""

CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has free, or what its container leaves."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage in CGROUP_LIMITS:
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            available = min(available, max(0, int(text) - int(usage.read_text())))
    return available


def physical_cores() -> int:
    """Cores that this process may run on. A core counts once, however many hardware threads it has: they
    share its arithmetic units, and a matrix product gains nothing from the second one."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(tuple((topology / name).read_text() for name in ("physical_package_id", "core_id")))
        except OSError:
            return len(os.sched_getaffinity(0))  # some containers hide it
    return len(cores)


def engine_sizes(settings: Settings, model: ModelConfig, available: int) -> EngineConfig:
    """Sizes of the engine: as set, else as the model and `available` bytes of memory suggest.

    Raises:
        SettingsError: what was set does not fit together.
    """
    wanted_len = settings.max_model_len or model.max_position_embeddings
    if wanted_len > model.max_position_embeddings:
        raise SettingsError(
            f"max_model_len: got {wanted_len}, allowed: at most {model.max_position_embeddings}, "
            "the context that the model was made for"
        )
    num_blocks = _num_blocks(settings, model, wanted_len, available)
    if settings.max_model_len is None:
        wanted_len = min(wanted_len, num_blocks * BLOCK_SIZE)
    try:
        return EngineConfig(
            num_blocks=num_blocks,
            max_model_len=wanted_len,
            max_num_seqs=settings.max_num_seqs,
            token_budget=settings.token_budget,
            prefill_chunk=settings.prefill_chunk,
            admission=Admission(settings.admission),
            chunked_prefill=settings.chunked_prefill,
            prefix_cache=settings.prefix_cache,
            max_queue=settings.max_queue,
            max_queue_per_session=settings.max_queue_per_session,
            turn_tokens=settings.turn_tokens,
            recorded_ticks=settings.recorded_ticks,
            chaos=Chaos(settings.chaos_preempt_every, settings.chaos_slow_tick_ms),
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _num_blocks(settings: Settings, model: ModelConfig, max_model_len: int, available: int) -> int:
    if settings.kv_cache_tokens is not None:
        return settings.kv_cache_tokens // BLOCK_SIZE
    from torch import float32

    from engine.models.inputs import KVCache

    affordable = int(available * MEMORY_SHARE) // KVCache.bytes_per_block(model, float32)
    useful = settings.max_num_seqs * blocks_for(max_model_len)
    # At least one full sequence, even where memory is short: the kernel gives pages as they are used.
    return max(min(affordable, useful), blocks_for(min(max_model_len, 2048)))
