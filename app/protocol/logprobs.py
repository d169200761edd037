"""Log probabilities as clients get them; chat completions and responses have one shape for them.

Knows: the shape, what bytes a token stands for. Does not know: how they were computed.
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
