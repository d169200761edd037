"""The GPU benchmark runs from end to end where there is no GPU, and says so where it must not."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from benchmarks.gpu.clock import Clock, Part, seconds_of
from benchmarks.gpu.numerics import Check, difference, mismatches, poisoned
from benchmarks.gpu.report import aims, table
from benchmarks.gpu.results import Results, Serving, as_json
from benchmarks.gpu.speed import Timing
from benchmarks.gpu.steps import Step
from kernels import Kernels

ROOT = Path(__file__).parents[2]
KERNELS = {name for name in vars(Kernels) if not name.startswith("_")}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What a dry run writes, and what it prints."""
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    done = command("--dry", "--json", str(path), "--seconds", "250")
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done.stdout


def test_nothing_fails_and_nothing_is_left_out(dry: tuple[dict[str, Any], str]) -> None:
    results, _ = dry
    assert results["dry"] is True
    assert results["failed"] == []
    assert results["left_out"] == []
    assert list(results["seconds"]) == ["1", "2", "3", "4"]


def test_every_kernel_is_checked_in_both_modes_and_found_right(dry: tuple[dict[str, Any], str]) -> None:
    checks = dry[0]["numerics"]
    assert all(check["passed"] for check in checks)
    for invariant in (True, False):
        assert {check["kernel"] for check in checks if check["batch_invariant"] is invariant} == KERNELS
    assert any("fp8" in check["case"] for check in checks if check["kernel"] == "paged_attention")


def test_every_kernel_is_timed_beside_its_floor(dry: tuple[dict[str, Any], str]) -> None:
    timings = dry[0]["speed"]
    assert {timing["kernel"] for timing in timings} == KERNELS
    for timing in timings:
        assert timing["seconds"] > 0
        assert timing["share"] == pytest.approx(timing["floor_seconds"] / timing["seconds"])
    for kernel in ("paged_attention", "Linear"):
        assert {t["batch_invariant"] for t in timings if t["kernel"] == kernel} == {True, False}


def test_decode_steps_are_compared_with_transformers(dry: tuple[dict[str, Any], str]) -> None:
    first, *others = dry[0]["steps"]
    assert min(first[key] for key in first if key.endswith("_ms")) > 0
    assert all(step["step_ms"] > 0 and step["forward_ms"] > 0 for step in others)


def test_the_engine_answers_everything_in_company(dry: tuple[dict[str, Any], str]) -> None:
    (serving,) = dry[0]["serving"]
    for ours in (serving["ours"], serving["sampled"]):
        assert ours["ended"] == ours["requests"] == serving["transformers_requests"]
        assert ours["rows_per_tick"] > 1
        assert ours["tokens_per_s"] == pytest.approx(ours["tokens"] / ours["seconds"])
        assert 0 < ours["host_ms"] < ours["tick_ms"]
    assert serving["ours"]["tokens"] == serving["sampled"]["tokens"]
    assert serving["transformers_tokens_per_s"] > 0


def test_the_table_is_short_and_says_that_times_mean_nothing(dry: tuple[dict[str, Any], str]) -> None:
    shown = dry[1][dry[1].index("DRY RUN") :]
    assert "Its times mean nothing" in shown
    assert len(shown.splitlines()) < 70
    assert "kept" not in shown
    assert "MISSED" not in shown


