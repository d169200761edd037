"""The batch that is computed before any other is as big as they get, and asks for all there is."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from engine.batch import LogitEdits
from engine.blocks import BLOCK_SIZE
from engine.config import EngineConfig
from engine.gpu.rehearsal import rehearsal
from engine.models.llama import CausalLM
from tests.devices import DEVICES
from tests.engine.gpu.twins import Twins
from tests.engine.tiny import tiny_model

SIZES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 2, 256),
    ({"prefill_chunk": 7, "token_budget": 33}, 4, 7),
    ({"prefill_chunk": 64, "max_num_seqs": 3}, 3, 64),
    ({"prefill_chunk": 500, "token_budget": 100}, 1, 100),
    ({"num_blocks": 5, "max_model_len": 70}, 1, 70),
    ({"num_blocks": 5, "max_model_len": 30}, 2, 30),
    ({"chunked_prefill": False}, 1, 512),
    ({"chunked_prefill": False, "max_model_len": 100}, 5, 100),
    ({"token_budget": 1, "max_num_seqs": 1}, 1, 1),
]


@pytest.mark.parametrize(("sizes", "count", "length"), SIZES)
def test_it_is_as_big_as_any(sizes: dict[str, Any], count: int, length: int) -> None:
    config = EngineConfig(**{"num_blocks": 400, "max_model_len": 512, "max_num_seqs": 20, **sizes})
    batch = rehearsal(config)
    assert np.diff(batch.query_start).tolist() == batch.context_lens.tolist() == [length] * count
    assert len(batch.rows) <= config.max_num_seqs
    assert len(set(batch.slots.tolist())) == len(batch.slots) == count * length
    assert batch.slots.max() < config.num_blocks * BLOCK_SIZE


def test_it_asks_for_everything() -> None:
    batch = rehearsal(EngineConfig(num_blocks=400, max_model_len=512))
    assert batch.edits is not None
    for name in (field.name for field in fields(LogitEdits)):
        assert getattr(batch.edits, name).any() or name.endswith("_ids"), name
    assert batch.num_logprobs.min() == 20
    assert len(batch.copies)
    assert len(batch.sampled) == len(batch.rows)


@pytest.fixture(scope="module", params=DEVICES)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return tiny_model(request.param)


def test_it_is_a_batch_like_others(model: CausalLM) -> None:
    config = EngineConfig(num_blocks=40, max_model_len=256)
    output = Twins(model, config).execute(rehearsal(config))
    assert output.ids.tolist() == [0, 0]


def test_the_runner_computes_it_when_it_is_made_and_forgets_it(model: CausalLM) -> None:
    config = EngineConfig(num_blocks=40, max_model_len=256, max_num_seqs=4)
    twins = Twins(model, config)
    assert len(twins.driver.sent) == len(twins.driver.fetched) == 1
    assert not twins.gpu._kv.storage.any()
    assert (twins.gpu._rows.tables == config.num_blocks).all()
    assert not twins.gpu._rows.last_tokens.any()
