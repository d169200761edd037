"""Random life of the block pool: whatever is done, every block is free or held, never both, never lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool, OutOfBlocks, blocks_for

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, NUM_BLOCKS + 2))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocks, match=f"{count} blocks were asked for, {free} of {NUM_BLOCKS}"):
                self.pool.allocate(count)
            assert self.pool.num_free == free
        else:
            self.tables.append(self.pool.allocate(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)

    @precondition(lambda self: self.pool.num_free)
    @rule()
    def a_free_block_cannot_be_released(self) -> None:
        (block,) = self.pool.allocate(1)
        self.pool.release([block])
        with pytest.raises(ValueError, match=f"block {block} was released but nobody holds it"):
            self.pool.release([block])

    @invariant()
    def books_agree(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.num_free + sum(map(len, self.tables)) == NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestPool = PoolMachine.TestCase


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(3)
    table = pool.allocate(2)
    with pytest.raises(RuntimeError, match="reference counts differ"):
        pool.check([table[:1]])
    pool.check([table])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks
