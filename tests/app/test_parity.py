"""The real model over the real socket: an answer does not depend on its company.

32 sessions at once, prompts of a few to about 500 tokens, answers of up to 200, each compared with the same
request alone: in one big pool, in a pool so small that sequences are preempted, and with prompts computed
32 tokens at a time. A library's matrix product may sum in another order for another batch size, so the
logits agree only to about 1e-5; a text may differ only where the two best tokens were closer than
TIE, and such cases are counted and printed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from websockets.asyncio.client import connect

from app.server import Server, build_app, listen
from app.service import ServedModel
from app.settings import Settings
from engine.config import EngineConfig
from engine.detokenizer import Detokenizer
from engine.engine import Engine
from engine.loading import LoadedModel, load
from engine.models.inputs import ForwardInputs, KVCache
from engine.request import Event
from engine.runner import ModelRunner
from tests.app.harness import eventually

TIE = 1e-4
SESSIONS = 32
WORDS = ["river", "window", "garden", "engine", "winter", "letter", "ocean", "bridge", "doctor", "candle"]


@dataclass(frozen=True)
class Ask:
    text: str
    max_tokens: int


@dataclass(frozen=True)
class Alone:
    """What a request got when nobody else was there."""

    text: str
    prompt_tokens: int
    pieces: list[str]
    """The text that each token brought."""
    gaps: list[float]
    """For each token, how far the second best logit was below the best."""


class WatchedModel:
    """The model, and by how much the best token won in each row of each forward pass."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self.config, self.kernels = loaded.config, loaded.model.kernels
        self.device, self.dtype = loaded.model.device, loaded.model.dtype
        self.tokens: list[int] = []
        self.gaps: list[float] = []

    def forward(self, inputs: ForwardInputs, kv: KVCache) -> torch.Tensor:
        logits = self._model.forward(inputs, kv)
        if len(logits):
            best = logits.topk(2)
            self.gaps += (best.values[:, 0] - best.values[:, 1]).tolist()
            self.tokens += best.indices[:, 0].tolist()
        return logits


def asks() -> list[Ask]:
    """Most are short, as in life; the longest are about 500 tokens and 200. Several begin small and grow a
    lot: those overfill a small pool."""
    draw = random.Random(20)
    sizes = [(0, 200), (470, 150), (450, 5), (190, 200), *[(draw.randrange(9), 90) for _ in range(8)]]
    while len(sizes) < SESSIONS:
        sizes.append((min(450, int(draw.expovariate(1 / 50))), min(200, int(draw.expovariate(1 / 25)) + 5)))
    return [
        Ask(f"Write a long story with these words: {' '.join(draw.choices(WORDS, k=words))}", tokens)
        for words, tokens in sizes
    ]


@cache
def loaded_model() -> LoadedModel:
    from app.settings import default_cache_dir

    return load("default", device="cpu", cache_dir=default_cache_dir(), progress=print)


@asynccontextmanager
async def serving(**sizes: int) -> AsyncIterator[tuple[int, Engine, WatchedModel]]:
    """Port, engine, model."""
    loaded = loaded_model()
    template = loaded.chat_template
    assert template is not None
    model = WatchedModel(loaded)
    fields: dict[str, Any] = {"num_blocks": 700, "max_model_len": 1024, **sizes}
    config = EngineConfig(**fields)
    engines: list[Engine] = []
    ports: list[int] = []

    def make_engine(publish: Callable[[list[Event]], None]) -> Engine:
        runner = ModelRunner(model, config.num_blocks)  # type: ignore[arg-type]
        engines.append(Engine(runner, loaded.tokenizer.vocabulary, config, publish))
        return engines[0]

    tokenizer = loaded.tokenizer
    served = ServedModel(
        loaded.name, 0, template.encode, tokenizer.encode, tokenizer.vocabulary, tokenizer.open_end
    )
    app = build_app(Settings(), model=served, make_engine=make_engine)
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, Settings(), ports.append)
        task = asyncio.create_task(server._serve([listening]))
        try:
            await eventually(lambda: ports or task.done())
            yield ports[0], engines[0], model
        finally:
            server.end()
            await task


