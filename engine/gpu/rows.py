"""What the device remembers of each row from tick to tick: its block table and its last sampled token.

Knows: rows, what the device has of them, how to send no more than the difference. Does not know: who owns a
row, when that changes.

A decode step adds a block to a table once in 16 tokens, so tables stay on the device and only their changes
are sent. Sampled ids are fed back there as well: a decode step finds its tokens where the step before left
them, and the host is not between the two.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import Batch, Int64
from engine.blocks import BLOCK_SIZE
from engine.gpu.staging import Array


class DeviceRows:
    """Rows on the device, and a mirror of them on the host.

    Nobody tells when a row gets an owner, loses it, or has its blocks changed: each batch is compared with
    the mirror, as far as the batch's contexts reach, and what differs is sent.

    There is one row more than sequences: `padding_row`, of one token, whose blocks are all `null_block`.
    """

    def __init__(self, num_rows: int, max_blocks: int, null_block: int, device: torch.device) -> None:
        self.padding_row = num_rows
        self.null_block = null_block
        shape = (num_rows + 1, max_blocks)
        self.tables = torch.full(shape, null_block, dtype=torch.int32, device=device)
        """[num_rows + 1, max_blocks]"""
        self.last_tokens = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        """[num_rows + 1]"""
        self._tables = np.full(shape, null_block, dtype=np.int32)
        self._last_tokens = np.zeros(num_rows + 1, dtype=np.int64)

    def clear(self) -> None:
        """As new, at the same addresses."""
        self.tables.fill_(self.null_block)
        self.last_tokens.zero_()
        self._tables.fill(self.null_block)
        self._last_tokens.fill(0)

    def table_changes(self, batch: Batch) -> dict[str, Array]:
        """What `write` must be given, on the device, before the batch's tables are read there; the mirror has
        it already."""
        width = batch.block_tables.shape[1]
        needed = (batch.context_lens + (BLOCK_SIZE - 1)) // BLOCK_SIZE
        differs = self._tables[batch.rows, :width] != batch.block_tables
        differs &= np.arange(width, dtype=np.int32) < needed[:, None]
        # Not np.nonzero: of a matrix it takes a hundred times longer.
        sequences, columns = np.divmod(np.flatnonzero(differs), width)
        places = batch.rows[sequences] * self._tables.shape[1] + columns
        blocks = batch.block_tables[sequences, columns]
        self._tables.reshape(-1)[places] = blocks
        return {"changed_places": places, "changed_blocks": blocks}

    def token_changes(self, batch: Batch) -> dict[str, Array]:
        """The same for the last tokens of a batch that has one token of each row: one that enters with a
        single token left to compute was never sampled here. The mirror takes what this batch samples, by
        `fed`."""
        changed = np.flatnonzero(self._last_tokens[batch.rows] != batch.token_ids)
        return {"changed_rows": batch.rows[changed], "changed_tokens": batch.token_ids[changed]}

    def write(self, changes: dict[str, torch.Tensor]) -> None:
        """Moves: 12 bytes per changed block, 16 per changed token, each read and written."""
        if len(changes["changed_places"]):
            self.tables.view(-1).index_copy_(0, changes["changed_places"], changes["changed_blocks"])
        if "changed_rows" in changes and len(changes["changed_rows"]):
            self.last_tokens.index_copy_(0, changes["changed_rows"], changes["changed_tokens"])

    def feed(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        """`ids` were sampled for `rows`. Moves: 16 bytes per row, read and written."""
        self.last_tokens.index_copy_(0, rows, ids)

    def fed(self, rows: Int64, ids: Int64) -> None:
        """The same, once the host knows them."""
        self._last_tokens[rows] = ids
