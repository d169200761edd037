"""What a full block's content is known by: a hash of all tokens up to its end.

Knows: token ids, salts. Does not know: blocks, who holds them.

h[i] = H(h[i - 1], the block's tokens), and h[-1] comes from the salt. H is BLAKE2b keyed with a secret of
this process, so nobody outside can construct two prefixes with one hash, or learn anything from a hash.
Requests with different salts have no hash in common, so neither can notice what the other has computed.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence

from engine.blocks import BLOCK_SIZE

DIGEST_BYTES = 16


class PrefixHasher:
    """Hashes under one secret.

    Args:
        secret: 16 to 64 bytes. None: new ones.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def extend(self, hashes: list[bytes], tokens: Sequence[int], salt: str) -> None:
        """Adds the hashes of the full blocks of `tokens` that `hashes` does not have yet. O(new tokens)."""
        start = len(hashes)
        end = len(tokens) // BLOCK_SIZE
        if start >= end:
            return
        before = hashes[-1] if hashes else self._hash(salt.encode(), b"salt")
        # Eight bytes a token: no two sequences of ids have the same bytes.
        content = array("q", tokens[start * BLOCK_SIZE : end * BLOCK_SIZE]).tobytes()
        size = BLOCK_SIZE * 8
        for offset in range(0, len(content), size):
            before = self._hash(before + content[offset : offset + size], b"block")
            hashes.append(before)

    def _hash(self, content: bytes, kind: bytes) -> bytes:
        # The kind keeps a salt that looks like a block from having a block's hash.
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=self._secret, person=kind).digest()
