"""What the prefix cache costs when it finds nothing, and what it saves when it does.

    python -m benchmarks.prefix_cache [--rounds N] [--requests N] [--json PATH]

Without hits: engines with and without the cache serve the same random prompts, in turns within one process,
so that a machine whose speed drifts treats both alike; the figure is the median over rounds of the ratio of
their throughputs. The warm-up goes once through all KV memory: whoever touches a block for the first time
waits for the system to give its pages, and a cache gets to all of them sooner. With hits: one conversation of
ten turns, and how many prompt tokens each turn computed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch

from app.settings import default_cache_dir
from app.sizes import physical_cores
from engine.blocks import blocks_for
from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import LoadedModel, load
from engine.request import Event, FinishedEvent, Request
from engine.runner import ModelRunner
from engine.sampling import SamplingParams

PROMPT_TOKENS, OUTPUT_TOKENS = 192, 32
NUM_BLOCKS = 256
TURNS, TURN_OUTPUT_TOKENS = 10, 24


class Served:
    """An engine over the model, driven to the end of what it is given."""

    def __init__(self, loaded: LoadedModel, prefix_cache: bool) -> None:
        config = EngineConfig(NUM_BLOCKS, max_model_len=2048, prefix_cache=prefix_cache)
        runner = ModelRunner(loaded.model, config.num_blocks)
        self.ended: dict[str, FinishedEvent] = {}
        self.text: dict[str, str] = {}
        self.engine = Engine(runner, loaded.tokenizer.vocabulary, config, self._publish)

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, FinishedEvent):
                self.ended[event.request_id] = event
            else:
                self.text[event.request_id] = self.text.get(event.request_id, "") + event.text

    def run(self, prompts: dict[str, list[int]], count: int) -> float:
        """Seconds until all have been answered with `count` tokens."""
        start = time.perf_counter()
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        for name, prompt in prompts.items():
            self.engine.submit(Request(name, tuple(prompt), sampling, arrival=start))
        while self.engine.tick():
            pass
        return time.perf_counter() - start


def without_hits(loaded: LoadedModel, rounds: int, requests: int) -> dict[str, float]:
    dice = random.Random(7)
    size = len(loaded.tokenizer.vocabulary.token_bytes)
    arms = {True: Served(loaded, prefix_cache=True), False: Served(loaded, prefix_cache=False)}
    ratios = []
    warm_up = 1 + NUM_BLOCKS // (requests * blocks_for(PROMPT_TOKENS + OUTPUT_TOKENS))
    for number in range(warm_up + rounds):
        prompts = {
            f"{number}.{i}": [dice.randrange(size) for _ in range(PROMPT_TOKENS)] for i in range(requests)
        }
        order = [True, False] if number % 2 else [False, True]
        seconds = {cached: arms[cached].run(prompts, OUTPUT_TOKENS) for cached in order}
        if number >= warm_up:
            ratios.append(seconds[False] / seconds[True])
    hits = arms[True].engine.stats().num_hit_tokens
    if hits:
        raise RuntimeError(f"random prompts shared {hits} tokens")
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def conversation(loaded: LoadedModel) -> list[dict[str, int]]:
    if loaded.chat_template is None:
        raise SystemExit("the model has no chat template")
    served = Served(loaded, prefix_cache=True)
    messages: list[dict[str, str]] = []
    turns = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn + 1}: what else is there to say?"})
        prompt = loaded.chat_template.encode(messages)
        served.run({f"turn{turn}": prompt}, TURN_OUTPUT_TOKENS)
        cached = served.ended[f"turn{turn}"].num_cached_tokens
        turns.append({"prompt": len(prompt), "cached": cached, "computed": len(prompt) - cached})
        messages.append({"role": "assistant", "content": served.text[f"turn{turn}"]})
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8, help="per round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(physical_cores())
    loaded = load("default", cache_dir=default_cache_dir(), progress=print)
    turns = conversation(loaded)
    print(f"a conversation of {TURNS} turns, {TURN_OUTPUT_TOKENS} tokens an answer; prompt tokens per turn")
    for kind in ("prompt", "cached", "computed"):
        print(f"{kind:>9}", *(f"{turn[kind]:5}" for turn in turns))
    cost = without_hits(loaded, arguments.rounds, arguments.requests)
    print(
        f"throughput with the cache over without, no hits: median {cost['median']:.3f} "
        f"({cost['least']:.3f} to {cost['most']:.3f} in {arguments.rounds} rounds)"
    )
    print(f"aim: at least 0.98: {'kept' if cost['median'] >= 0.98 else 'missed'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"turns": turns, "without_hits": cost}))


if __name__ == "__main__":
    main()
