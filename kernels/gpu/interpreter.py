"""Triton's interpreter, with what it lacks beside the numpy of today.

Knows: how the interpreter makes a loop's bounds of a kernel's numbers. Does not know: any kernel.
"""

from __future__ import annotations

from typing import Any

from triton import knobs
from triton.runtime import interpreter


def mend() -> None:
    """Let loops have bounds that a kernel has calculated: triton 3.6 holds a number as an array of one, and
    numpy 2.4 no longer takes that for an int. Does nothing where kernels are compiled."""
    if not knobs.runtime.interpret:
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend
