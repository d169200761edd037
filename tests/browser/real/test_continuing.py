"""An answer that was cut goes on as if it had not been, letter for letter."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import httpx
import pytest

WHOLE, MORE = 28, 5
"""Tokens of the answer that is cut, and of what goes on from a cut."""


async def said(http: httpx.AsyncClient, messages: list[dict[str, str]], **fields: Any) -> str:
    body = {"input": messages, "temperature": 0, "store": False} | fields
    response = (await http.post("/v1/responses", json=body)).raise_for_status().json()
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def pieces(http: httpx.AsyncClient, text: str) -> list[str]:
    body = {"prompt": text, "return_token_strs": True, "add_special_tokens": False}
    strings: list[str] = (await http.post("/v1/tokenize", json=body)).raise_for_status().json()["token_strs"]
    return strings


@pytest.mark.parametrize(
    "question",
    ["Tell me about a lighthouse keeper.", "Write a Python function with a loop, code only."],
)
async def test_a_cut_answer_goes_on_as_if_it_had_not_been_cut(origin: str, question: str) -> None:
    asked = {"role": "user", "content": question}
    async with httpx.AsyncClient(base_url=origin, timeout=300) as http:
        whole = await said(http, [asked], max_output_tokens=WHOLE)
        cut_at = [*accumulate(map(len, await pieces(http, whole)))][:-MORE]
        # Behind a blank as well, where no token ends: the model has made one of the blank and its word.
        cut_at += [at + 1 for at in cut_at if whole[at].isspace()]
        for at in sorted(cut_at)[:: len(cut_at) // 6]:
            begun = {"role": "assistant", "content": whole[:at]}
            more = await said(http, [asked, begun], max_output_tokens=MORE, continue_final_message=True)
            together = whole[:at] + more
            assert more
            assert whole.startswith(together[: len(whole)]), (whole[:at], more)
