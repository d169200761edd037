"""The sizes that decode steps are captured for: few, and no batch is padded much."""

from __future__ import annotations

import pytest

from engine.gpu.buckets import bucket_for, decode_buckets

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
