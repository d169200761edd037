"""What a user of litellm does. Runs in litellm's own environment. `python litellm_sdk.py BASE_URL` prints one
JSON object, a key for each scenario.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

litellm.suppress_debug_info = True
"""It prints advice beside what we print."""

HELLO = [{"role": "user", "content": "hello"}]


def options(base_url: str, **fields: Any) -> dict[str, Any]:
    return {"api_base": base_url, "api_key": "unused", "max_retries": 0, "temperature": 0, **fields}


def chat(base_url: str) -> dict[str, Any]:
    fields = options(base_url, model="openai/fake-model", messages=HELLO, max_tokens=30)
    whole = litellm.completion(**fields)
    chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **fields))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    stopped = litellm.completion(stop=[whole.choices[0].message.content[5:8]], **fields)
    return {
        "whole": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "rebuilt": rebuilt.choices[0].message.content,
        "rebuilt_usage": [rebuilt.usage.prompt_tokens, rebuilt.usage.completion_tokens],
        "stopped": [stopped.choices[0].message.content, stopped.choices[0].finish_reason],
    }


async def at_once(base_url: str) -> dict[str, Any]:
    """Several requests of one loop, one of them streamed."""
    fields = options(base_url, model="openai/fake-model", max_tokens=20)
    asked = [
        litellm.acompletion(messages=[{"role": "user", "content": f"number {n}"}], **fields) for n in range(8)
    ]
    stream = await litellm.acompletion(messages=HELLO, stream=True, **fields)
    streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
    answers = await asyncio.gather(*asked)
    return {
        "answers": [answer.choices[0].message.content for answer in answers],
        "streamed": "".join(streamed),
    }


def texts(base_url: str) -> dict[str, Any]:
    fields = options(base_url, model="text-completion-openai/fake-model", prompt="Once upon", max_tokens=20)
    whole = litellm.text_completion(**fields)
    chunks = list(litellm.text_completion(stream=True, **fields))
    return {
        "whole": whole.choices[0].text,
        "streamed": "".join(chunk.choices[0].text or "" for chunk in chunks),
    }


def responses(base_url: str) -> dict[str, Any]:
    fields = options(base_url, model="openai/fake-model", max_output_tokens=20)
    del fields["max_retries"]
    first = litellm.responses(input="hello", **fields)
    second = litellm.responses(input="more", previous_response_id=first.id, **fields)
    events = list(litellm.responses(input="hello", stream=True, **fields))
    return {
        "first": first.output[0].content[0].text,
        "status": first.status,
        "second": second.output[0].content[0].text,
        "kinds": [str(getattr(event.type, "value", event.type)) for event in events],
        "streamed": "".join(event.delta for event in events if hasattr(event, "delta")),
    }


def errors(base_url: str) -> dict[str, Any]:
    raised = {}
    for name, fields in {
        "temperature": {"temperature": 3},
        "model": {"model": "openai/gpt-9"},
        "long": {"messages": [{"role": "user", "content": "x" * 70_000}]},
    }.items():
        try:
            litellm.completion(
                **options(base_url, model="openai/fake-model", messages=HELLO, max_tokens=5) | fields
            )
        except Exception as error:  # its classes are what is asked for
            raised[name] = [type(error).__name__, getattr(error, "status_code", None)]
    return raised


def main() -> None:
    (base_url,) = sys.argv[1:]
    results = {each.__name__: each(base_url) for each in (chat, texts, responses, errors)}
    results["at_once"] = asyncio.run(at_once(base_url))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
