"""Two runners that must agree: the one for GPUs, and the plain one, which takes each step in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import torch

from engine.batch import Batch, Logprobs, StepOutput
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.gpu.buckets import bucket_for, chunk_buckets, decode_buckets
from engine.gpu.runner import GpuRunner
from engine.gpu.staging import Array
from engine.models.llama import CausalLM
from engine.runner import ModelRunner
from tests.engine.gpu.drivers import driver_for

NANS = -1
"""All bits set: in each float type a NaN, and another one behind it."""


class Twins:
    """Implements `Runner`. In every tick both give the same, bit for bit, and leave the same in all blocks of
    KV memory; each way there was one copy. Before it, the null block is full of NaNs."""

    def __init__(
        self,
        model: CausalLM,
        config: EngineConfig,
        *,
        kv_dtype: torch.dtype = torch.float32,
        graphs: bool = True,
    ) -> None:
        self.driver = driver_for(model.device)
        self.gpu = GpuRunner(model, config, kv_dtype=kv_dtype, graphs=graphs, driver=self.driver)
        self.plain = ModelRunner(model, config.num_blocks, kv_dtype)
        self.null_block = config.num_blocks
        context = blocks_for(config.max_model_len) * BLOCK_SIZE
        self.step_sizes = decode_buckets(config.max_num_seqs) if graphs else []
        self.chunk_sizes = chunk_buckets(config.token_budget, config.max_num_seqs, context) if graphs else []
        self.fault_in: int | None = None
        """The tick that fails, halfway."""
        self.batches: list[Batch] = []
        self.steps: list[int] = []
        """Sizes of the batches that were decode steps."""
        self.arrays: list[Mapping[str, Array]] = []
        """What was sent in each tick."""
        self._send = self.gpu._staging.send
        self.gpu._staging.send = self._note  # type: ignore[method-assign]

    def execute(self, batch: Batch) -> StepOutput:
        blocks = self.gpu._kv.storage.view(torch.int64)
        blocks[:, :, self.null_block] = NANS
        replays, copies = len(self.driver.replayed), (len(self.driver.sent), len(self.driver.fetched))
        got = self.gpu.execute(batch)
        if len(self.batches) == self.fault_in:
            blocks.fill_(NANS)
            self.batches.append(batch)
            raise RuntimeError("the device has failed")
        same(got, self.plain.execute(batch))
        assert torch.equal(blocks[:, :, : self.null_block], self.plain._kv.storage.view(torch.int64))
        assert len(self.driver.sent) == copies[0] + 1
        assert len(self.driver.fetched) == copies[1] + bool(len(batch.sampled))
        self._check_replay(batch, replays)
        self._check_mirror()
        self.batches.append(batch)
        return got

    def reset(self) -> None:
        addresses = self.addresses()
        self.gpu.reset()
        assert self.addresses() == addresses
        self._check_mirror()
        self.plain.reset()

    def addresses(self) -> list[int]:
        """Of all that a captured graph reads and writes."""
        gpu = self.gpu
        steps, chunks = gpu._steps, gpu._chunks
        tensors = (
            gpu._kv.storage, gpu._rows.tables, gpu._rows.last_tokens, steps._inputs, steps._logits,
            steps._starts, steps._order, chunks._inputs, chunks._hidden,
        )  # fmt: skip
        return [tensor.data_ptr() for tensor in tensors]

    def _check_replay(self, batch: Batch, before: int) -> None:
        """What was replayed is of its kind, and the smallest size that holds it."""
        captured = [*(("chunks", size) for size in self.chunk_sizes[::-1])]
        captured += [("step", size) for size in self.step_sizes[::-1]]
        replayed = [captured[index] for index in self.driver.replayed[before:]]
        is_step = len(batch.token_ids) == len(batch.sampled) == len(batch.rows)
        if is_step:
            self.steps.append(len(batch.rows))
            expected = "step", bucket_for(self.step_sizes, len(batch.rows))
        else:
            expected = "chunks", bucket_for(self.chunk_sizes, len(batch.token_ids))
        assert replayed == ([] if expected[1] is None else [expected])

    def _check_mirror(self) -> None:
        """The host knows what the device has."""
        rows = self.gpu._rows
        np.testing.assert_array_equal(rows._tables, rows.tables.numpy(force=True))
        np.testing.assert_array_equal(rows._last_tokens, rows.last_tokens.numpy(force=True))

    def _note(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        self.arrays.append(arrays)
        return self._send(arrays)


def same(got: StepOutput, expected: StepOutput) -> None:
    np.testing.assert_array_equal(got.ids, expected.ids, strict=True)
    assert (got.logprobs is None) == (expected.logprobs is None)
    if got.logprobs is not None and expected.logprobs is not None:
        for field in fields(Logprobs):
            ours, theirs = getattr(got.logprobs, field.name), getattr(expected.logprobs, field.name)
            np.testing.assert_array_equal(ours, theirs, strict=True)
