"""How the CPU kernels are compiled, and the few primitives that they share.

Knows: numba, and how its threads and torch's come to be the same ones. Does not know: any kernel.

One pool of threads. numba's OpenMP layer asks for libgomp's symbols; torch carries its own libgomp and
opens it for the whole process, so in a process that imports torch first, numba's parallel loops run on
torch's threads. Two libraries would keep two pools, whose waiting threads spin against each other's
work. Hence torch is imported here before numba, and TBB is never chosen. Where the OpenMP layer cannot
be loaded (no libgomp in the system), numba's own work queue serves: its threads sleep while they wait.

One cache per state of the source. numba recompiles a cached kernel when that kernel's own file changes, but
not when a helper in another file does; so each state of this package has a cache folder of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# isort: off
import torch  # before numba: see above
import numba

# isort: on
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

numba.config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]


def cache_folder(package: Path, base: Path) -> Path:
    """The folder in `base` for the machine code of `package` as its files are now."""
    digest = hashlib.sha256()
    for file in sorted(package.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return base / f"kernels-{digest.hexdigest()[:16]}"


_PACKAGE = Path(__file__).parent
numba.config.CACHE_DIR = str(cache_folder(_PACKAGE, Path(numba.config.CACHE_DIR or _PACKAGE / "__pycache__")))

SUMS = {"reassoc", "contract", "nsz"}
"""Lets the compiler vectorise sums. NaN and infinity keep their meaning."""

EXACT = {"contract"}
"""Operations are done in the order they are written; a product and a sum may be fused into one."""

_PRANGE_ONLY = {
    "prange": True,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
    "fusion": False,
}

Function = Callable[..., Any]


def kernel(signature: str, *, parallel: bool = False, exact: bool = False) -> Callable[[Function], Function]:
    """Compile for one signature, once per machine: the machine code is kept in numba's cache.

    `exact`: as for `helper`.

    The cache lies where NUMBA_CACHE_DIR says, else beside the source, else in the user's cache folder.
    Where none of them can be written, every start compiles anew (about 20 seconds).
    """
    options = {"fastmath": EXACT if exact else SUMS, "nogil": True, "error_model": "numpy"}
    if parallel:
        options["parallel"] = _PRANGE_ONLY

    def decorate(function: Function) -> Function:
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            return numba.njit(signature, **options)(function)

    return decorate


def helper(*, exact: bool = False, inline: bool = False) -> Callable[[Function], Function]:
    """A function to call from kernels.

    `exact`: operations are done in the order they are written. `inline`: always, where the compiler would
    find the function too big; a loop that calls it can then be vectorised.
    """
    return numba.njit(fastmath=EXACT if exact else SUMS, error_model="numpy", forceinline=inline)


class _ThreadState(threading.local):
    threads = 0


_this_thread = _ThreadState()


def match_threads() -> int:
    """Give numba as many threads as torch uses, so that the shared pool keeps its size; returns their number.

    numba keeps the number per calling thread, and asking it costs more than a small kernel.
    """
    threads = torch.get_num_threads()
    if _this_thread.threads != threads:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        _this_thread.threads = threads
    return threads


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`; the index may lie beyond the end."""
    signature = types.void(array, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type = signature.args
        struct = context.make_array(array_type)(context, builder, args[0])
        offset = context.cast(builder, args[1], index_type, types.intp)
        pointer = builder.gep(struct.data, [offset])
        i8 = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [i8, i32, i32, i32])
        declared = builder.module.declare_intrinsic("llvm.prefetch", [i8], function)
        builder.call(declared, [builder.bitcast(pointer, i8), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def fetch_add(typing_context: Any, counters: Any, index: Any) -> Any:
    """counters[index] += 1, atomically; gives the value before.

    A thread sees all that was written before the additions that came before its own.
    """
    signature = counters.dtype(counters, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type = signature.args
        struct = context.make_array(array_type)(context, builder, args[0])
        offset = context.cast(builder, args[1], index_type, types.intp)
        one = context.get_constant(signature.return_type, 1)
        return builder.atomic_rmw("add", builder.gep(struct.data, [offset]), one, "acq_rel")

    return signature, codegen


_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


@helper(exact=True, inline=True)
def exp(x: Any) -> Any:
    """e^x in fp32 for x <= 88, to 1e-7 relative, 0 below -87; simple enough for the compiler to vectorise.

    Argument reduction by Cody and Waite, 1980; polynomial from Cephes (S. Moshier), expf.
    """
    low = max(x, np.float32(-87.0))
    n = np.floor(low * _LOG2_E + np.float32(0.5))
    r = (low - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0.0) if x < np.float32(-87.0) else p * power
