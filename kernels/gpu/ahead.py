"""Compiles the kernels ahead of time for chips that need not be there, and tells what they take of each.

    python -m kernels.gpu.ahead [--kernel NAME] [--target cuda:90] [--exhaustive] [--write] [--json]

Knows: which launches the kernels make, how Triton makes a program of one, where a program's registers and
spills are written. Does not know: any kernel, any GPU.

The kernels run on tensors without memory (torch's meta device), and a `Device` notes what they would launch.
`resources.md` keeps the table of what they took when it was written last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import kernels.gpu
from kernels.gpu import shapes
from kernels.gpu.device import Device

KEPT = Path(__file__).with_name("resources.md")
COMPILER = f"Triton {triton.__version__}"


@dataclass(frozen=True)
class Chip:
    """What is compiled for, and how much shared memory one program may have there."""

    target: GPUTarget
    num_sms: int
    shared_bytes: int


CHIPS = {
    "cuda:90": Chip(GPUTarget("cuda", 90, 32), 132, 227 << 10),
    "cuda:80": Chip(GPUTarget("cuda", 80, 32), 108, 163 << 10),
    "cuda:89": Chip(GPUTarget("cuda", 89, 32), 128, 99 << 10),
    "cuda:100": Chip(GPUTarget("cuda", 100, 32), 148, 227 << 10),
    "hip:gfx942": Chip(GPUTarget("hip", "gfx942", 64), 304, 64 << 10),
}
"""H200, A100, RTX 4090, B200, MI300X. All cases are compiled for the first, the `everywhere` ones for all."""


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: dict[str, Any]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class RecordingDevice(Device):
    """Notes what would be launched, and launches nothing."""

    launches: list[Launch] = field(default_factory=list, compare=False)

    def launch(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int, **arguments: Any
    ) -> None:
        self.launches.append(Launch(kernel, arguments, num_warps, num_stages))


def record(case: shapes.Case, arch: str, *, batch_invariant: bool) -> list[Launch]:
    """What a case launches on a chip."""
    device = RecordingDevice(arch, CHIPS[arch].num_sms, batch_invariant)
    case.on(device, case.arguments(shapes.META))()
    return device.launches


def all_kernels() -> set[str]:
    """The names of all functions in Triton's language that are there to be launched: no other calls them."""
    found, called = set(), set()
    for module in iter_modules(kernels.gpu.__path__, "kernels.gpu."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, JITFunction | InterpretedFunction):
                found.add(name_of(value))
                called |= _called_by(value)
    return found - called


def _called_by(kernel: Any) -> set[str]:
    names, known = kernel.fn.__code__.co_names, kernel.fn.__globals__
    scopes = [known, *(vars(known[name]) for name in names if isinstance(known.get(name), ModuleType))]
    values = [scope.get(name) for scope in scopes for name in names]
    return {name_of(value) for value in values if isinstance(value, JITFunction | InterpretedFunction)}


def name_of(kernel: Any) -> str:
    return f"{kernel.fn.__module__.removeprefix('kernels.gpu.')}.{kernel.fn.__name__}"


@dataclass(frozen=True)
class _AbsentDriver:
    """Tells Triton what to compile for, as the driver of a chip that is there would."""

    arch: str

    def get_current_target(self) -> GPUTarget:
        return CHIPS[self.arch].target

    def get_current_device(self) -> str:
        # Triton keeps apart what it knows of each device.
        return self.arch

    def get_current_stream(self, _device: str) -> int:
        return 0


@dataclass(frozen=True)
class Program:
    """What Triton compiles. Launches that differ in no more than values and grids share one."""

    module: str
    function: str
    specialized: str
    """JSON, by Triton's own runtime: types, constants, which numbers are multiples of 16, and options."""
    arch: str

    @classmethod
    def of(cls, launch: Launch, arch: str) -> Program:
        """Of a launch on a chip that need not be there."""
        driver.set_active(_AbsentDriver(arch))
        asked: list[str] = []

        def note(**asks: Any) -> bool:
            asked.append(asks["compile"]["specialization_data"])
            return True  # Do not compile it.

        with knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = note
            launch.kernel.run(
                grid=(1,),
                warmup=True,
                num_warps=launch.num_warps,
                num_stages=launch.num_stages,
                **launch.arguments,
            )
        return cls(launch.kernel.__module__, launch.kernel.__name__, asked[0], arch)

    @property
    def pointers(self) -> list[str]:
        """Types that it reads or writes in memory."""
        kinds = json.loads(self.specialized)["signature"].values()
        return sorted({kind.removeprefix("*") for kind in kinds if kind[0] == "*"})

    def compile(self) -> Any:
        driver.set_active(_AbsentDriver(self.arch))
        return getattr(import_module(self.module), self.function).preload(self.specialized)


