"""The table of tiles, and the search that fills it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import knobs

from kernels import reference, tuning
from kernels.gpu import shapes
from kernels.gpu.device import Device
from kernels.tuning import __main__ as command
from kernels.tuning import sweep
from kernels.tuning.sweep import (
    GRIDS,
    SIGNIFICANCE,
    TINY,
    Asking,
    Finding,
    Group,
    Sweep,
    Trial,
    climb,
    entries,
)
from tests.kernels.gpu.conftest import PLACE

LIMITS = {
    "rms_norm": {"width": 32768},
    "attention": {"itemsize": 4, "head_dim": 256},
    "batch_invariant_attention": {"itemsize": 4, "head_dim": 256},
    "linear": {"itemsize": 4},
}
"""Beyond them there are no tiles: a row or a head must fit in one program, and no dtype has more bytes."""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A copy of the table that may be written."""
    copy = tmp_path / "tiles.json"
    copy.write_text(tuning.TABLE.read_text())
    monkeypatch.setattr(tuning, "TABLE", copy)
    forget()
    yield copy
    monkeypatch.undo()
    forget()


def forget():
    tuning._table.cache_clear()
    tuning._tiles_for.cache_clear()


# The table.


def test_the_table_has_a_line_for_each_entry():
    """In the order in which it is written: so a diff shows what was tuned."""
    assert tuning.TABLE.read_text() == tuning.text(tuning.load())


def test_the_table_has_the_kernels_that_ask_for_tiles():
    probed = {group.kernel for group in sweep.groups(TINY, Device("cuda:90", 132, True), None)}
    assert set(tuning.load()) == probed == set(GRIDS)


@pytest.mark.parametrize("kernel", GRIDS)
def test_every_entry_can_be_reached_and_something_serves_all(kernel):
    lists = tuning.load()[kernel]
    assert "any" in lists
    for arch, listed in lists.items():
        assert listed[-1]["up_to"] == LIMITS.get(kernel, {}), arch
        for before, after in itertools.combinations(listed, 2):
            assert not _covers(before["up_to"], after["up_to"]), (arch, before, after)


def _covers(bounds: dict[str, int], others: dict[str, int]) -> bool:
    return all(others.get(fact, math.inf) <= largest for fact, largest in bounds.items())


@pytest.mark.parametrize("kernel", GRIDS)
def test_entries_have_all_sizes_and_no_unknown_facts(kernel):
    facts = {
        fact for group in sweep.groups(TINY, Device("cuda:90", 132, True), kernel) for fact, _ in group.facts
    }
    assert facts <= set(SIGNIFICANCE)
    listed = [entry for entries in tuning.load()[kernel].values() for entry in entries]
    assert {fact for entry in listed for fact in entry["up_to"]} <= facts
    [names] = {frozenset(entry["tiles"]) for entry in listed}
    assert {"num_warps", "num_stages"} | set(GRIDS[kernel]) <= names


@pytest.mark.parametrize("arch", ["cuda:90", "hip:gfx942"])
def test_batch_invariant_tiles_do_not_depend_on_the_batch(arch):
    asked = defaultdict(list)
    for rows, sampled, tick in [(1, 1, 0), (64, 3, 1), (300, 64, 2), (2047, 255, 3)]:
        sizes = replace(
            sweep.QUICK, rows={"": rows}, sampled={"": sampled}, ticks=shapes.TICKS[tick : tick + 1]
        )
        probe = Asking(arch, 132, batch_invariant=True)
        for case in shapes.cases(sizes):
            case.on(probe, case.arguments(shapes.META))()
        facts = defaultdict(set)
        for kernel, given_facts in probe.asked:
            facts[kernel].add(given_facts)
        for kernel, of_kernel in facts.items():
            asked[kernel].append(of_kernel)
    assert asked
    for kernel, of_batches in asked.items():
        assert all(facts == of_batches[0] for facts in of_batches), kernel


# The search.


def test_climbing_finds_the_valley():
    grid = {"a": (1, 2, 4, 8), "b": (1, 2, 4, 8)}

    def score(tiles):
        return 10 + (tiles["a"] - tiles["b"]) ** 2 / 10 + (tiles["b"] - 2) ** 2

    assert climb({"a": 8, "b": 8, "c": 5}, grid, score, 1) == {"a": 8, "b": 2, "c": 5}
    assert climb({"a": 8, "b": 8, "c": 5}, grid, score, 2) == {"a": 2, "b": 2, "c": 5}


