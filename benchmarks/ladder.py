"""What each step from static batching to continuous batching with paged, shared memory is worth.

    python -m benchmarks.ladder [--workload a,c] [--arms S0,S3] [--requests N] [--rate R] [--quick]
    python -m benchmarks.ladder --simulated gpu|cpu ...

One engine serves the same requests once per arm; the arms differ in flags only, and have equal KV memory.
The lengths of answers are fixed and the model is batch-invariant, so every arm makes the same tokens; that is
checked. The arms run in turn, tick by tick (see `benchmarks.drive`), after a warm-up that does not count.

    S0 static       a batch enters when the one before has wholly ended, and pads until then
    S1 reserve_max  sequences enter and leave one by one, each holding a whole context (Orca)
    S2 reserve_pow2 each holds its prompt and its answer rounded up to a power of two
    S3 paged        blocks are taken as tokens reach into them
    S4 + chunks     prompts are computed in chunks beside the decodes, which no longer wait
    S5 + prefixes   computed prefixes are kept and shared

S0 is static batching at its best: prompts are not padded, for our kernels read ragged batches, and tokens are
given out as they come, not at the batch's end.

By default requests arrive as a Poisson stream that is faster than any arm can serve: so tokens/s are those of
a loaded engine, and latencies hold some waiting. `--rate inf`: all are there from the beginning. On the real
model contexts, prompts and answers have half their lengths by default, so that enough requests can be served
within minutes to keep every arm busy; `--context 2048` gives them their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app.settings import default_cache_dir
from benchmarks.drive import OwnTime, Run, SimulatedTime, check_same, run_in_turn
from benchmarks.measure import Figures
from benchmarks.report import aims, chart, table
from benchmarks.simulated import CPU_LIKE, GPU_LIKE, SimulatedRunner
from benchmarks.workloads import CONTEXT, WORKLOADS, Conversation, Order, Turn, Workload, make
from engine.blocks import BLOCK_SIZE
from engine.config import Admission, EngineConfig


@dataclass(frozen=True, slots=True)
class Arm:
    title: str
    admission: Admission
    chunked_prefill: bool = False
    prefix_cache: bool = False


ARMS = {
    "S0": Arm("static", Admission.STATIC),
    "S1": Arm("reserve_max", Admission.RESERVE_MAX),
    "S2": Arm("reserve_pow2", Admission.RESERVE_POW2),
    "S3": Arm("paged", Admission.PAGED),
    "S4": Arm("+ chunks", Admission.PAGED, chunked_prefill=True),
    "S5": Arm("+ prefixes", Admission.PAGED, chunked_prefill=True, prefix_cache=True),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a workload is offered, and to whom."""

    requests: int
    rate: float
    """Requests per unit of time."""
    arms: tuple[str, ...] = tuple(ARMS)


@dataclass(frozen=True, slots=True)
class Machine:
    """What all arms have in common."""

    name: str
    unit: str
    """Of time."""
    contexts: int
    """KV memory, in whole contexts: as many sequences run at once in the arms that reserve one each."""
    max_num_seqs: int
    token_budget: int
    prefill_chunk: int
    loads: dict[str, Load]
    context: int = CONTEXT

    def config(self, arm: Arm, requests: int) -> EngineConfig:
        return EngineConfig(
            num_blocks=self.contexts * self.context // BLOCK_SIZE,
            max_model_len=self.context,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            prefill_chunk=self.prefill_chunk,
            admission=arm.admission,
            chunked_prefill=arm.chunked_prefill,
            prefix_cache=arm.prefix_cache,
            max_queue=requests,
            max_queue_per_session=requests,
        )


MIXING = ("S3", "S4")
"""What a long prompt does to those who stream is a question to these two."""

REAL_LOADS = {
    "a": Load(48, 8.0),
    "b": Load(32, 4.0),
    "c": Load(32, 8.0),
    "d": Load(48, 8.0),
    "e": Load(19, math.inf, MIXING),
}
REAL = Machine("the default model on this machine", "s", 4, 64, 512, 128, REAL_LOADS, context=1024)
QUICK_LOADS = {name: Load(16, math.inf) for name in WORKLOADS}
QUICK = Machine("the default model, a smoke run", "s", 4, 64, 512, 64, QUICK_LOADS, context=256)
# Chats come as fast as they can be served with their histories kept: all at once they would not fit.
SIMULATED_LOADS = {name: Load(1500, math.inf) for name in "abc"} | {
    "d": Load(1500, 0.7),
    "e": Load(19, math.inf, MIXING),
}
SIMULATED = {
    name: Machine(f"simulated, {name}-like cost", "unit", 16, 256, 2048, 512, SIMULATED_LOADS)
    for name in ("gpu", "cpu")
}
SIMULATED_VOCABULARY = 32_000

