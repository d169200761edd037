"""What a user of the official OpenAI SDK does. Runs in the SDK's own environment, not in ours: it pins an
older `websockets`. `python openai_sdk.py BASE_URL SCENARIO...` prints one JSON object, a key for each.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any, get_args

import openai
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

MODEL = "fake-model"
HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"model": MODEL, "temperature": 0}
LIMITS = ResponsesWebSocketLimits(
    max_lanes=4,
    max_events_per_lane=10_000,
    max_events=10_000,
    max_bytes_per_lane=2**24,
    max_bytes=2**24,
    max_response_bytes=None,
)


def chat(base_url: str) -> dict[str, Any]:
    client = OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    whole = client.chat.completions.create(messages=HELLO, max_tokens=30, **OPTIONS)
    stream = client.chat.completions.create(
        messages=HELLO, max_tokens=30, stream=True, stream_options={"include_usage": True}, **OPTIONS
    )
    chunks = list(stream)
    again = client.chat.completions.create(
        messages=[*HELLO, whole.choices[0].message, {"role": "user", "content": "more"}],
        max_tokens=30,
        **OPTIONS,
    )
    return {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "finish": [c.choices[0].finish_reason for c in chunks if c.choices][-1],
        "usage": chunks[-1].usage.model_dump(),
        "again": again.choices[0].message.content,
        "request_id": whole._request_id,
        "models": [(m.id, m.owned_by) for m in client.models.list()],
    }


def completions(base_url: str) -> dict[str, Any]:
    client = OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    fields = {"prompt": "Once upon", "max_tokens": 20, **OPTIONS}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **fields))
    echoed = client.completions.create(echo=True, **fields)
    several = client.completions.create(**fields | {"prompt": ["a", "b"]})
    return {
        "id": whole.id,
        "object": whole.object,
        "whole": whole.choices[0].text,
        "finish": whole.choices[0].finish_reason,
        "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
        "streamed": "".join(choice.text for chunk in chunks for choice in chunk.choices),
        "streamed_usage": [chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens],
        "echoed": echoed.choices[0].text,
        "several": [choice.text for choice in several.choices],
    }


def responses(base_url: str) -> dict[str, Any]:
    """A conversation over HTTP: whole, streamed, told again from some event on, forgotten."""
    client = OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    fields = {"max_output_tokens": 20, **OPTIONS}
    first = client.responses.create(input="one", **fields)
    second = client.responses.create(input="two", previous_response_id=first.id, **fields)
    events = list(client.responses.create(input="one", stream=True, **fields))
    streamed = events[-1].response
    rest = list(client.responses.retrieve(streamed.id, stream=True, starting_after=5))
    # It takes only what is completed for final.
    stop = {"extra_body": {"stop": first.output_text[10:13]}}
    with client.responses.stream(input="one", **fields, **stop) as stream:
        final = stream.get_final_response()
    items = client.responses.input_items.list(second.id, order="asc")
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        gone = []
    except openai.APIStatusError as error:
        gone = [error.status_code, error.code]
    return {
        "first": first.output_text,
        "second": second.output_text,
        "streamed": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "numbers": [event.sequence_number for event in events],
        "kinds": [event.type for event in events],
        "rest_is_the_rest": [event.to_dict() for event in rest] == [event.to_dict() for event in events[6:]],
        "final": final.output_text,
        "again": client.responses.retrieve(second.id).output_text,
        "items": [(item.role, item.content[0].text) for item in items],
        "gone": gone,
    }


async def background(base_url: str) -> dict[str, Any]:
    """Responses that go on without a reader: one is left alone and followed later, one is cancelled."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0)
    begun = await client.responses.create(input="one", background=True, max_output_tokens=200, **OPTIONS)
    follower = await client.responses.retrieve(begun.id, stream=True)
    followed = "".join(
        [event.delta async for event in follower if event.type == "response.output_text.delta"]
    )
    ended = await client.responses.retrieve(begun.id)
    long = await client.responses.create(input="one", background=True, max_output_tokens=50_000, **OPTIONS)
    cancelled = await client.responses.cancel(long.id)
    return {
        "begun": [begun.status, begun.background],
        "followed": followed,
        "ended": [ended.status, ended.output_text],
        "cancelled": [cancelled.status, (await client.responses.retrieve(long.id)).status],
    }


