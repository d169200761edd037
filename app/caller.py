"""Who asks: whose turn in the queue a request takes, and with whom it may share computed prefixes.

Knows: the Authorization header, connections. Does not know: requests, queues, whether a key is a valid one.

A key is never kept: what goes on from here is a digest of it under a key of this process, so neither a log
nor a memory dump of the engine tells it, and a guess at it cannot be checked elsewhere.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers

_SECRET = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    """One client, as far as it can be told from others."""

    session: str
    """Clients with one API key are one session; without a key, a connection is."""
    key: str
    """Digest of the API key; "" if there is none."""

    def salt(self, cache_salt: str | None) -> str:
        """Two requests have the same salt only if they come under the same API key, or both under none, and
        name the same `cache_salt`, or both none."""
        return _digest("salt", self.key, "" if cache_salt is None else f"={cache_salt}")


def caller(headers: Headers, connection: str) -> Caller:
    """`connection` names the client's connection, and is unique among the open ones."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return Caller(f"connection {connection}", "")
    digest = _digest("key", key.strip())
    return Caller(f"key {digest}", digest)


def _digest(*parts: str) -> str:
    """Of the parts one by one: other parts that join to the same text have another digest."""
    content = b"".join(len(raw).to_bytes(8, "big") + raw for raw in (part.encode() for part in parts))
    return hashlib.blake2b(content, digest_size=16, key=_SECRET).hexdigest()
