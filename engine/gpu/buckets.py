"""The batch sizes that forward passes are captured for.

Knows: how the waste of padding weighs against the number of graphs. Does not know: graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain


def decode_buckets(most: int) -> list[int]:
    """Sizes from 1 to `most`, ascending, for batches of up to `most` rows.

    Steps grow with the size: a padding row costs what a real one does, but a step is a share of the batch,
    at most a quarter from 32 rows on.
    """
    steps = chain((1, 2, 4), range(8, 64, 8), range(64, 256, 16), range(256, most, 32))
    return [*(size for size in steps if size < most), most]


def chunk_buckets(budget: int, most: int, context: int) -> list[int]:
    """Sizes, ascending, for up to `budget` tokens of at most `most` sequences, each of at most `context`.

    Here padding costs computing, so it is a quarter of the batch at most from 256 tokens on; below, launching
    is what takes time, and any size is as good. No two are further apart than a context, so that a single
    sequence could have all the padding.
    """
    largest = min(budget, most * context)
    buckets, size = [], 0
    while size < largest:
        step = 64 if size < 512 else 128 if size < 1024 else 256
        size = min(size + min(step, context), largest)
        buckets.append(size)
    return buckets


def bucket_for(buckets: list[int], count: int) -> int | None:
    """The smallest of the ascending `buckets` that holds so many; None if none does."""
    index = bisect_left(buckets, count)
    return buckets[index] if index < len(buckets) else None
