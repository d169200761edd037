"""A batch that asks for everything, to be computed once before the first real one.

Knows: how big batches get, what a batch may ask for. Does not know: who computes it.
"""

from __future__ import annotations

import numpy as np

from engine.batch import Batch, LogitEdits, Sampling
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.sampling import MAX_LOGPROBS


def rehearsal(config: EngineConfig) -> Batch:
    """Prompts in chunks as long as they may get, as many as the budget of a tick and KV memory hold, and
    every one of them with edits, all kinds of sampling and log probabilities. It writes to blocks from 0 on.

    Whoever computes it learns whether memory is enough for such batches, and has the kernels compiled.
    """
    length = config.max_model_len
    if config.chunked_prefill:
        length = min(length, config.prefill_chunk, config.token_budget)
    width = blocks_for(length)
    count = max(1, min(config.max_num_seqs, config.token_budget // length, config.num_blocks // width))
    tables = np.arange(count * width, dtype=np.int32).reshape(count, width)
    positions = np.tile(np.arange(length), count)
    blocks = tables[np.repeat(np.arange(count), length), positions // BLOCK_SIZE].astype(np.int64)
    return Batch(
        rows=np.arange(count),
        token_ids=np.zeros(count * length, dtype=np.int64),
        positions=positions,
        slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_start=np.arange(count + 1, dtype=np.int32) * length,
        context_lens=np.full(count, length, dtype=np.int32),
        block_tables=tables,
        sampled=np.arange(1, count + 1) * length - 1,
        sampling=_every_sampling(count, length),
        edits=_every_edit(count),
        num_logprobs=np.full(count, MAX_LOGPROBS, dtype=np.int32),
        copies=np.zeros((1, 2), dtype=np.int64),
    )


def _every_sampling(count: int, position: int) -> Sampling:
    return Sampling(
        temperature=np.ones(count, dtype=np.float32),
        top_p=np.full(count, 0.9, dtype=np.float32),
        top_k=np.full(count, 5, dtype=np.int32),
        min_p=np.full(count, 0.1, dtype=np.float32),
        seed=np.zeros(count, dtype=np.int64),
        position=np.full(count, position, dtype=np.int64),
    )


def _every_edit(count: int) -> LogitEdits:
    """One entry of each list in each row, none of which excludes all tokens."""
    starts = np.arange(count + 1, dtype=np.int32)
    zeros, ones = np.zeros(count, dtype=np.int32), np.ones(count, dtype=np.float32)
    return LogitEdits(
        bias_start=starts,
        bias_ids=zeros,
        bias=ones,
        seen_start=starts,
        seen_ids=zeros,
        seen_counts=zeros + 1,
        presence=ones,
        frequency=ones,
        repetition=ones,
        allowed_start=starts,
        allowed_ids=zeros,
        banned_start=starts,
        banned_ids=zeros + 1,
    )
