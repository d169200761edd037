"""The innermost loop of the matrix product: a few rows against one panel of the weight.

Knows: vector registers and fused multiply-adds. Does not know: threads, how a product is cut into tiles.

The sums of a tile have to stay in registers while the loop runs over its fan-in, and numba keeps arrays in
memory; so this is written in the compiler's own language, once for each number of rows that a tile can have.
It is the usual kernel of a GEMM (Goto and van de Geijn, 2008): for each i, the panel's row i is loaded into
VECTORS registers, and for each row of x its element i is spread over a register and multiplied with them.

Each sum is a chain of fused multiply-adds in ascending order of i. How many rows the tile has, and how long
the vectors are, decides which sums are worked on at the same time, and never what one of them is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

VECTORS = 3
"""Vectors side by side. A tile's sums and inputs just fit into the registers."""

_INDEX = ir.IntType(64)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile: up to `rows` rows, `width` columns in vectors of `lanes`."""

    lanes: int
    rows: int

    @property
    def width(self) -> int:
        return VECTORS * self.lanes


WIDE = Shape(lanes=16, rows=8)
"""For 32 registers of 512 bits (AVX-512)."""

NARROW = Shape(lanes=8, rows=4)
"""For 16 registers of 256 bits (AVX2); 32 of 128 bits (NEON) hold it as well."""


def _make_add_tile(shape: Shape) -> Any:
    @intrinsic
    def add_tile(
        typing_context: Any,
        x: Any,
        row: Any,
        end_row: Any,
        panels: Any,
        panel: Any,
        start: Any,
        end: Any,
        base: Any,
        base_at: Any,
        base_stride: Any,
        out: Any,
        out_at: Any,
        out_stride: Any,
    ) -> Any:
        """out = base + x[row:end_row, start:end] @ panels[panel, start:end], a tile of each.

        x[T, I], panels[P, I, width], start < end. The tile's element [r, c] lies at
        out_at + r * out_stride + c in the array `out`, and likewise in `base`, which may be `out` itself.
        Nothing is done for numbers of rows other than 1 to `shape.rows`.
        """
        signature = types.void(
            x, row, end_row, panels, panel, start, end, base, base_at, base_stride, out, out_at, out_stride
        )
        return signature, lambda *arguments: _emit(shape, *arguments)

    return add_tile


add_wide_tile = _make_add_tile(WIDE)
add_narrow_tile = _make_add_tile(NARROW)


def _emit(shape: Shape, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """One loop for each number of rows, and a jump to the right one."""

    def data(i: int) -> Any:
        array = context.make_array(signature.args[i])(context, builder, arguments[i])
        return array.data, cgutils.unpack_tuple(builder, array.shape)

    def index(i: int) -> Any:
        return context.cast(builder, arguments[i], signature.args[i], types.int64)

    (x, (_, fan_in)), (panels, _), (base, _), (out, _) = data(0), data(3), data(7), data(10)
    row, end_row, panel, start, end = index(1), index(2), index(4), index(5), index(6)
    weight = builder.gep(panels, [builder.mul(panel, builder.mul(fan_in, _INDEX(shape.width)))])
    x = builder.gep(x, [builder.mul(row, fan_in)])
    base = builder.gep(base, [index(8)])
    out = builder.gep(out, [index(11)])

    done = builder.append_basic_block("done")
    choice = builder.switch(builder.sub(end_row, row), done)
    for rows in range(1, shape.rows + 1):
        block = builder.append_basic_block(f"rows_{rows}")
        choice.add_case(_INDEX(rows), block)
        builder.position_at_end(block)
        tile = _Tile(builder, shape.lanes, rows)
        sums = tile.multiply(x, fan_in, weight, start, end)
        tile.store_sum(sums, base, index(9), out, index(12))
        builder.branch(done)
    builder.position_at_end(done)
    return context.get_dummy_value()


class _Tile:
    """Writes the instructions for one number of rows."""

    def __init__(self, builder: Any, lanes: int, rows: int) -> None:
        self._builder = builder
        self._lanes, self._rows = lanes, rows
        self._vector = ir.VectorType(ir.FloatType(), lanes)
        self._cells = [(r, v) for r in range(rows) for v in range(VECTORS)]

    def multiply(self, x: Any, stride: Any, weight: Any, start: Any, end: Any) -> list[Any]:
        """The sums over start..end, one vector per cell."""
        builder = self._builder
        before, loop, after = builder.block, *map(builder.append_basic_block, ("loop", "after"))
        builder.branch(loop)
        builder.position_at_end(loop)
        i = builder.phi(_INDEX)
        i.add_incoming(start, before)
        sums = [builder.phi(self._vector) for _ in self._cells]
        weights = [
            self._load(weight, builder.add(builder.mul(i, _INDEX(VECTORS * self._lanes)), self._column(v)))
            for v in range(VECTORS)
        ]
        elements = [
            self._spread(builder.load(builder.gep(x, [builder.add(builder.mul(_INDEX(r), stride), i)])))
            for r in range(self._rows)
        ]
        added = [
            builder.call(self._fma(), [elements[r], weights[v], total])
            for (r, v), total in zip(self._cells, sums, strict=True)
        ]
        for total, new in zip(sums, added, strict=True):
            total.add_incoming(ir.Constant(self._vector, None), before)
            total.add_incoming(new, loop)
        next_i = builder.add(i, _INDEX(1))
        i.add_incoming(next_i, loop)
        builder.cbranch(builder.icmp_signed("<", next_i, end), loop, after)
        builder.position_at_end(after)
        return added

    def store_sum(self, sums: list[Any], base: Any, base_stride: Any, out: Any, out_stride: Any) -> None:
        builder = self._builder

        def offset(r: int, v: int, stride: Any) -> Any:
            return builder.add(builder.mul(_INDEX(r), stride), self._column(v))

        for (r, v), total in zip(self._cells, sums, strict=True):
            result = builder.fadd(self._load(base, offset(r, v, base_stride)), total)
            builder.store(result, self._pointer(out, offset(r, v, out_stride)), align=4)

    def _column(self, v: int) -> Any:
        return _INDEX(v * self._lanes)

    def _pointer(self, base: Any, offset: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(base, [offset]), self._vector.as_pointer())

    def _load(self, base: Any, offset: Any) -> Any:
        return self._builder.load(self._pointer(base, offset), align=4)

    def _spread(self, element: Any) -> Any:
        anything = ir.Constant(self._vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self._lanes), None)
        first = self._builder.insert_element(anything, element, ir.IntType(32)(0))
        return self._builder.shuffle_vector(first, anything, zeros)

    def _fma(self) -> Any:
        kind = ir.FunctionType(self._vector, [self._vector] * 3)
        return cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.fma.v{self._lanes}f32")