async def choices(base_url: str) -> dict[str, Any]:
    """Several choices with log probabilities: whole, as chunks, through the SDK's accumulator; a response."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0)
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 30, "seed": 7, "logprobs": True}
    fields |= {"top_logprobs": 2, "extra_body": {"ignore_eos": True}}
    whole = await client.chat.completions.create(n=3, **fields)
    texts, order, finishes, usage = {}, [], [], None
    options = {"stream_options": {"include_usage": True}}
    async for chunk in await client.chat.completions.create(n=2, stream=True, **options, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            order.append(choice.index)
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                finishes.append((choice.index, choice.finish_reason))
    async with client.chat.completions.stream(n=2, **fields) as stream:
        await stream.until_done()
        final = stream.current_completion_snapshot
    contents = [choice.logprobs.content for choice in whole.choices]
    events = []
    async with client.responses.connect() as connection:
        await connection.send(
            {
                "type": "response.create",
                "input": "hello",
                "max_output_tokens": 30,
                "seed": 7,
                "ignore_eos": True,
                "include": ["message.output_text.logprobs"],
                "top_logprobs": 2,
            }
        )
        async for event in connection:
            events.append(event)
            if event.type == "response.incomplete":
                break
    part = events[-1].response.output[0].content[0]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    return {
        "whole": [choice.message.content for choice in whole.choices],
        "streamed": [texts[index] for index in sorted(texts)],
        "order": order,
        "finishes": sorted(finishes),
        "usage": [usage.prompt_tokens, usage.completion_tokens],
        "final": [choice.message.content for choice in final.choices],
        "tokens": [[entry.token for entry in content] for content in contents],
        "bytes": [bytes(b for e in content for b in e.bytes).decode() for content in contents],
        "top": [len(entry.top_logprobs) for content in contents for entry in content],
        "response": {
            "text": part.text,
            "tokens": [entry.token for delta in deltas for entry in delta.logprobs],
            "done": [entry.token for entry in part.logprobs],
        },
    }


async def refusal(client: AsyncOpenAI, **fields: Any) -> list[Any]:
    try:
        await client.chat.completions.create(**({"messages": HELLO, "max_tokens": 5} | OPTIONS | fields))
    except openai.APIStatusError as error:
        told = error.body.get("retry_after") if isinstance(error.body, dict) else None
        kind = type(error).__name__
        return [kind, error.code, error.status_code, error.response.headers.get("retry-after"), told]
    return []


async def limits(base_url: str) -> dict[str, Any]:
    """A server with one row and a short queue: one request runs, others wait, more are refused."""
    clients = [AsyncOpenAI(base_url=base_url, api_key=f"key {n}", max_retries=0) for n in range(5)]
    long = {"messages": HELLO, "max_tokens": 20_000, **OPTIONS}
    running = await clients[0].chat.completions.create(stream=True, **long)
    words = aiter(running)
    while not (await anext(words)).choices[0].delta.content:
        pass
    queue = await refusal(clients[1], extra_body={"max_queue_ms": 1})
    waiting = [await client.chat.completions.create(stream=True, **long) for client in clients[1:4]]
    session = await refusal(clients[1])
    everyone = await refusal(clients[4])
    patient = clients[4].with_options(max_retries=5)
    again = asyncio.create_task(patient.chat.completions.create(messages=HELLO, max_tokens=5, **OPTIONS))
    await asyncio.sleep(0)
    for each in (running, *waiting):
        await each.close()
    retried = (await again).choices[0].message.content
    limited = {"max_time_ms": 1000}
    cut = (await clients[0].chat.completions.create(extra_body=limited, **long)).choices[0]
    async with clients[0].responses.connect() as connection:
        await connection.send({"type": "response.create", "input": "hello", **limited, **OPTIONS})
        async for event in connection:
            if event.type == "response.incomplete":
                response = event.response
                break
    return {
        "session": session,
        "all": everyone,
        "queue": queue,
        "retried": retried,
        "cut": [cut.finish_reason, cut.stop_reason],
        "incomplete": [response.status, response.incomplete_details.reason],
    }


def errors(base_url: str) -> dict[str, Any]:
    client = OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    raised = {}
    for name, fields in {
        "temperature": {"temperature": 3},
        "model": {"model": "gpt-9"},
        "messages": {"messages": []},
        "long": {"messages": [{"role": "user", "content": "x" * 70_000}]},
        "stream": {"stream": True, "n": 200},
    }.items():
        try:
            client.chat.completions.create(**({"messages": HELLO, "max_tokens": 5} | OPTIONS | fields))
        except openai.APIStatusError as error:
            raised[name] = [type(error).__name__, error.param, error.code, bool(error.request_id)]
    return raised


async def lanes(base_url: str) -> dict[str, Any]:
    """Two lanes of one connection, read as raw events."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    texts: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    order: list[str] = []
    final = {}
    async with client.responses.connect() as connection:
        for lane in ("left", "right"):
            await connection.send(
                {
                    "type": "response.create",
                    "input": f"I am {lane}",
                    "max_output_tokens": 100,
                    "stream_id": lane,
                    **OPTIONS,
                }
            )
        async for event in connection:
            lane = event.to_dict()["stream_id"]
            # The SDK falls back to some other class for a type that it does not know.
            known = get_args(type(event).model_fields["type"].annotation)
            kinds.setdefault(lane, []).append(event.type if event.type in known else type(event).__name__)
            if event.type == "response.output_text.delta":
                texts[lane] = texts.get(lane, "") + event.delta
                order.append(lane)
            if event.type == "response.incomplete":
                final[lane] = event.response.output_text
                if len(final) == 2:
                    break
    return {
        "texts": texts,
        "final": final,
        "kinds": kinds,
        "switches": sum(a != b for a, b in itertools.pairwise(order)),
    }


