"""Log probabilities as clients get them: chat completions and responses have one shape for them, completions
have an older one.

Knows: the shapes, what bytes a token stands for. Does not know: how they were computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.detokenizer import Vocabulary
from engine.request import ChosenLogprob, TokenLogprob


def entries(logprobs: Iterable[ChosenLogprob], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """One entry for each token.

    `bytes` are exactly the token's: of several tokens that share a character they join to its UTF-8.
    `token` is the same for people, with U+FFFD where the bytes alone are no text. A control token stands
    for no text: its `token` is empty and its `bytes` are [].
    """
    return [
        _entry(chosen, vocabulary) | {"top_logprobs": [_entry(each, vocabulary) for each in top]}
        for chosen, top in logprobs
    ]


def _entry(token: TokenLogprob, vocabulary: Vocabulary) -> dict[str, Any]:
    content = vocabulary.token_bytes[token.token_id]
    return {"token": content.decode(errors="replace"), "logprob": token.logprob, "bytes": list(content)}


def legacy_entries(logprobs: Iterable[ChosenLogprob], vocabulary: Vocabulary, offset: int) -> dict[str, Any]:
    """As lists with one entry for each token. `offset`: characters of the choice's text before the first.

    A token that begins inside a character has the offset of that character. The chosen token is among the
    top ones, whether it is one of the likeliest or not. A token that is no whole text has a name that no
    text has.
    """
    columns: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for chosen, top in logprobs:
        content = vocabulary.token_bytes[chosen.token_id]
        columns["tokens"].append(_legacy_name(chosen, vocabulary))
        columns["token_logprobs"].append(chosen.logprob)
        # Of two that are written alike the likelier one counts.
        likeliest_last = sorted((chosen, *top), key=lambda each: each.logprob)
        columns["top_logprobs"].append(
            {_legacy_name(each, vocabulary): each.logprob for each in reversed(likeliest_last)}
        )
        columns["text_offset"].append(max(0, offset - _continues(content[:1])))
        offset += len(content) - _continues(content)
    return columns


def _legacy_name(token: TokenLogprob, vocabulary: Vocabulary) -> str:
    content, text = vocabulary.token_bytes[token.token_id], vocabulary.texts[token.token_id]
    if not content:
        return f"token_id:{token.token_id}"
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content) if text is None else text


def _continues(content: bytes) -> int:
    """Bytes that go on with a character."""
    return sum(0x80 <= byte < 0xC0 for byte in content)
