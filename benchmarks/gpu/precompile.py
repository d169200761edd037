"""Compiles what a run will launch, in all cores at once: one by one, on demand, it would take minutes of it.

    python -m benchmarks.gpu.precompile cuda:90 llama-3-8b,smollm2-135m

Knows: which shapes the run has. Does not know: what is done with them. Triton keeps what it compiled in its
cache on disk, where the run finds it; what is missing there costs time, and nothing else. It is a process of
its own because it makes Triton believe in a chip that need not be there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.shapes import model_config
from kernels.gpu import shapes
from kernels.gpu.ahead import CHIPS, Job, Program, compile_all, name_of, record

WINDOW = 128
"""Of attention. Any multiple of 16 makes the same program."""
TOLD = (5, 20)
"""Likeliest tokens of `logprobs`."""


def jobs(models: list[str], arch: str) -> Iterator[Job]:
    """Each program once, those of the first model first."""
    seen = set()
    for case in _cases(models):
        for batch_invariant in (False, True):
            for launch in record(case, arch, batch_invariant=batch_invariant):
                program = Program.of(launch, arch)
                if program not in seen:
                    seen.add(program)
                    yield Job(name_of(launch.kernel), case.name, program)


def _cases(models: list[str]) -> Iterator[shapes.Case]:
    for name in models:
        c = model_config(name)
        model = shapes.Model(
            name, c.num_heads, c.num_kv_heads, c.head_dim, c.hidden_size, c.intermediate_size, c.vocab_size
        )
        for window in (None, WINDOW):
            sizes = shapes.Sizes(
                (model,), ("bf16", "fp16"), shapes.ROWS, shapes.SAMPLED, shapes.TICKS, TOLD, window
            )
            made = shapes.cases(sizes)
            yield from (case for case in made if window is None or case.function == "paged_attention")
        attended = c.num_heads * c.head_dim
        products = {
            "qkv": (attended + 2 * c.num_kv_heads * c.head_dim, c.hidden_size),
            "o": (c.hidden_size, attended),
            "lm_head": (c.vocab_size, c.hidden_size),
        }
        for what, (outputs, inputs) in products.items():
            arguments = partial(shapes.linear_arguments, outputs, inputs, 64, False, torch.bfloat16)
            yield shapes.Case("Linear", f"{name}, {what}", arguments)


def main() -> None:
    arch, models = sys.argv[1], sys.argv[2].split(",")
    if arch in CHIPS:
        print(f"{len(compile_all(list(jobs(models, arch))))} programs compiled")


if __name__ == "__main__":
    main()