async def session(base_url: str) -> dict[str, Any]:
    """The SDK's own session over lanes: final responses, a conversation, an error, a cancel."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    create = {"type": "response.create", "max_output_tokens": 20, **OPTIONS}
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        left, right = session.lane("left"), session.lane("right")
        await left.send({**create, "input": "one"})
        await right.send({**create, "input": "uno"})
        first, other = await left.get_final_response(), await right.get_final_response()
        await left.send({**create, "input": "two", "previous_response_id": first.id})
        second = await left.get_final_response()
        items = [item.model_dump() for item in first.output]
        asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
        more = {"role": "user", "content": "two"}
        await right.send({**create, "input": [asked, *items, more]})
        by_hand = await right.get_final_response()

        await left.send({**create, "temperature": 9, "input": "x"})
        error = await left.recv()
        await left.send({**create, "input": "long", "max_output_tokens": 50_000})
        created = await left.recv()
        await connection.send({"type": "response.cancel", "response_id": created.response.id})
        cancelled = await left.get_final_response()
        await left.send({**create, "input": "one"})
        after = await left.get_final_response()
    return {
        "first": first.output_text,
        "other": other.output_text,
        "second": second.output_text,
        "by_hand": by_hand.output_text,
        "usage": first.usage.model_dump(),
        "error": [type(error).__name__, error.error.code, error.error.param, error.status],
        "cancelled": [cancelled.status, cancelled.incomplete_details],
        "after": after.output_text,
    }


async def steering(base_url: str) -> dict[str, Any]:
    """A warm-up, and a response that is steered, in the SDK's own session."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    create = {"type": "response.create", "max_output_tokens": 30_000, **OPTIONS}
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        lane = session.lane("left")
        await lane.send({**create, "input": "one", "generate": False})
        warm = await lane.get_final_response()
        await lane.send({**create, "input": "two", "previous_response_id": warm.id})
        created = await lane.recv()
        while (await lane.recv()).type != "response.output_text.delta":
            pass
        for text in ("", "no"):
            await connection.response.steer(previous_response_id=created.response.id, input=text)
        told = []
        while len(told) < 2:
            event = await lane.recv()
            if event.type.startswith("response.steer."):
                told.append(event)
        steered = await lane.get_final_response()
        successor = await lane.recv()
        while (await lane.recv()).type != "response.output_text.delta":
            pass
        await connection.send({"type": "response.cancel", "response_id": successor.response.id})
        last = await lane.get_final_response()
    failed, accepted = told
    return {
        "warm": [warm.status, warm.output, warm.usage.input_tokens],
        "accepted": [type(accepted).__name__, accepted.steer.previous_response_id == steered.id],
        "failed": [type(failed).__name__, failed.error.code, failed.steer.input],
        "steered": [steered.status, steered.incomplete_details.reason],
        "said": [steered.output_text, last.output_text],
        "successor": [
            successor.type,
            last.previous_response_id == steered.id,
            last.id == successor.response.id,
        ],
    }


async def vanish(base_url: str) -> None:
    """Says when it has read a few words, and then reads on until it is killed."""
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    async with client.responses.connect() as connection:
        await connection.send({"type": "response.create", "input": "talk", **OPTIONS})
        seen = 0
        async for event in connection:
            seen += event.type == "response.output_text.delta"
            if seen == 3:
                print("reading", flush=True)


def vanish_chat(base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="unused", max_retries=0)
    stream = client.chat.completions.create(messages=HELLO, stream=True, **OPTIONS)
    for seen, _ in enumerate(stream):
        if seen == 3:
            print("reading", flush=True)


SCENARIOS = {
    each.__name__: each
    for each in (
        background,
        chat,
        choices,
        completions,
        errors,
        lanes,
        limits,
        responses,
        session,
        steering,
        vanish,
        vanish_chat,
    )
}


def main() -> None:
    base_url, *names = sys.argv[1:]
    results = {}
    for name in names:
        result = SCENARIOS[name](base_url)
        results[name] = asyncio.run(result) if asyncio.iscoroutine(result) else result
    print(json.dumps(results))


if __name__ == "__main__":
    main()