def test_climbing_keeps_what_is_hardly_slower():
    times = {1: 1.0, 2: 0.99, 4: 0.97}
    assert climb({"a": 1}, {"a": (1, 2)}, lambda tiles: times[tiles["a"]], 5) == {"a": 1}
    assert climb({"a": 1}, {"a": (1, 2, 4)}, lambda tiles: times[tiles["a"]], 5) == {"a": 4}


def test_climbing_leaves_what_does_not_work():
    def score(tiles):
        return math.inf if tiles["a"] == 1 else 1.0

    assert climb({"a": 1}, {"a": (1, 2)}, score, 1) == {"a": 2}
    assert climb({"a": 1}, {"a": (1,)}, lambda tiles: math.inf, 1) == {"a": 1}


def test_one_pass_tries_each_size_once():
    tried = []

    def score(tiles):
        tried.append((tiles["a"], tiles["b"]))
        return 100.0 / (tiles["a"] * tiles["b"])

    assert climb({"a": 1, "b": 1}, {"a": (1, 2), "b": (1, 2)}, score, 1) == {"a": 2, "b": 2}
    assert set(tried) == {(1, 1), (2, 1), (2, 2)}


measured = st.dictionaries(
    st.tuples(st.sampled_from([2, 4]), st.sampled_from([64, 128, 256]), st.sampled_from([1, 16, 512])),
    st.integers(1, 3),
    min_size=1,
)


@settings(max_examples=50)
@given(measured)
def test_entries_serve_what_was_found(found):
    """Each combination of facts that was measured gets the tiles that were found for it."""
    names = ("itemsize", "head_dim", "queries")
    pairs = [(dict(zip(names, key, strict=True)), {"BLOCK": size}) for key, size in found.items()]
    listed = entries(pairs, {})
    for facts, tiles in pairs:
        served = next(entry for entry in listed if _covers(entry["up_to"], facts))
        assert served["tiles"] == tiles
    assert listed[-1]["up_to"] == {}
    for before, after in itertools.combinations(listed, 2):
        assert not _covers(before["up_to"], after["up_to"])
    for entry, after in itertools.pairwise(listed):
        assert entry["tiles"] != after["tiles"] or not _covers(after["up_to"], entry["up_to"])


def test_entries_of_equal_tiles_become_one_and_limits_stay():
    found = [({"width": width}, {"num_warps": warps}) for width, warps in [(4096, 8), (512, 4), (2048, 8)]]
    assert entries(found, {"width": 32768}) == [
        {"up_to": {"width": 512}, "tiles": {"num_warps": 4}},
        {"up_to": {"width": 32768}, "tiles": {"num_warps": 8}},
    ]


@pytest.fixture
def silu(monkeypatch):
    """The one group of a small kernel, of which some sizes shall not work."""
    monkeypatch.setitem(GRIDS, "silu_mul", {"BLOCK": (16, 24, 32, 64, 128, 256)})
    [group] = sweep.groups(TINY, Device.of(PLACE, batch_invariant=True), "silu_mul")
    launch = Trial.launch

    def launch_badly(trial, kernel, grid, **arguments):
        launch(trial, kernel, grid, **arguments)
        if arguments["BLOCK"] == 32:
            arguments["out"][0, 0] += 1
        if arguments["BLOCK"] == 64:
            trial.spilled.append(7)

    monkeypatch.setattr(Trial, "launch", launch_badly)
    return group


def test_tiles_that_are_wrong_or_do_not_work_are_dropped(silu):
    """The timer likes small ones best, but they are of no use."""
    timed = []

    def timer(calls):
        for call in calls:
            call()
        timed.append(calls[0].args[0].candidate["BLOCK"])
        return float(timed[-1])

    finding = Sweep(Device.of(PLACE, batch_invariant=True), PLACE, timer, 2).tune(silu)
    assert finding.best == {**finding.current, "BLOCK": 16}
    assert (finding.current_seconds, finding.best_seconds) == (1024.0, pytest.approx(16.0))
    assert sorted(timed) == [16, 128, 256, 1024]
    reasons = {tiles["BLOCK"]: reason for tiles, reason in finding.dropped}
    assert set(reasons) == {24, 32, 64}
    assert reasons[64] == "Unfit: 7 spilled registers"
    assert reasons[32].startswith("AssertionError")


