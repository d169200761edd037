"""Who asks: whether they may, whose turn in the queue a request takes, and with whom it may share computed
prefixes.

Knows: the Authorization header, `session.auth`, the keys that are allowed, connections. Does not know:
requests, queues.

A key is never kept: what goes on from here is a digest of it under a key of this process, so neither a log
nor a memory dump of the engine tells it, and a guess at it cannot be checked elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers

from app.protocol.errors import ApiError, invalid_api_key

_SECRET = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    """One client, as far as it can be told from others."""

    session: str
    """Clients with one API key are one session; without a key, a connection is."""
    key: str
    """Digest of the API key; "" if there is none. What one key began, only the same key may take up."""

    def salt(self, cache_salt: str | None) -> str:
        """Two requests have the same salt only if they come under the same API key, or both under none, and
        name the same `cache_salt`, or both none."""
        return _digest("salt", self.key, "" if cache_salt is None else f"={cache_salt}")


class Callers:
    """
    Args:
        api_keys: those that are allowed; none: any key is, and to have none.
    """

    def __init__(self, api_keys: Iterable[str] = ()) -> None:
        self._allowed = [_digest("key", key) for key in api_keys]

    def of_headers(self, headers: Headers, connection: str) -> Caller:
        """`connection` names the client's connection, and is unique among the open ones.

        Raises:
            ApiError: 401, the key is missing or is none that is allowed.
        """
        return self.of_key(bearer(headers), connection)

    def of_handshake(self, headers: Headers, connection: str) -> Caller | None:
        """Of a socket. None: a key is asked for, and may still be sent in a message.

        Raises:
            ApiError: 401, the key is none that is allowed.
        """
        if self._allowed and bearer(headers) is None:
            return None
        return self.of_headers(headers, connection)

    def of_token(self, token: str, connection: str) -> Caller:
        """Of a socket, whose client sent its key in a message.

        Raises:
            ApiError: 401, the key is none that is allowed.
        """
        try:
            return self.of_key(token, connection)
        except ApiError as error:
            raise invalid_token("a key that is not known here") from error

    def of_key(self, key: str | None, connection: str) -> Caller:
        """
        Raises:
            ApiError: as for `of_headers`.
        """
        digest = _digest("key", key) if key else ""
        # All are compared, so that the time taken tells nothing of which one is near.
        if self._allowed and not sum(hmac.compare_digest(digest, each) for each in self._allowed):
            raise invalid_api_key(is_missing=not key)
        return Caller(f"key {digest}" if digest else f"connection {connection}", digest)


def invalid_token(got: str) -> ApiError:
    """A client should have sent its key in a message, and did not."""
    return ApiError(
        401,
        f"token: got {got}, allowed: a message 'session.auth' with one of the keys in this server's settings",
        code="invalid_api_key",
        param="token",
        kind="authentication_error",
    )


def bearer(headers: Headers) -> str | None:
    """The key in the Authorization header, if there is one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _digest(*parts: str) -> str:
    """Of the parts one by one: other parts that join to the same text have another digest."""
    content = b"".join(len(raw).to_bytes(8, "big") + raw for raw in (part.encode() for part in parts))
    return hashlib.blake2b(content, digest_size=16, key=_SECRET).hexdigest()
