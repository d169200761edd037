"""From messages to a running answer: what all endpoints share.

Knows: the served model's name, how messages become a prompt, the fields that all requests have, whether new
work is taken. Does not know: either API's shapes, sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from app.bridge import Bridge
from app.caller import Caller, Callers
from app.protocol.errors import ApiError, from_value_error, model_not_found, queue_full, shown, unavailable
from app.protocol.fields import RequestFields
from app.store import Message
from app.streams import Answer
from app.worker import Worker
from engine.detokenizer import Vocabulary
from engine.request import ContextLengthExceeded, EngineStopped, Priority, QueueFull, Request
from engine.sampling import SamplingParams

INLINE_CHARACTERS = 2000
"""Conversations up to this long are encoded on the loop (about a millisecond); a thread costs more."""
INLINE_BYTES = 16_384
"""JSON up to this size is read, and written, on the loop (about a millisecond at worst)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an answer is to continue, before it is tokens."""

    field: str
    """What the client calls it, for errors."""
    size: int
    """Characters, about."""
    encode: Callable[[], Sequence[int]]
    """Takes time that grows with the size. May raise PromptRefused."""
    seam: str | None = None
    """The prompt ends in a message, and lacks this of it, which the answer may begin with. None: it does
    not."""


class Encoder(Protocol):
    """Messages -> prompt ids. Called from several threads."""

    def __call__(
        self,
        messages: list[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """
        Args:
            continue_final_message: end within the last message, before its `ServedModel.open_end`.

        Raises:
            PromptRefused: see there.
        """
        ...


class PromptRefused(ValueError):
    """The model's chat template refuses these messages; the message is fit for the client to read.

    Args:
        at: dotted path to what is refused, from the messages on; "" if it is all of them.
    """

    def __init__(self, reason: str, at: str = "") -> None:
        super().__init__(reason)
        self.at = at


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    created: int
    """Unix seconds."""
    encode: Encoder
    encode_text: Callable[[str], list[int]]
    """Plain text -> ids, without special tokens. Called from several threads."""
    vocabulary: Vocabulary
    open_end: Callable[[str], str] = lambda _: ""
    """What of a text's end may be part of the token after it."""
    text_prefix: tuple[int, ...] = ()
    """What comes before a text that is no chat."""
    control_tokens: Mapping[str, int] = field(default_factory=dict)
    """Spelling -> id, of the tokens that no text gives."""


