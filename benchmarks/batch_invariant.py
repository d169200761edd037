"""What it costs that company changes no bit: matrix products of our own against a library's.

    python -m benchmarks.batch_invariant [--rounds N]

The default model is loaded twice, with `batch_invariant` on and off. Each line is one forward pass: a decode
step of B sequences with 256 tokens of context, or the first 256 tokens of a prompt. The two models compute
it in turn, round by round, so that a busy machine slows both alike. Times are medians over the rounds, and
so is the ratio. Then, for each decode step: how many of its rows have, bit for bit, the logits that they
have alone.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import torch

from app.settings import default_cache_dir
from benchmarks.cpu_decode import decode_inputs, time_in_turn
from engine.loading import load
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM

BATCHES = (1, 4, 8, 16, 32)
CONTEXT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description="Time forward passes with batch_invariant on and off.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    on, off = (
        load("default", batch_invariant=each, cache_dir=default_cache_dir(), progress=print).model
        for each in (True, False)
    )
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; milliseconds")
    print(f"{'':>12} {'on':>7} {'off':>7} {'on/off':>7} | {'same as alone: on':>17} {'off':>7}")
    for batch in BATCHES:
        inputs, kv = decode_inputs(on.config, batch, CONTEXT)
        same = [_rows_same_as_alone(model, inputs, kv) for model in (on, off)]
        shares = f" | {f'{same[0]}/{batch}':>17} {f'{same[1]}/{batch}':>7}"
        print(_line(f"decode, B={batch}", on, off, inputs, kv, rounds) + shares, flush=True)
    inputs, kv = decode_inputs(on.config, 1, CONTEXT)
    print(_line(f"chunk of {CONTEXT}", on, off, _whole_prompt(inputs), kv, rounds))


def _line(name: str, on: CausalLM, off: CausalLM, inputs: ForwardInputs, kv: KVCache, rounds: int) -> str:
    seconds = time_in_turn([lambda: on.forward(inputs, kv), lambda: off.forward(inputs, kv)], rounds)
    on_ms, off_ms = (statistics.median(times) * 1e3 for times in seconds)
    ratio = statistics.median(a / b for a, b in zip(*seconds, strict=True))
    return f"{name:>12} {on_ms:>7.1f} {off_ms:>7.1f} {ratio:>7.2f}"


def _rows_same_as_alone(model: CausalLM, inputs: ForwardInputs, kv: KVCache) -> int:
    together = model.forward(inputs, kv)
    rows = range(len(together))
    return sum(torch.equal(model.forward(_row(inputs, row), kv)[0], together[row]) for row in rows)


def _row(inputs: ForwardInputs, row: int) -> ForwardInputs:
    """One sequence of a decode step."""
    only = slice(row, row + 1)
    return replace(
        inputs,
        token_ids=inputs.token_ids[only],
        positions=inputs.positions[only],
        slots=inputs.slots[only],
        query_start=inputs.query_start[:2],
        context_lens=inputs.context_lens[only],
        block_tables=inputs.block_tables[only],
        sampled=inputs.sampled[:1],
    )


def _whole_prompt(inputs: ForwardInputs) -> ForwardInputs:
    """All tokens of the only sequence of a decode step, as one chunk that samples its last token."""
    tables, slots_per_block = inputs.block_tables[0].long(), CONTEXT // inputs.block_tables.shape[1]
    positions = torch.arange(CONTEXT)
    return replace(
        inputs,
        token_ids=torch.randint(1000, (CONTEXT,)),
        positions=positions,
        slots=tables[positions // slots_per_block] * slots_per_block + positions % slots_per_block,
        query_start=torch.tensor([0, CONTEXT], dtype=torch.int32),
        sampled=torch.tensor([CONTEXT - 1]),
    )


if __name__ == "__main__":
    main()
