"""The client for Python, as its wheel installs it, against a server: prints one JSON object about it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

from tickwire_client import Client, OutputTextDelta
from tickwire_client.testing import FakeServer


async def tour(url: str) -> dict[str, Any]:
    async with Client(url) as client:
        chat = client.chat(instructions="Be brief.", temperature=0.0, max_output_tokens=30)
        streamed = "".join([delta async for delta in chat.send("hello")])
        second = await chat.send("more")
        lanes = [client.chat(temperature=0.0, max_output_tokens=40).send(f"lane {n}") for n in range(20)]
        texts = [result.text for result in await asyncio.gather(*lanes)]
        events = [event async for event in lanes[0].events()]
        warm = await chat.warm_up("and then")
        ping = await client.ping()
    async with FakeServer() as server, Client(server.url) as client:
        server.cut_after(5)
        of_fake = (await client.chat().send("Hi")).text
    return {
        "installed": sorted(each.name.lower() for each in importlib.metadata.distributions()),
        "streamed": streamed,
        "second": [
            second.text,
            second.status.value,
            second.reason,
            second.usage and second.usage.output_tokens,
        ],
        "lanes": texts,
        "numbers": [event.sequence_number for event in events],
        "deltas": "".join(event.delta for event in events if isinstance(event, OutputTextDelta)),
        "warm": warm and [warm.input_tokens, warm.output_tokens],
        "ping": ping,
        "of_fake": of_fake,
    }


print(json.dumps(asyncio.run(tour(sys.argv[1]))))