class Service:
    def __init__(self, bridge: Bridge, model: ServedModel, callers: Callers) -> None:
        self.model = model
        self.bridge = bridge
        self.callers = callers
        self.json = Worker("tickwire-json", threads=1, inline=INLINE_BYTES)
        """For reading and writing large messages; sizes are bytes. Not behind the prompts: those take a
        second, and whoever reads a socket should not wait for them."""
        # A model on all cores waits, in every one of its loops, for the core that something else has.
        self._encoders = Worker("tickwire-encode", threads=2, inline=INLINE_CHARACTERS, niceness=10)
        self._counting = asyncio.Lock()
        self._draining = False
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

    def chat(
        self,
        messages: list[Message],
        field: str,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Prompt:
        size = sum(len(message["content"]) for message in messages)
        if any("tool_calls" in message for message in messages):
            size += INLINE_CHARACTERS + 1  # nobody has looked how large they are
        return Prompt(
            field,
            size,
            lambda: self.model.encode(messages, add_generation_prompt, continue_final_message),
            self.model.open_end(messages[-1]["content"]) if continue_final_message else None,
        )

    def text(self, text: str, field: str, with_prefix: bool = True) -> Prompt:
        """A text to be continued."""
        prefix = self.model.text_prefix if with_prefix else ()
        return Prompt(field, len(text), lambda: [*prefix, *self.model.encode_text(text)])

    async def start(
        self,
        prompt: Prompt,
        request: RequestFields,
        caller: Caller,
        *,
        arrival: float,
        sampling: SamplingParams | None = None,
        priority: Priority | None = None,
    ) -> Answer:
        """Begin an answer. `sampling` and `priority` override the request's own.

        All that grows with the prompt is done in a thread, the engine's own preparations included.

        Raises:
            ApiError: the template refuses the messages, they are too long, a parameter does not fit the
                model, the queue is full, or no work is taken.
        """
        self.check_ready()
        sampling = sampling or request.sampling
        if prompt.seam is not None:
            sampling = replace(sampling, in_mid_text=True, seam=prompt.seam)
        priority = priority or Priority(request.priority or "interactive")
        answer = Answer(secrets.token_hex(16), arrival, int(time.time()), sampling.n)
        size = prompt.size + sum(map(len, request.bad_words or ()))

        def begin() -> None:
            ids = self._encode(prompt)
            to_engine = Request(
                answer.request_id,
                ids,
                self._with_bad_words(sampling, request.bad_words),
                answer.arrival,
                session=caller.session,
                priority=priority,
                cache_salt=caller.salt(request.cache_salt),
                max_queue_ms=request.max_queue_ms,
                max_time_ms=request.max_time_ms,
            )
            self._submit(answer, to_engine, prompt.field, request.end_user)

        try:
            await self._encoders.do(size, begin)
        except asyncio.CancelledError:
            self.bridge.cancel(answer)
            raise
        return answer

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens alone.

        Raises:
            ApiError: the template refuses the messages.
        """
        is_large = prompt.size > INLINE_CHARACTERS
        # Whoever only counts leaves a thread to those who want an answer.
        async with self._counting if is_large else nullcontext():
            return await self._encoders.do(prompt.size, lambda: self._encode(prompt))

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        try:
            return tuple(prompt.encode())
        except PromptRefused as error:
            param = f"{prompt.field}.{error.at}" if error.at else prompt.field
            raise ApiError(400, f"{param}: {error}", code="invalid_value", param=param) from error

    def _submit(self, answer: Answer, request: Request, field: str, user: str | None) -> None:
        try:
            self.bridge.start(answer, request, user)
        except ContextLengthExceeded as error:
            raise ApiError(400, f"{field}: {error}", code="context_length_exceeded", param=field) from error
        except QueueFull as error:
            raise queue_full(error) from error
        except EngineStopped as error:
            raise unavailable(str(error)) from error
        except ValueError as error:
            raise from_value_error(error) from error

    def _with_bad_words(self, sampling: SamplingParams, words: Sequence[str] | None) -> SamplingParams:
        """Each word as it is written at the beginning of a text, and in its middle, after a space; like
        vLLM. Other ways to write it with the model's tokens stay open."""
        if not words:
            return sampling
        sequences: dict[tuple[int, ...], None] = {}
        for index, word in enumerate(words):
            for spelling in (word, f" {word}"):
                tokens = tuple(self.model.encode_text(spelling))
                if not tokens:
                    raise ApiError(
                        400,
                        f"bad_words.{index}: got {shown(word)}, allowed: text that the model has tokens for",
                        code="invalid_value",
                        param=f"bad_words.{index}",
                    )
                sequences[tokens] = None
        return replace(sampling, bad_words=tuple(sequences))

    def warm_up(self) -> Future[None]:
        """Encode something, in the background: what a template needs is imported at its first use, which
        takes most of a second, and the first client should not have to wait for that."""

        def encode() -> None:
            with suppress(PromptRefused):
                self.model.encode([{"role": "user", "content": "Hello"}])

        return self._encoders.begin(encode)

    # -- the end of the server's life -------------------------------------------------------------------

    def check_ready(self) -> None:
        """
        Raises:
            ApiError: no new work is taken.
        """
        if reasons := self.not_ready():
            raise unavailable(f"no new work is taken: {'; '.join(reasons)}")

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
        self._encoders.close()
        self.json.close()