async def answer(port: int, ask: Ask) -> dict[str, Any]:
    """The final response object; its text must be the deltas joined, numbered without a gap."""
    async with connect(f"ws://127.0.0.1:{port}/v1/responses", compression=None) as connection:
        message = {
            "type": "response.create",
            "input": ask.text,
            "max_output_tokens": ask.max_tokens,
            "temperature": 0,
        }
        await connection.send(orjson.dumps(message).decode())
        deltas = []
        async for number in _numbers():
            event: dict[str, Any] = orjson.loads(await connection.recv())
            assert event["sequence_number"] == number, event
            if event["type"] == "response.output_text.delta":
                deltas.append(event["delta"])
            if event["type"] in ("response.completed", "response.incomplete"):
                break
    response: dict[str, Any] = event["response"]
    assert response["output"][0]["content"][0]["text"] == "".join(deltas)
    return response


async def _numbers() -> AsyncIterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def run_alone() -> list[Alone]:
    vocabulary = loaded_model().tokenizer.vocabulary
    got = []
    async with serving() as (port, _, model):
        for ask in asks():
            model.tokens, model.gaps = [], []
            response = await answer(port, ask)
            detokenizer = Detokenizer(vocabulary)
            pieces = [detokenizer.push(token) for token in model.tokens]
            assert response["usage"]["output_tokens"] == len(pieces)
            got.append(Alone(text_of(response), response["usage"]["input_tokens"], pieces, model.gaps))
    return got


@pytest.fixture(scope="module")
def alone(default_model_dir: Path) -> list[Alone]:
    return asyncio.run(run_alone())


def gap_where_they_part(alone: Alone, text: str) -> float:
    """The smallest gap among the tokens that could have made `text` differ first: the one that brought the
    first differing character, and those just before it that brought none."""
    same = next(
        (i for i, (a, b) in enumerate(zip(alone.text, text, strict=False)) if a != b),
        min(len(alone.text), len(text)),
    )
    length, candidates = 0, []
    for piece, gap in zip(alone.pieces, alone.gaps, strict=True):
        candidates.append(gap)
        length += len(piece)
        if length > same:
            break
        if piece and length <= same:
            candidates.clear()
    return min(candidates)


@pytest.mark.parametrize(
    ("text", "gap"),
    [("xbc", 5.0), ("axc", 2.0), ("abx", 4.0), ("a", 2.0), ("abcd", 1.0)],
)
def test_texts_part_at_the_token_that_made_the_difference(text: str, gap: float) -> None:
    """One that brought no text, as half a character does, may be what made it."""
    single = Alone("abc", 1, ["a", "", "b", "c", ""], [5.0, 2.0, 3.0, 4.0, 1.0])
    assert gap_where_they_part(single, text) == gap


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("in one big pool", {}),
        ("in a small pool", {"num_blocks": 44, "max_model_len": 704}),
        ("in chunks of 32", {"prefill_chunk": 32}),
    ],
)
async def test_32_sessions_at_once_get_what_each_gets_alone(
    alone: list[Alone], name: str, sizes: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(**sizes) as (port, engine, _):
        async with asyncio.timeout(600):
            responses = await asyncio.gather(*(answer(port, ask) for ask in asks()))
        preemptions = engine.stats().num_preemptions
        assert engine.stats().num_free_blocks == engine.stats().num_blocks
    ties = 0
    for single, response in zip(alone, responses, strict=True):
        assert response["usage"]["input_tokens"] == single.prompt_tokens
        if text_of(response) != single.text:
            gap = gap_where_they_part(single, text_of(response))
            assert gap < TIE, f"another text, though the best token was ahead by {gap}"
            ties += 1
    longest = max(len(single.pieces) for single in alone)
    prompts = sorted(single.prompt_tokens for single in alone)
    with capsys.disabled():
        print(
            f"\n{name}: {SESSIONS - ties} of {SESSIONS} texts identical, {ties} parted at a tie, "
            f"{preemptions} preemptions; prompts {prompts[0]}-{prompts[-1]} tokens, answers up to {longest}"
        )
    assert (preemptions > 0) == ("num_blocks" in sizes)