def test_what_a_kernel_asks_for_in_both_modes_is_tuned_once():
    device = Device.of(PLACE, batch_invariant=True)
    [silu] = sweep.groups(TINY, device, "silu_mul")
    assert [mode for _, mode in silu.members] == [False]
    # A library has the others.
    assert all(mode for group in sweep.groups(TINY, device, "linear") for _, mode in group.members)


# The command.

interpreted = pytest.mark.skipif(not knobs.runtime.interpret, reason="a dry run is the interpreter's")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--quick"])
    assert ended.value.code == 2
    assert "no GPU" in capsys.readouterr().err


@interpreted
def test_a_dry_run_is_refused_what_it_cannot_do(capsys, table, monkeypatch):
    before = table.read_text()
    with pytest.raises(SystemExit, match="2"):
        command.main(["--dry", "--write"])
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(SystemExit, match="2"):
        command.main(["--dry"])
    assert table.read_text() == before


@interpreted
@pytest.mark.parametrize("kernel", GRIDS)
def test_the_tiles_of_the_table_work(kernel, capsys, monkeypatch):
    monkeypatch.setitem(GRIDS, kernel, {name: sizes[-1:] for name, sizes in GRIDS[kernel].items()})
    with pytest.raises(SystemExit) as ended:
        command.main(["--dry", "--kernel", kernel])
    assert ended.value.code == 0, capsys.readouterr().out
    assert f"{kernel} (" in capsys.readouterr().out


@interpreted
def test_a_table_that_does_not_work_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(reference, "silu_mul", lambda gate_up: gate_up[:, ::2] + 1)
    with pytest.raises(SystemExit) as ended:
        command.main(["--dry", "--kernel", "silu_mul"])
    assert ended.value.code == 1
    assert "silu_mul (): inf -> inf" in capsys.readouterr().out


def found(kernel: str, seconds: float, tiles: dict[str, int], **facts: int) -> Finding:
    group = Group(kernel, tuple(sorted(facts.items())))
    return Finding(group, tuning.tiles_for("any", kernel, **facts), 1.0, tiles, seconds, [])


def test_findings_are_stored_for_the_chip(table):
    before = tuning.load()
    small, large = {"num_warps": 1, "num_stages": 1}, {"num_warps": 2, "num_stages": 1}
    command.store(
        "cuda:90", [found("rms_norm", 0.5, small, width=576), found("rms_norm", 0.5, large, width=4096)]
    )
    forget()
    after = tuning.load()
    assert tuning.tiles_for("cuda:90", "rms_norm", width=500) == small
    assert tuning.tiles_for("cuda:90", "rms_norm", width=32768) == large
    with pytest.raises(LookupError):
        tuning.tiles_for("cuda:90", "rms_norm", width=32769)
    assert after["rms_norm"].pop("cuda:90")
    assert after == before


def test_a_kernel_without_tiles_that_work_keeps_its_list(table):
    before = table.read_text()
    tiles = {"num_warps": 1, "num_stages": 1}
    command.store(
        "cuda:90", [found("rms_norm", math.inf, tiles, width=576), found("rms_norm", 0.5, tiles, width=4096)]
    )
    assert table.read_text() == before


def test_what_is_told_names_changes_and_reasons():
    finding = Finding(
        Group("linear", (("itemsize", 2), ("width", 64))),
        {"BLOCK_M": 16, "num_warps": 4},
        3e-6,
        {"BLOCK_M": 16, "num_warps": 8},
        2e-6,
        [({"BLOCK_M": 32, "num_warps": 4}, "Unfit: 7 spilled registers")],
    )
    assert list(command.told(finding)) == [
        "linear (itemsize 2, width 64): 3.0 -> 2.0 num_warps=8",
        "    dropped BLOCK_M=32 num_warps=4: Unfit: 7 spilled registers",
    ]