def test_a_dry_run_is_refused_where_kernels_were_compiled_already() -> None:
    program = (
        "import triton, sys; sys.argv = ['gpu', '--dry']; from benchmarks.gpu.__main__ import main; main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Triton is loaded already" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_only_a_dry_run_is_possible() -> None:
    done = command()
    assert done.returncode == 2
    assert "no GPU is here" in done.stderr


@pytest.mark.parametrize(("option", "value"), [("--parts", "1,5"), ("--models", "llama-3-8b,gpt")])
def test_what_does_not_exist_is_refused_by_name(option: str, value: str) -> None:
    done = command("--dry", option, value)
    assert done.returncode == 2
    assert f"{option}: got ['{value.split(',')[1]}'], allowed: " in done.stderr


def test_a_part_that_fails_is_noted_and_so_is_what_has_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    part = Part(60)
    with part.enforced():
        with part.guarded("one thing"):
            raise ValueError("broken\nin detail")
        assert part.allows("another", 50)
        assert not part.allows("a third", 70)
    assert part.failed == ["one thing: ValueError: broken"]
    assert part.left_out == ["a third"]
    assert "in detail" in capsys.readouterr().err


def test_a_part_that_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.clock.GRACE", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    part = Part(0.05)
    with part.enforced(), part.guarded("it"):
        time.sleep(30)
    assert part.left > -10
    assert part.failed == []
    assert len(part.left_out) == 1
    assert "interrupted" in part.left_out[0]
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_one_part_leaves_is_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("benchmarks.gpu.clock.time.monotonic", lambda: now)
    clock = Clock(100, {"a": 1, "b": 1, "c": 2})
    assert clock.begin("a").left == 25
    now += 10
    assert clock.begin("b").left == 30
    now += 90
    assert clock.begin("c").left == 0


def measured(share: float, host_ms: float, ratio: float) -> Results:
    """Results of a run on a card that meets the aims, or does not."""
    from benchmarks.gpu.serving import EngineFigures

    ours = EngineFigures(1000, 2.0, 8, 8, 9, 200.0, 5.0, 6.0, host_ms, 2.0, 0.1, 5, 4.0, 6.0, {})
    return Results(
        dry=False,
        machine={},
        numerics=[Check("rms_norm", "a", True, float("nan"), 1.0), Check("sample", "b", True, 0.0, 0.0)],
        speed=[
            Timing("paged_attention", "64 rows x 4096", mode, 1.0, 1, 1, floor)
            for mode, floor in ((True, share), (False, 0.9))
        ],
        steps=[
            Step("llama-3-8b", batch, context, 1, share, step_ms=1.0)
            for batch in (1, 64)
            for context in (512, 4096)
        ],
        serving=[Serving("llama-3-8b", ours, transformers_tokens_per_s=500.0 / ratio)],
    )


def test_aims_are_kept_or_missed() -> None:
    good, bad = aims(measured(0.85, 0.9, 5.1)), aims(measured(0.7, 1.1, 4.9))
    assert [aim.kept for aim in good] == [True] * 7
    assert [aim.kept for aim in bad] == [False] * 7
    # The slower of the two modes counts.
    assert [aim.got for aim in bad] == pytest.approx([0.7] * 5 + [1.1, 4.9])
    nothing = aims(Results(dry=False, machine={}))
    assert [(aim.got, aim.kept) for aim in nothing] == [(None, False)] * 7


def test_a_result_that_is_not_a_number_fails() -> None:
    results = measured(0.85, 0.9, 5.1)
    shown = table(results)
    assert "FAIL 1, first: a" in shown
    assert shown.count("kept") == 7
    assert [check["passed"] for check in as_json(results)["numerics"]] == [False, True]


class FakeCuda:
    """As much of torch.cuda as the timer asks for. Every launch takes the device `launch_s`."""

    def __init__(self, launch_s: float) -> None:
        self.launch_s = launch_s
        self.now = 0.0
        self.launched: list[int] = []
        """Of the graph that is being captured, or was last."""
        self._capturing = False
        fake = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.time = 0.0

            def record(self) -> None:
                self.time = fake.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Any) -> float:
                return 1e3 * (other.time - self.time)

        class CUDAGraph:
            def replay(self) -> None:
                fake.now += fake.launch_s * len(fake.launched)

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def launch(self, copy: int) -> None:
        if self._capturing:
            self.launched.append(copy)
        else:
            self.now += self.launch_s

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self._capturing, self.launched = True, []
        yield
        self._capturing = False

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def Stream(self) -> Any:  # noqa: N802
        return self

    def current_stream(self) -> Any:
        return self

    def wait_stream(self, other: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(("launch_s", "launches"), [(1e-6, 256), (1e-4, 20), (1e-2, 5)])
def test_a_launch_is_timed_in_a_graph_that_takes_all_copies_in_turn(
    monkeypatch: pytest.MonkeyPatch, launch_s: float, launches: int
) -> None:
    cuda = FakeCuda(launch_s)
    monkeypatch.setattr("benchmarks.gpu.clock.torch.cuda", cuda)
    assert seconds_of(torch.device("cuda"), cuda.launch, copies=5) == pytest.approx(launch_s)
    assert cuda.launched == [i % 5 for i in range(launches)]


def test_memory_is_poisoned_while_a_kernel_allocates() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with poisoned():
        assert torch.empty(100).isnan().all()
        assert torch.empty(100, dtype=torch.float16).new_empty(50).isnan().all()
    assert torch.are_deterministic_algorithms_enabled() is before


def test_differences_and_bits_are_told() -> None:
    x = torch.tensor([3.0, 4.0])
    assert difference(x + torch.tensor([0.0, 0.0625]), x) == 0.0125
    assert math.isnan(difference(torch.tensor([3.0, math.nan]), x))
    assert mismatches(x, x.clone()) == 0
    assert mismatches(torch.tensor([0.0, 1.0, math.nan]), torch.tensor([-0.0, 1.0, math.nan])) == 1


def test_every_kernel_is_compiled_beforehand() -> None:
    program = """
from benchmarks.gpu.precompile import jobs
from kernels.gpu.ahead import all_kernels
found = list(jobs(["smollm2-135m"], "cuda:90"))
attention = ["window" in job.case for job in found if job.kernel == "attention._attention_kernel"]
print(sorted(all_kernels() ^ {job.kernel for job in found}), sorted(set(attention)))
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "[] [False, True]\n"), done.stderr
