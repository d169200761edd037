"""What the engine gets when nothing is said, and when too much is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.settings import Settings, SettingsError
from app.sizes import DEFAULTS, available_memory, engine_sizes, physical_cores
from engine.config import Admission, Chaos, EngineConfig
from engine.models.config import ModelConfig

MODEL = ModelConfig.from_hf(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
)
BYTES_PER_BLOCK = 2 * 2 * 2 * 16 * 16 * 4
"""Keys and values, layers, key-value heads, slots, head size, bytes of a float."""


def sizes(available: int, **settings: Any) -> tuple[int, int]:
    config = engine_sizes(Settings(**settings), MODEL, available, torch.float32)
    return config.num_blocks, config.max_model_len


def test_enough_memory_gives_every_sequence_the_whole_context() -> None:
    assert sizes(10**12) == (32 * 4096 // 16, 4096)
    assert sizes(10**12, max_num_seqs=4, max_model_len=1000) == (4 * 63, 1000)


def test_little_memory_gives_a_share_of_it() -> None:
    blocks, context = sizes(int(300 * BYTES_PER_BLOCK / DEFAULTS["cpu"].memory_share) + 1)
    assert (blocks, context) == (300, 4096)


def test_very_little_memory_makes_the_context_shorter() -> None:
    assert sizes(0) == (128, 2048)


def test_a_gpu_gives_nearly_all_it_has_to_more_sequences_and_never_more_than_that() -> None:
    share = DEFAULTS["cuda"].memory_share
    assert sizes(10**12, device="cuda") == (256 * 4096 // 16, 4096)
    assert sizes(int(50 * BYTES_PER_BLOCK / share) + 1, device="cuda") == (50, 800)
    config = engine_sizes(Settings(device="cuda"), MODEL, 10**12, torch.bfloat16)
    assert (config.max_num_seqs, config.token_budget, config.prefill_chunk) == (256, 2048, 1024)


def test_a_narrower_cache_holds_more() -> None:
    available = int(300 * BYTES_PER_BLOCK / DEFAULTS["cuda"].memory_share) + 1
    blocks = [
        engine_sizes(Settings(device="cuda"), MODEL, available, dtype).num_blocks
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    ]
    assert blocks == [300, 600, 1200]


def test_what_is_set_is_taken() -> None:
    assert sizes(0, kv_cache_tokens=1600, max_model_len=100) == (100, 100)
    assert sizes(0, kv_cache_tokens=1600) == (100, 1600)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_model_len": 5000}, "max_model_len: got 5000, allowed: at most 4096"),
        ({"max_model_len": 2000, "kv_cache_tokens": 1600}, "max_model_len: got 2000, allowed: 2 to 1600"),
        ({"token_budget": 16}, "token_budget: got 16, allowed: at least max_num_seqs"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        sizes(10**12, **settings)


def test_policies_bounds_and_disturbances_reach_the_engine() -> None:
    settings = Settings(
        admission="reserve_pow2",
        chunked_prefill=False,
        prefix_cache=False,
        max_queue=7,
        max_queue_per_session=6,
        turn_tokens=5,
        recorded_ticks=4,
        chaos_preempt_every=3,
        chaos_slow_tick_ms=2.5,
    )
    config = engine_sizes(settings, MODEL, 10**12, torch.float32)
    assert config.admission is Admission.RESERVE_POW2
    assert (config.chunked_prefill, config.prefix_cache) == (False, False)
    assert (config.max_queue, config.max_queue_per_session, config.turn_tokens) == (7, 6, 5)
    assert config.recorded_ticks == 4
    assert config.chaos == Chaos(preempt_every=3, slow_tick_ms=2.5)


def test_what_is_not_set_is_the_engines_own_default() -> None:
    config = engine_sizes(Settings(), MODEL, 10**12, torch.float32)
    assert config == EngineConfig(config.num_blocks, config.max_model_len)


def test_the_machine_is_looked_at() -> None:
    assert available_memory() > 0
    assert physical_cores() > 0
