"""Makes the table of tiles, `tiles.json`, for the chip it runs on.

    python -m kernels.tuning [--kernel NAME] [--quick] [--write]

Knows: the command line, how findings are shown and stored. Does not know: how they are found.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from triton import knobs

from kernels.gpu.device import Device
from kernels.tuning import load, save
from kernels.tuning.sweep import (
    FULL,
    GRIDS,
    QUICK,
    TINY,
    Finding,
    Sweep,
    Tiles,
    entries,
    graph_seconds,
    groups,
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.tuning",
        description="Find the tiles with which this machine's GPU runs the kernels fastest. Takes minutes.",
    )
    parser.add_argument("--kernel", choices=sorted(GRIDS), help="tune this one only")
    parser.add_argument("--quick", action="store_true", help="two models, one dtype, each size tried once")
    parser.add_argument("--write", action="store_true", help="store what is best in the table")
    parser.add_argument(
        "--dry", action="store_true", help="tiny, in Triton's interpreter: times mean nothing"
    )
    options = parser.parse_args(arguments)
    if options.dry and (options.write or not knobs.runtime.interpret):
        parser.error("--dry needs TRITON_INTERPRET=1, and has nothing to write")
    if not options.dry and not torch.cuda.is_available():
        parser.error("there is no GPU here to time kernels on")
    place = torch.device("cpu" if options.dry else "cuda")
    device = Device.of(place, batch_invariant=True)
    sizes = TINY if options.dry else QUICK if options.quick else FULL
    sweep = Sweep(device, place, _call_once if options.dry else graph_seconds, 1 if options.quick else 3)
    print(f"{device.arch}: microseconds with the table's tiles, and with the best that were found")
    findings = []
    for group in groups(sizes, device, options.kernel):
        findings.append(sweep.tune(group))
        print(*told(findings[-1]), sep="\n", flush=True)
    if options.write:
        store(device.arch, findings)
        print("what the kernels take has changed with their tiles: python -m kernels.gpu.ahead --write")
    sys.exit(int(not all(math.isfinite(finding.current_seconds) for finding in findings)))


def _call_once(calls: Sequence[object]) -> float:
    """For a dry run: the same for all."""
    return 1.0


def told(finding: Finding) -> Iterator[str]:
    """A line for what is best, and one for each of the tiles that do not work."""
    facts = ", ".join(f"{name} {value}" for name, value in finding.group.facts)
    times = f"{finding.current_seconds * 1e6:.1f} -> {finding.best_seconds * 1e6:.1f}"
    changes = _shown({k: v for k, v in finding.best.items() if finding.current[k] != v}) or "as in the table"
    yield f"{finding.group.kernel} ({facts}): {times} {changes}"
    for tiles, reason in finding.dropped:
        yield f"    dropped {_shown(tiles)}: {reason}"


def _shown(tiles: Tiles) -> str:
    return " ".join(f"{name}={size}" for name, size in tiles.items())


def store(arch: str, findings: Iterable[Finding]) -> None:
    """Replaces the chip's list of each kernel in the table. A kernel for which some facts have no tiles that
    work keeps its list."""
    table = load()
    for kernel in dict.fromkeys(finding.group.kernel for finding in findings):
        of_kernel = [finding for finding in findings if finding.group.kernel == kernel]
        if all(math.isfinite(finding.best_seconds) for finding in of_kernel):
            # Beyond what the plainest list has an entry for, the kernel has a limit of its own.
            limits = table[kernel]["any"][-1]["up_to"]
            found = [(dict(finding.group.facts), finding.best) for finding in of_kernel]
            table[kernel][arch] = entries(found, limits)
    save(table)


if __name__ == "__main__":
    main()
