"""The command line. What it measures: `benchmarks/gpu/__init__.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import benchmarks.gpu

SECONDS = 430.0
"""Of all parts together. What one may overrun, and the start, stay below eight minutes with it."""
DRY_SECONDS = 80.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=benchmarks.gpu.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny, through Triton's interpreter")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    parser.add_argument("--models", metavar="NAME,NAME", help="which, in this order; the default: all")
    parser.add_argument("--parts", default="1,2,3,4", help="which, of 1,2,3,4")
    parser.add_argument("--seconds", type=float, help="of all parts together")
    arguments = parser.parse_args()
    if arguments.dry:
        interpret(parser)

    # Imported late: Triton reads whether to interpret when a kernel is defined.
    import torch

    from benchmarks.gpu.report import aims, table
    from benchmarks.gpu.results import as_json
    from benchmarks.gpu.run import WEIGHTS, Run
    from benchmarks.gpu.shapes import RAW, TINY, Scale

    if not arguments.dry and not torch.cuda.is_available():
        parser.error("no GPU is here; --dry runs without one")
    parts = arguments.parts.split(",")
    models = (arguments.models or (TINY if arguments.dry else ",".join(RAW))).split(",")
    for name, got, allowed in (("parts", parts, WEIGHTS), ("models", models, [*RAW, TINY])):
        if unknown := set(got) - set(allowed):
            parser.error(f"--{name}: got {sorted(unknown)}, allowed: {', '.join(allowed)}")
    scale = Scale(
        dry=arguments.dry,
        device=torch.device("cpu" if arguments.dry else "cuda"),
        # The interpreter computes NaN from bf16.
        dtype=torch.float32 if arguments.dry else torch.bfloat16,
        checked_dtypes=(torch.float32, torch.float16) if arguments.dry else (torch.bfloat16, torch.float16),
        models=tuple(models),
        kernel_model=TINY if arguments.dry else next(iter(RAW)),
    )
    seconds = arguments.seconds or (DRY_SECONDS if arguments.dry else SECONDS)
    results = Run(scale, seconds, parts).run()
    if arguments.json:
        found = as_json(results) | {"aims": [asdict(aim) for aim in aims(results)]}
        arguments.json.write_text(json.dumps(found, indent=1))
    print(table(results))
    if not all(check.passed for check in results.numerics):
        sys.exit(1)


def interpret(parser: argparse.ArgumentParser) -> None:
    """Makes Triton interpret its kernels, while it can still be told to."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--dry: Triton is loaded already and compiles its kernels")
    os.environ["TRITON_INTERPRET"] = "1"


if __name__ == "__main__":
    main()
