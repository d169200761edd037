"""From messages to a running answer: what all endpoints share.

Knows: the served model's name, how messages become a prompt, whether new work is taken. Does not know:
wire formats, sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from app.bridge import Bridge
from app.protocol.errors import ApiError, model_not_found, unavailable
from app.store import Message
from app.streams import Stream
from engine.detokenizer import Vocabulary
from engine.request import ContextLengthExceeded, EngineStopped
from engine.sampling import SamplingParams

Encoder = Callable[[list[Message]], list[int]]
"""Messages -> prompt ids. Raises PromptRefused. Called from several threads."""

INLINE_CHARACTERS = 2000
"""Conversations up to this long are encoded on the loop (well under a millisecond); a thread costs more."""


class PromptRefused(ValueError):
    """The model's chat template refuses these messages; the message is fit for the client to read."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    created: int
    """Unix seconds."""
    encode: Encoder
    encode_text: Callable[[str], list[int]]
    """Plain text -> ids, without special tokens. Called from several threads."""
    vocabulary: Vocabulary


class Service:
    def __init__(self, bridge: Bridge, model: ServedModel) -> None:
        self.model = model
        self.bridge = bridge
        self._draining = False
        self._encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tickwire-encode")
        self._deliveries = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.bridge.engine.config.max_model_len

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise model_not_found(name, self.model.name)

    async def start(
        self,
        messages: list[Message],
        sampling: SamplingParams,
        *,
        arrival: float,
        field: str,
        user: str | None,
    ) -> Stream:
        """Begin an answer to `messages`. `field` is what the client calls them, for errors.

        Raises:
            ApiError: the template refuses the messages, they are too long, or no work is taken.
        """
        if reasons := self.not_ready():
            raise unavailable(f"no new work is taken: {'; '.join(reasons)}")
        try:
            prompt = await self._encode(messages)
            return self.bridge.start(prompt, sampling, arrival, user)
        except PromptRefused as error:
            raise ApiError(
                400,
                f"{field}: the model's chat template refuses them: {error}",
                code="invalid_value",
                param=field,
            ) from error
        except ContextLengthExceeded as error:
            raise ApiError(400, f"{field}: {error}", code="context_length_exceeded", param=field) from error
        except EngineStopped as error:
            raise unavailable(str(error)) from error

    async def _encode(self, messages: list[Message]) -> Sequence[int]:
        if sum(len(message["content"]) for message in messages) <= INLINE_CHARACTERS:
            return self.model.encode(messages)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoders, self.model.encode, messages)

    def warm_up(self) -> None:
        """Encode something, in the background: what a template needs is imported at its first use, which
        takes most of a second, and the first client should not have to wait for that."""

        def encode() -> None:
            with suppress(PromptRefused):
                self.model.encode([{"role": "user", "content": "Hello"}])

        self._encoders.submit(encode)

    # -- the end of the server's life -------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Why no new work is taken; empty while it is."""
        reasons = ["the server is shutting down"] if self._draining else []
        if failure := self.bridge.stats().failure:
            reasons.append(failure)
        return reasons

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Around all that happens from a request's acceptance to its last byte."""
        self._deliveries += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._deliveries -= 1
            if not self._deliveries:
                self._idle.set()

    def stop_accepting(self) -> None:
        self._draining = True

    async def all_delivered(self) -> None:
        """Returns when every answer in the making has been handed to its connection."""
        await self._idle.wait()

    def close(self) -> None:
        self._encoders.shutdown(wait=False, cancel_futures=True)