Runs = Callable[[Workload, Sequence[str]], list[Run]]


def main() -> None:
    arguments = _arguments()
    machine = SIMULATED[arguments.simulated] if arguments.simulated else QUICK if arguments.quick else REAL
    machine = replace(machine, context=arguments.context or machine.context)
    vocabulary, start = _simulated(machine, arguments.simulated) if arguments.simulated else _real(machine)
    results: list[Figures] = []
    rates: dict[str, float | None] = {}
    for name in arguments.workload:
        load = machine.loads[name]
        requests = load.requests if arguments.requests is None else arguments.requests
        rate = load.rate if arguments.rate is None else arguments.rate
        rates[name] = None if math.isinf(rate) else rate  # JSON knows no infinity
        workload = make(name, Order(requests, rate, vocabulary, machine.context, arguments.seed))
        print(f"\n{name}: {workload.title}", flush=True)
        print(
            f"{workload.num_requests} requests, {rate:g} per {machine.unit}; lengths times "
            f"{machine.context / CONTEXT:g}; {machine.name}",
            flush=True,
        )
        runs = start(workload, arguments.arms or load.arms)
        run_in_turn(runs)
        check_same(runs)
        results += (of_workload := [run.figures() for run in runs])
        print(table(of_workload, machine.unit), flush=True)
        # Engines refer to themselves, and the KV memory that they hold is nothing the collector would see.
        del runs
        gc.collect()
    verdicts = aims(results)
    print("\n" + "\n".join(verdicts))
    if arguments.json:
        content = {
            "machine": {key: value for key, value in asdict(machine).items() if key != "loads"},
            "rates": rates,
            "figures": [asdict(figure) for figure in results],
            "aims": verdicts,
        }
        arguments.json.write_text(json.dumps(content, indent=2, allow_nan=False))
    if arguments.svg:
        titles = {name: arm.title for name, arm in ARMS.items()}
        arguments.svg.write_text(chart(results, titles, machine.name, machine.unit))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare schedulers on the same requests.")
    parser.add_argument("--workload", type=_names(WORKLOADS), default=list(WORKLOADS), metavar="a,b,...")
    parser.add_argument("--arms", type=_names(ARMS), metavar="S0,S1,...")
    parser.add_argument("--requests", type=int, help="how many, for each workload")
    parser.add_argument("--rate", type=float, help="requests per second (or unit); inf: all at once")
    parser.add_argument("--context", type=int, metavar="N", help=f"lengths become N / {CONTEXT} of theirs")
    parser.add_argument("--seed", type=int, default=0)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--simulated", choices=list(SIMULATED), help="no model, but the cost of one")
    kind.add_argument("--quick", action="store_true", help="a smoke run: short and few")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    parser.add_argument("--svg", type=Path, metavar="PATH", help="also draw them there")
    return parser.parse_args()


def _names(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"got {', '.join(wrong)}, allowed: {', '.join(allowed)}")
        return names

    return parse


def _simulated(machine: Machine, cost_name: str) -> tuple[int, Runs]:
    cost = {"gpu": GPU_LIKE, "cpu": CPU_LIKE}[cost_name]

    def start(workload: Workload, arms: Sequence[str]) -> list[Run]:
        runs = []
        for name in arms:
            config, clock = machine.config(ARMS[name], workload.num_requests), SimulatedTime()
            runner = SimulatedRunner(config.num_blocks, SIMULATED_VOCABULARY, clock, cost)
            runs.append(Run(name, workload, config, runner, SIMULATED_VOCABULARY, clock))
        return runs

    return SIMULATED_VOCABULARY, start


def _real(machine: Machine) -> tuple[int, Runs]:
    from engine.loading import load
    from engine.runner import ModelRunner

    loaded = load("default", cache_dir=default_cache_dir(), progress=print)
    vocabulary = loaded.config.vocab_size

    def start(workload: Workload, arms: Sequence[str]) -> list[Run]:
        runs = []
        for name in arms:
            config = machine.config(ARMS[name], workload.num_requests)
            runner = ModelRunner(loaded.model, config.num_blocks)
            runs.append(Run(name, workload, config, runner, vocabulary, OwnTime()))
        return runs

    run_in_turn(start(_warm_up(machine), ["S4"]))
    return vocabulary, start


def _warm_up(machine: Machine) -> Workload:
    """Runs through the numbers of rows that will come: prompts of many lengths, and then fewer rows with each
    tick."""
    prompts = [(i + 1) * machine.context // 64 for i in range(16)] + [1] * 24
    turns = [Turn((1,) * prompt, i + 1) for i, prompt in enumerate(prompts)]
    return Workload("warm-up", "", tuple(Conversation(0.0, (turn,)) for turn in turns))


if __name__ == "__main__":
    main()
