"""How much of the machine the engine gets: KV memory, context, rows, threads; and what else it is told.

Knows: the settings, the model's sizes, the memory of machine and GPU, cores. Does not know: how memory is
handed out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings import Settings, SettingsError
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import Admission, Chaos, EngineConfig

if TYPE_CHECKING:
    import torch

    from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a kind of device gets where nothing is set."""

    max_num_seqs: int
    token_budget: int
    prefill_chunk: int
    memory_share: float
    """KV memory's share of what is free once the model is loaded."""
    full_context: int
    """Tokens of one sequence for which there is KV memory at least, however little is free."""


DEFAULTS = {
    # Main memory is taken only as conversations fill it, so more may be promised than is free.
    "cpu": Defaults(32, 512, 256, memory_share=0.25, full_context=2048),
    # A GPU has no other use for its memory. The rest is for activations, logits and captured graphs.
    "cuda": Defaults(256, 2048, 1024, memory_share=0.85, full_context=BLOCK_SIZE),
}

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


def available_gpu_memory() -> int:
    """Bytes of the current GPU that this process may still take."""
    import torch

    # What torch holds without using it, after loading, counts as free.
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


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


def engine_sizes(
    settings: Settings, model: ModelConfig, available: int, kv_dtype: torch.dtype
) -> EngineConfig:
    """Sizes of the engine: as set, else as the model and `available` bytes of the device's memory suggest.

    Raises:
        SettingsError: what was set does not fit together.
    """
    defaults = DEFAULTS[settings.device]
    wanted_len = settings.max_model_len or model.max_position_embeddings
    if wanted_len > model.max_position_embeddings:
        raise SettingsError(
            f"max_model_len: got {wanted_len}, allowed: at most {model.max_position_embeddings}, "
            "the context that the model was made for"
        )
    max_num_seqs = settings.max_num_seqs or defaults.max_num_seqs
    num_blocks = _num_blocks(settings, model, max_num_seqs * blocks_for(wanted_len), available, kv_dtype)
    if settings.max_model_len is None:
        wanted_len = min(wanted_len, num_blocks * BLOCK_SIZE)
    try:
        return EngineConfig(
            num_blocks=num_blocks,
            max_model_len=wanted_len,
            max_num_seqs=max_num_seqs,
            token_budget=settings.token_budget or defaults.token_budget,
            prefill_chunk=settings.prefill_chunk or defaults.prefill_chunk,
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


def _num_blocks(
    settings: Settings, model: ModelConfig, useful: int, available: int, kv_dtype: torch.dtype
) -> int:
    """`useful` blocks are all that could ever be filled."""
    if settings.kv_cache_tokens is not None:
        return settings.kv_cache_tokens // BLOCK_SIZE
    from engine.models.inputs import KVCache

    defaults = DEFAULTS[settings.device]
    affordable = int(available * defaults.memory_share) // KVCache.bytes_per_block(model, kv_dtype)
    wanted_len = settings.max_model_len or model.max_position_embeddings
    return max(min(affordable, useful), blocks_for(min(wanted_len, defaults.full_context)))
