"""KV memory as blocks: which are free, which are held, which are kept for their content.

Knows: block numbers, how often each is held, by which hash its content is known. Does not know: tensors,
sequences, scheduling, how hashes are made.

Paged KV memory after PagedAttention (Kwon et al., SOSP 2023): a sequence holds a table of blocks that
need not be neighbours, and takes a new one only when its tokens reach into it. A block that is full can be
found by the hash of all tokens up to its end, and be held by several.

A block that nobody holds keeps its content and its hash until the block is needed for something else. Those
that were given up longest ago go first, and of one sequence the last block before the first: what is
evicted is the end of a prefix, never its middle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

BLOCK_SIZE = 16
"""Token slots in a block."""


def blocks_for(num_tokens: int) -> int:
    """How many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than can be had."""


class BlockPool:
    """All blocks of KV memory. Every block is free, or cached (idle, with a content worth keeping), or held.

    Invariants: a block is held exactly when its reference count is above 0; of the others, those with a hash
    are cached and the rest are free; a hash leads to one block, and that block has this hash.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: got {num_blocks}, allowed: at least 1")
        self.num_blocks = num_blocks
        self.num_shared = 0
        """References beyond the first, over all blocks."""
        self._references = [0] * num_blocks
        # Last in, first out: the block freed most recently is the likeliest still in a CPU cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Idle blocks with a hash, those to be evicted first in front."""
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give: the cached ones count."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks, each held once; cached ones only when no others are left.

        Raises:
            OutOfBlocks: there are fewer; nothing was taken.
        """
        if count > self.num_free:
            raise OutOfBlocks(
                f"{count} blocks were asked for, {self.num_free} of {self.num_blocks} can be had"
            )
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: list[int]) -> None:
        """Gives up one hold on each of `blocks`.

        Raises:
            ValueError: a block is not held. The blocks behind it in the list have been released.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ValueError(f"block {block} was released but nobody holds it")
            self._references[block] -= 1
            if self._references[block]:
                self.num_shared -= 1
            elif self._hashes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def share(self, blocks: Iterable[int]) -> None:
        """Takes one more hold on each of `blocks`, which are held or cached.

        Raises:
            ValueError: a block is free: its content is nobody's. The blocks before it have been taken.
        """
        for block in blocks:
            if self._references[block]:
                self.num_shared += 1
            elif block in self._cached:
                del self._cached[block]
            else:
                raise ValueError(f"block {block} was shared but it is free")
            self._references[block] += 1

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of a chain of hashes."""
        blocks = []
        for each in hashes:
            block = self._by_hash.get(each)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds: to share them takes so many from `num_free`."""
        return sum(not self._references[block] for block in blocks)

    def register(self, block: int, content: bytes) -> None:
        """Let a held, full block be found by the hash of its content. If another block is known by it
        already, that one stays the one: tables never change because of equals.

        Raises:
            ValueError: the block is not held, or is known by another hash.
        """
        if not self._references[block]:
            raise ValueError(f"block {block} was registered but nobody holds it")
        if self._hashes[block] not in (None, content):
            raise ValueError(f"block {block} is known by another hash")
        if self._by_hash.setdefault(content, block) == block:
            self._hashes[block] = content

    def forget(self, blocks: Iterable[int]) -> None:
        """These blocks' content is not to be found again: it is wrong."""
        for block in blocks:
            self._unregister(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def forget_all(self) -> None:
        """No content is to be found again."""
        self.forget(list(self._by_hash.values()))

    def usage(self) -> list[int]:
        """A picture of the pool: per block its reference count, or -1 where it is cached."""
        return [
            -1 if not count and content is not None else count
            for count, content in zip(self._references, self._hashes, strict=True)
        ]

    def check(self, tables: list[list[int]]) -> None:
        """Compares the pool with the block tables of everyone who holds blocks.

        Raises:
            RuntimeError: a block is lost, held without an owner, free while it is held, twice in one table,
                or its hash leads elsewhere.
        """
        held = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise RuntimeError(f"a block is twice in one table: {table}")
            for block in table:
                held[block] += 1
        if held != self._references:
            wrong = [b for b in range(self.num_blocks) if held[b] != self._references[b]]
            raise RuntimeError(f"reference counts differ from the block tables at blocks {wrong}")
        idle = [b for b in range(self.num_blocks) if held[b] == 0]
        if sorted([*self._free, *self._cached]) != idle:
            raise RuntimeError("free and cached blocks together are not those that nobody holds")
        if any((self._hashes[b] is not None) != (b in self._cached) for b in idle):
            raise RuntimeError("the cached blocks are not the idle ones with a hash")
        if {b: h for b, h in enumerate(self._hashes) if h is not None} != {
            b: h for h, b in self._by_hash.items()
        }:
            raise RuntimeError("hashes and blocks do not lead to each other")
        if self.num_shared != sum(max(0, count - 1) for count in held):
            raise RuntimeError(f"num_shared is {self.num_shared}, not the references beyond the first")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._unregister(block)
        return block

    def _unregister(self, block: int) -> None:
        if (content := self._hashes[block]) is not None:
            del self._by_hash[content]
            self._hashes[block] = None
