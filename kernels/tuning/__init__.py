"""Which tile sizes a kernel takes on which chip, from a table that was measured beforehand.

Knows: the table, `tiles.json`. Does not know: kernels. Nothing is measured or chosen while serving, where it
would stall the first requests and differ from start to start.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

TABLE = Path(__file__).with_name("tiles.json")
"""{kernel: {arch: [{"up_to": {fact: largest}, "tiles": {name: size}}, ...]}}. The arch "any" serves chips
that have no list of their own. Of a list, the first entry counts whose facts are all at least those asked."""

Tiles = Mapping[str, int]
"""Constants by the kernel's names, among them `num_warps` and `num_stages`."""

Table = dict[str, dict[str, list[dict[str, dict[str, int]]]]]


def load() -> Table:
    table: Table = json.loads(TABLE.read_text())
    return table


def save(table: Table) -> None:
    """For all processes that start from now on."""
    TABLE.write_text(text(table))


def text(table: Table) -> str:
    """JSON with a line for each entry, so that a change can be read."""
    kernels = []
    for kernel, of_kernel in sorted(table.items()):
        archs = []
        for arch, entries in sorted(of_kernel.items()):
            lines = ",\n".join(f"      {json.dumps(entry)}" for entry in entries)
            archs.append(f'    "{arch}": [\n{lines}\n    ]')
        kernels.append(f'  "{kernel}": {{\n' + ",\n".join(archs) + "\n  }")
    return "{\n" + ",\n".join(kernels) + "\n}\n"


_table = functools.cache(load)


@functools.cache
def _tiles_for(arch: str, kernel: str, facts: frozenset[tuple[str, int]]) -> Tiles:
    of_kernel, asked = _table()[kernel], dict(facts)
    for entry in of_kernel.get(arch, of_kernel["any"]):
        if all(asked[fact] <= largest for fact, largest in entry["up_to"].items()):
            return entry["tiles"]
    raise LookupError(f"{TABLE.name}: {kernel} on {arch} has no entry for {asked}")


def tiles_for(arch: str, kernel: str, **facts: int) -> Tiles:
    """The tiles of `kernel` on `arch` for a launch with these facts ("rows", "head_dim", ...).

    Raises:
        KeyError: the table has no such kernel, or an entry asks for a fact that was not given.
        LookupError: no entry fits.
    """
    return _tiles_for(arch, kernel, frozenset(facts.items()))