@dataclass(frozen=True)
class Resources:
    """What one program takes of a chip."""

    kernel: str
    case: str
    arch: str
    pointers: list[str]
    registers: int
    """Of each thread."""
    shared_bytes: int
    """Of each block of threads."""
    spilled_bytes: int
    """Of each thread, in the memory that stands in for registers."""

    @property
    def fits(self) -> bool:
        return not self.spilled_bytes and self.shared_bytes <= CHIPS[self.arch].shared_bytes


@dataclass(frozen=True)
class Job:
    """A program to compile, under the name of the first case that launches it."""

    kernel: str
    case: str
    program: Program

    def run(self) -> Resources:
        """Raises:
        RuntimeError: Triton cannot compile it.
        """
        arch = self.program.arch
        try:
            compiled = self.program.compile()
        except Exception as error:
            raise RuntimeError(f"{self.kernel} ({self.case}) on {arch}: {error}") from error
        read = _of_cubin if "cubin" in compiled.asm else _of_amdgcn
        registers, spilled = read(compiled.asm)
        shared = compiled.metadata.shared
        return Resources(self.kernel, self.case, arch, self.program.pointers, registers, shared, spilled)


def _of_cubin(asm: dict[str, Any]) -> tuple[int, int]:
    """Registers and spilled bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number("REG:", said), _number("STACK:", said) + _number("LOCAL:", said)


def _of_amdgcn(asm: dict[str, Any]) -> tuple[int, int]:
    """Registers, those for sums of products included, and spilled bytes."""
    said = asm["amdgcn"]
    return _number(r"\.vgpr_count: +", said), 4 * _number(r"\.vgpr_spill_count: +", said)


def _number(after: str, text: str) -> int:
    found = re.search(after + r"(\d+)", text)
    if found is None:
        raise RuntimeError(f"the compiler's output does not say {after!r}")
    return int(found[1])


def jobs(selected: str | None, archs: Iterable[str], groups: tuple[shapes.Sizes, ...]) -> Iterator[Job]:
    """The programs of all cases, each once. `selected`: a function, or a module that has several."""
    first, seen = next(iter(CHIPS)), set()
    for case, arch, batch_invariant in product(shapes.cases(*groups), archs, (False, True)):
        wanted = selected in (None, case.function, shapes.MODULES[case.function])
        if not wanted or not (case.everywhere or arch == first):
            continue
        for launch in record(case, arch, batch_invariant=batch_invariant):
            program = Program.of(launch, arch)
            if program not in seen:
                seen.add(program)
                mode = ", batch-invariant" if batch_invariant else ""
                yield Job(name_of(launch.kernel), case.name + mode, program)


def compile_all(todo: list[Job]) -> list[Resources]:
    """In as many processes as there are cores, and other ones for each chip: what Triton's compiler decides
    once for a process, as how to widen 8-bit numbers, may be right for the first chip only."""
    found: list[Resources] = []
    for arch in dict.fromkeys(job.program.arch for job in todo):
        # Forked, for they need not load torch and Triton anew. This process compiles nothing itself.
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
            found += pool.map(Job.run, [job for job in todo if job.program.arch == arch])
    return found


def table(found: Iterable[Resources]) -> list[str]:
    """Lines of markdown. Sorted, and of no common width, so that a diff can be read."""
    head = ("kernel", "compiled for", "chip", "registers", "shared bytes", "spilled bytes")
    rows = sorted((r.kernel, r.case, r.arch, r.registers, r.shared_bytes, r.spilled_bytes) for r in found)
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def kept_text(found: Iterable[Resources]) -> str:
    return "\n".join([f"What the kernels take of each chip, compiled by {COMPILER}.", "", *table(found), ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.gpu.ahead",
        description="Compile the kernels for chips that need not be there, and tell what they take of each.",
    )
    parser.add_argument("--kernel", help="a function of the kernels, or a module that has several")
    parser.add_argument("--target", choices=CHIPS, help="compile for this one only")
    parser.add_argument(
        "--exhaustive", action="store_true", help="all sizes and options combined: takes long"
    )
    parser.add_argument("--write", action="store_true", help=f"keep the table in {KEPT.name}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if knobs.runtime.interpret:
        parser.error("under TRITON_INTERPRET nothing is compiled: unset it")
    if options.write and (options.kernel or options.target or options.exhaustive):
        parser.error("--write keeps the usual table: give no --kernel, --target or --exhaustive")
    groups = shapes.EXHAUSTIVE if options.exhaustive else shapes.USUAL
    found = compile_all(
        list(jobs(options.kernel, [options.target] if options.target else list(CHIPS), groups))
    )
    if options.json:
        print(json.dumps([asdict(r) for r in found]))
    else:
        print(*table(found), sep="\n")
    if options.write:
        KEPT.write_text(kept_text(found))
    sys.exit(not all(r.fits for r in found))


if __name__ == "__main__":
    main()
