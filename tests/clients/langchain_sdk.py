"""What a user of LangChain's OpenAI classes does. Runs in their own environment.
`python langchain_sdk.py BASE_URL SAMPLING_BASE_URL` prints one JSON object, a key for each scenario. The
second server's model samples, so it has log probabilities.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

OPTIONS: dict[str, Any] = {"model": "fake-model", "api_key": "unused", "max_retries": 0, "temperature": 0}


def chat(base_url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=base_url, max_tokens=30, stream_usage=True, **OPTIONS)
    whole = model.invoke("hello")
    chunks = list(model.stream("hello"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    content = whole.content
    talk = [SystemMessage("be kind"), HumanMessage("hello"), AIMessage(content), HumanMessage("more")]
    return {
        "whole": content,
        "usage": whole.usage_metadata,
        "finish": whole.response_metadata["finish_reason"],
        "streamed": joined.content,
        "streamed_usage": joined.usage_metadata,
        "pieces": len(chunks),
        "again": model.invoke(talk).content,
        "stopped": model.invoke("hello", stop=[content[5:8]]).content,
    }


async def batch(base_url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=base_url, max_tokens=20, **OPTIONS)
    return {"answers": [answer.content for answer in await model.abatch([f"number {n}" for n in range(8)])]}


def logprobs(base_url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=base_url, max_tokens=10, logprobs=True, top_logprobs=3, **OPTIONS)
    answer = model.invoke("hello")
    entries = answer.response_metadata["logprobs"]["content"]
    return {
        "content": answer.content,
        "tokens": [entry["token"] for entry in entries],
        "top": [len(entry["top_logprobs"]) for entry in entries],
    }


def texts(base_url: str) -> dict[str, Any]:
    model = OpenAI(base_url=base_url, max_tokens=20, **OPTIONS)
    return {
        "whole": model.invoke("Once upon"),
        "streamed": "".join(model.stream("Once upon")),
        "batch": model.batch(["a", "b"]),
    }


def responses(base_url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=base_url, use_responses_api=True, max_tokens=20, **OPTIONS)
    first = model.invoke("hello")
    chunks = list(model.stream("hello"))
    more = model.invoke([HumanMessage("more")], previous_response_id=first.response_metadata["id"])
    return {"first": first.text, "streamed": "".join(chunk.text for chunk in chunks), "second": more.text}


def too_long(base_url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=base_url, max_tokens=20, **OPTIONS)
    try:
        model.invoke("x" * 70_000)
    except ContextOverflowError as error:
        return {"raised": type(error).__name__}
    return {}


def main() -> None:
    base_url, sampling_base_url = sys.argv[1:]
    results = {each.__name__: each(base_url) for each in (chat, texts, responses, too_long)}
    results["batch"] = asyncio.run(batch(base_url))
    results["logprobs"] = logprobs(sampling_base_url)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
