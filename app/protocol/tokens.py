"""Text to tokens and back, for clients that count: requests and answers in vLLM's shapes.

Knows: the shapes, how control tokens are shown. Does not know: HTTP, how text becomes tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from app.protocol.chat import ChatMessage, conversation_of
from app.protocol.errors import ApiError, invalid_value
from app.protocol.fields import SWITCH, TokenId
from app.protocol.messages import CONTINUED, check_continued, refuse_empty
from app.protocol.payload import StrictObject, Unsupported, decode, parse
from app.store import Message
from engine.detokenizer import Vocabulary

UNSUPPORTED: Unsupported = {
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "tools": ([],),
}


class TokenizeRequest(StrictObject):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    prompt: str | None = Field(None, description="a string")
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        None, description="a non-empty list of messages"
    )
    add_generation_prompt: bool | None = Field(None, description=SWITCH)
    continue_final_message: bool | None = Field(
        None, description=f"{SWITCH}, and true only if {CONTINUED}, and without add_generation_prompt"
    )
    add_special_tokens: bool | None = Field(None, description=SWITCH)
    return_token_strs: bool | None = Field(None, description=SWITCH)

    @cached_property
    def conversation(self) -> list[Message]:
        return conversation_of(self.messages or [])


class DetokenizeRequest(StrictObject):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    tokens: list[TokenId] = Field(description="a list of token ids")


def parse_tokenize(raw: bytes) -> TokenizeRequest:
    """Raises ApiError. Leaves nothing that grows with the messages for later."""
    request = parse(TokenizeRequest, decode(raw), UNSUPPORTED)
    if (request.prompt is None) == (request.messages is None):
        got = "neither" if request.prompt is None else "both"
        raise invalid_value("prompt", f"got {got} of prompt and messages, allowed: one of them")
    if request.prompt is None and request.add_special_tokens:
        # The template writes what the model wants there, once.
        raise invalid_value("add_special_tokens", "got true, allowed: only with prompt")
    for name in ("add_generation_prompt", "continue_final_message"):
        if request.messages is None and getattr(request, name) is not None:
            raise invalid_value(name, "got a value, allowed: only with messages")
    refuse_empty(request.conversation, "messages")
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise invalid_value(
                "continue_final_message", "got true, allowed: true only without add_generation_prompt"
            )
        check_continued(request.conversation)
    return request


def parse_detokenize(raw: bytes) -> DetokenizeRequest:
    """Raises ApiError."""
    return parse(DetokenizeRequest, decode(raw), {})


class TokenTexts:
    """What tokens say, control tokens included: they are shown as they are spelled.

    Args:
        control_tokens: spelling -> id. The spellings, given as text, are tokenised like any other text.
    """

    def __init__(self, vocabulary: Vocabulary, control_tokens: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._spellings = {token: spelling.encode() for spelling, token in control_tokens.items()}

    def tokenized(self, tokens: Sequence[int], context: int, with_texts: bool) -> dict[str, Any]:
        """`context`: most tokens of prompt and answer together."""
        texts = [self._bytes(each).decode(errors="replace") for each in tokens] if with_texts else None
        return {"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": texts}

    def detokenized(self, tokens: Sequence[int]) -> dict[str, Any]:
        """
        Raises:
            ApiError: one is not in the vocabulary.
        """
        size = len(self._vocabulary.token_bytes)
        for index, token in enumerate(tokens):
            if token >= size:
                raise ApiError(
                    400,
                    f"tokens.{index}: got {token}, allowed: 0 to {size - 1}",
                    code="out_of_range",
                    param=f"tokens.{index}",
                )
        text = b"".join(map(self._bytes, tokens)).decode(errors="replace")
        return {"prompt": text.removeprefix(" ") if self._vocabulary.strip_leading_space else text}

    def _bytes(self, token: int) -> bytes:
        return self._spellings.get(token) or self._vocabulary.token_bytes[token]
