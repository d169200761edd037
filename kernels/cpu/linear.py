"""Matrix products with weights that are prepared once.

Knows: oneDNN's prepacked products, which torch keeps private; this is the only file that names them.
Does not know: what a layer is.

Packing once spares oneDNN a reordering of the weight at every call, about half of the time for few rows.
The packed weight is a second copy: whoever builds the model drops the plain one.

oneDNN chooses its blocking, and with it the order of summation, by the number of rows: a row's last bits
may differ between batch sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PACKED_FOR_ROWS = 16
"""The layout that measured best or equal from 1 to 256 rows."""


def packing_available() -> bool:
    """Whether this torch has oneDNN, and the private operations under the names known here."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


class Linear:
    """x @ weight.T + bias, with the weight packed for oneDNN where there is one."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: got shape {tuple(bias.shape)}, allowed: {tuple(weight.shape[:1])}")
        self._bias = bias
        self._packed = packing_available()
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS) if self._packed else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return product
        return torch.nn.functional.linear(x, self._weight, self._bias)
