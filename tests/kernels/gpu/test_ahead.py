"""What the compiler makes of the kernels, for chips that are not here; and that no kernel looks at values."""

from __future__ import annotations

import difflib
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kernels.gpu import ahead, shapes
from kernels.gpu.ahead import CHIPS, Resources
from kernels.gpu.kernels import GpuKernels

ROOT = Path(__file__).parents[3]
ACTIVATIONS = {"fp32", "fp16", "bf16"}

compiles = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="needs Triton's compiler for Linux on x86-64",
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Another process, for in this one the kernels may belong to the interpreter."""
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=without, capture_output=True, text=True, check=False
    )


def said(*arguments: str) -> Any:
    done = python(*arguments)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def compiled() -> list[Resources]:
    """Every kernel for every chip."""
    return [Resources(**row) for row in said("-m", "kernels.gpu.ahead", "--json")]


@compiles
def test_every_kernel_is_compiled_for_every_dtype_and_chip(compiled):
    dtypes = defaultdict(set)
    for r in compiled:
        dtypes[r.kernel, r.arch] |= ACTIVATIONS & set(r.pointers)
    assert set(dtypes) == {(kernel, arch) for kernel in ahead.all_kernels() for arch in CHIPS}
    # A kernel without 16-bit numbers knows logits or partial sums only, which are fp32 always.
    assert all(kinds in (ACTIVATIONS, {"fp32"}, set()) for kinds in dtypes.values()), dtypes
    for kernel in ahead.all_kernels():
        assert len({frozenset(dtypes[kernel, arch]) for arch in CHIPS}) == 1, kernel


@compiles
def test_kernels_fit_their_chips(compiled):
    assert [r for r in compiled if not r.fits] == []


@compiles
def test_kernels_take_what_the_kept_table_says(compiled):
    kept, now = ahead.KEPT.read_text().splitlines(), ahead.kept_text(compiled).splitlines()
    if kept[0] != now[0]:
        pytest.skip(f"{ahead.KEPT.name} is of another compiler than {ahead.COMPILER}: {kept[0]}")
    changed = "\n".join(difflib.unified_diff(kept, now, "kept", "now", n=0, lineterm=""))
    assert not changed, f"\n{changed}\n\nIf it is as it should be: python -m kernels.gpu.ahead --write"


@compiles
def test_the_numbers_of_a_tick_compile_nothing_anew():
    """Only constants may, and the dtypes: not how many tokens, sequences or blocks there are."""
    program = """
import json
from kernels.gpu.ahead import CHIPS, jobs, shapes
print(json.dumps([[j.kernel, j.case, j.program.specialized] for j in jobs(None, CHIPS, shapes.USUAL)]))
"""
    assert _respecialized(said("-c", program)) == {}


@compiles
def test_numbers_that_compile_anew_are_found():
    program = """
import json, torch
from kernels.gpu.ahead import Launch, Program
from tests.kernels.gpu.toys import counting
x = torch.empty(4, device="meta")
def specialized(number, free):
    launch = Launch(counting, {"x": x, "number": number, "free": free}, 4, 1)
    return ["counting", f"{number}, {free}", Program.of(launch, "cuda:90").specialized]
print(json.dumps([[specialized(n, m) for n, m in pairs] for pairs in (
    [(2, 1), (2, 16), (2, 17)], [(1, 2), (2, 2)], [(16, 2), (17, 2)], [(17, 2), (2**40, 2)])]))
"""
    free, one, multiple, wide = said("-c", program)
    assert _respecialized(free) == {}
    assert list(_respecialized(one).values()) == [["1, 2", "2, 2"]]
    assert list(_respecialized(multiple).values()) == [["16, 2", "17, 2"]]
    assert list(_respecialized(wide).values()) == [[f"{2**40}, 2", "17, 2"]]


def _respecialized(programs: list[list[str]]) -> dict[str, list[str]]:
    """Cases of one kernel, dtypes, constants and options that were compiled apart nevertheless."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for kernel, case, specialized in programs:
        facts = json.loads(specialized)
        constants = dict(zip(map(tuple, facts["constant_keys"]), facts["constant_vals"], strict=True))
        fixed = []
        for i, (name, kind) in enumerate(facts["signature"].items()):
            if name.isupper() or constants.get((i,), ...) is None:
                fixed.append(constants[i,])
            else:  # A number that is 1 becomes a constant, but has no name in capitals.
                fixed.append(kind if kind[0] == "*" else "number")
        groups[json.dumps([kernel, fixed, facts["options"]])][specialized] = case
    return {group: sorted(found.values()) for group, found in groups.items() if len(found) > 1}


@compiles
@pytest.mark.parametrize("arch", CHIPS)
def test_spills_are_seen(arch):
    warp = CHIPS[arch].target.warp_size
    program = f"""
import json, torch
from dataclasses import asdict
from kernels.gpu.ahead import Job, Launch, Program
from tests.kernels.gpu.toys import greedy
x = torch.empty(1 << 16, device="meta")
def run(block):
    program = Program.of(Launch(greedy, {{"x": x, "BLOCK": block}}, 1, 1), "{arch}")
    return asdict(Job("greedy", "", program).run())
print(json.dumps([run(16 * {warp}), run(1024 * {warp})]))
"""
    modest, greedy = (Resources(**row) for row in said("-c", program))
    assert modest.spilled_bytes == 0
    assert modest.fits
    assert 8 < modest.registers < greedy.registers
    assert greedy.spilled_bytes > 0
    assert not greedy.fits
    assert (greedy.pointers, greedy.arch) == (["fp32"], arch)


@compiles
def test_options_that_make_no_sense_are_refused():
    done = python("-m", "kernels.gpu.ahead", "--write", "--kernel", "norms")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--write keeps the usual table" in done.stderr
    done = python(
        "-c", "import os; os.environ['TRITON_INTERPRET'] = '1'; from kernels.gpu.ahead import main; main()"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "unset" in done.stderr


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("arch", CHIPS)
def test_no_kernel_looks_at_values(arch, batch_invariant):
    """On the meta device there are none, and what asks for one raises."""
    launched = set()
    for case in shapes.cases(*shapes.USUAL):
        launches = ahead.record(case, arch, batch_invariant=batch_invariant)
        # A library has the matrix products where rows need not be alone.
        assert launches or (case.function == "Linear" and not batch_invariant), case
        launched |= {ahead.name_of(launch.kernel) for launch in launches}
    if batch_invariant:
        assert launched == ahead.all_kernels()


def test_every_function_has_cases():
    functions = set(vars(GpuKernels(ahead.RecordingDevice("cuda:90", 132, True)))) - {"device"}
    assert {case.function for case in shapes.cases(*shapes.USUAL)} == functions == set(shapes.MODULES)
