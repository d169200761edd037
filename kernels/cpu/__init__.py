"""The kernels for CPUs: fp32, numba. See `kernels.Kernels` for what each does.

Importing this loads the kernels' machine code from numba's cache, or compiles it on the first start.
Threads: as many as `torch.get_num_threads()` says in the calling thread. One thread at a time may call.
"""

from kernels.cpu.attention import paged_attention
from kernels.cpu.edits import edit_logits
from kernels.cpu.linear import Linear
from kernels.cpu.logprobs import logprobs
from kernels.cpu.norms import add_rms_norm, rms_norm, silu_mul
from kernels.cpu.rope import rope_and_cache
from kernels.cpu.sampling import sample

__all__ = [
    "Linear",
    "add_rms_norm",
    "edit_logits",
    "logprobs",
    "paged_attention",
    "rms_norm",
    "rope_and_cache",
    "sample",
    "silu_mul",
]
