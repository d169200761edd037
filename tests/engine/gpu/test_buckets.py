"""The sizes that forward passes are captured for: few, and no batch is padded much."""

from __future__ import annotations

import pytest

from engine.gpu.buckets import bucket_for, chunk_buckets, decode_buckets

MOSTS = [1, 2, 3, 4, 5, 8, 9, 63, 64, 65, 100, 255, 256, 257, 300, 512, 1000]


@pytest.mark.parametrize("most", MOSTS)
def test_sizes_ascend_to_the_largest_batch(most: int) -> None:
    buckets = decode_buckets(most)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == most
    assert {1, 2, 4} & set(range(most)) <= set(buckets)


@pytest.mark.parametrize("most", MOSTS)
def test_every_batch_fits_and_little_is_padding(most: int) -> None:
    buckets = decode_buckets(most)
    for rows in range(1, most + 1):
        size = bucket_for(buckets, rows)
        assert size is not None
        assert size >= rows
        assert not any(rows <= other < size for other in buckets)
        assert size < 2 * rows or rows <= 1
        if rows > 32:
            assert size - rows <= rows / 4


def test_there_are_few() -> None:
    assert len(decode_buckets(32)) == 7
    assert len(decode_buckets(256)) == 23
    assert len(decode_buckets(1024)) == 23 + 24


def test_the_steps_are_what_they_were_chosen_to_be() -> None:
    assert decode_buckets(100) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100]
    assert decode_buckets(320)[-4:] == [240, 256, 288, 320]


@pytest.mark.parametrize("budget", [1, 33, 64, 500, 512, 513, 1000, 2048, 8192])
@pytest.mark.parametrize(("most", "context"), [(1, 16), (3, 48), (256, 512), (32, 131_072)])
def test_every_batch_with_prompts_fits_too(budget: int, most: int, context: int) -> None:
    buckets = chunk_buckets(budget, most, context)
    largest = min(budget, most * context)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == largest
    for tokens in range(1, largest + 1):
        size = bucket_for(buckets, tokens)
        assert size is not None
        assert tokens <= size < tokens + context
        assert size - tokens < 64 or size - tokens <= tokens / 4
    assert bucket_for(buckets, largest + 1) is None


def test_there_are_few_of_these_either() -> None:
    assert chunk_buckets(512, 32, 8192) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert len(chunk_buckets(2048, 256, 8192)) == 16
