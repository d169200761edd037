"""The batch sizes that decode steps are captured for.

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


def bucket_for(buckets: list[int], rows: int) -> int:
    """The smallest of the ascending `buckets` that holds so many rows."""
    return buckets[bisect_left(buckets, rows)]
