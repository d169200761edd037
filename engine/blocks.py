"""KV memory as blocks: which are free, which are held.

Knows: block numbers and how often each is held. Does not know: tensors, sequences, scheduling.

Paged KV memory after PagedAttention (Kwon et al., SOSP 2023): a sequence holds a table of blocks that
need not be neighbours, and takes a new one only when its tokens reach into it.
"""

from __future__ import annotations

BLOCK_SIZE = 16
"""Token slots in a block."""


def blocks_for(num_tokens: int) -> int:
    """How many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """All blocks of KV memory. Every block is either free or held.

    Invariant: a block is in the free list exactly when its reference count is 0.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: got {num_blocks}, allowed: at least 1")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        # Last in, first out: the block freed most recently is the likeliest still in a CPU cache.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks, each held once.

        Raises:
            OutOfBlocks: fewer are free; nothing was taken.
        """
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count} blocks were asked for, {len(self._free)} of {self.num_blocks} are free"
            )
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: list[int]) -> None:
        """Gives up one hold on each of `blocks`.

        Raises:
            ValueError: a block is not held. The blocks before it in the list have been released.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ValueError(f"block {block} was released but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self, tables: list[list[int]]) -> None:
        """Compares the pool with the block tables of everyone who holds blocks.

        Raises:
            RuntimeError: a block is lost, held without an owner, or free while it is held.
        """
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        if held != self._references:
            wrong = [b for b in range(self.num_blocks) if held[b] != self._references[b]]
            raise RuntimeError(f"reference counts differ from the block tables at blocks {wrong}")
        if sorted(self._free) != [b for b in range(self.num_blocks) if held[b] == 0]:
            raise RuntimeError("the free list is not the set of blocks that nobody holds")
