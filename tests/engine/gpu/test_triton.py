"""The whole engine over the Triton kernels: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from engine.config import EngineConfig
from engine.engine import Engine, Runner
from engine.gpu.runner import GpuRunner
from engine.request import TokenEvent
from engine.runner import ModelRunner
from engine.sampling import SamplingParams
from kernels.gpu import kernels
from tests.devices import HAS_GPU
from tests.engine.gpu.drivers import driver_for
from tests.engine.tiny import tiny_model
from tests.fakes import Recorder, fake_vocabulary, make_request, run_until_idle

PLACE = "cuda" if HAS_GPU else "cpu"
CONFIG = EngineConfig(num_blocks=8, max_model_len=48, max_num_seqs=2, token_budget=10, prefill_chunk=10)
REQUESTS = {
    "sampled": ("hello", SamplingParams(seed=1, top_p=0.9, max_tokens=4, logprobs=2, frequency_penalty=0.5)),
    "greedy": ("longer than a block", SamplingParams(temperature=0, max_tokens=3)),
}


def answers(runner: Runner) -> tuple[dict[str, str], list[float]]:
    """Texts, and all log probabilities that were told."""
    recorder = Recorder()
    engine = Engine(runner, fake_vocabulary(), CONFIG, recorder)
    for name, (prompt, sampling) in REQUESTS.items():
        engine.submit(make_request(name, prompt, sampling))
    run_until_idle(engine)
    told = [
        value.logprob
        for event in recorder.events("sampled")
        if isinstance(event, TokenEvent)
        for each in event.logprobs
        for value in (each.chosen, *each.top)
    ]
    return {name: recorder.text(name) for name in REQUESTS}, told


def test_it_says_what_it_says_over_the_kernels_for_cpus() -> None:
    triton = kernels.for_device(torch.device(PLACE), batch_invariant=True)
    driver = driver_for(torch.device(PLACE))
    runner = GpuRunner(tiny_model(PLACE, triton), CONFIG, kv_dtype=torch.float32, driver=driver)
    texts, logprobs = answers(runner)
    expected_texts, expected_logprobs = answers(ModelRunner(tiny_model("cpu"), CONFIG.num_blocks))
    # Its one size of prompts, and both of decode steps.
    assert set(driver.replayed) == {0, 1, 2}
    assert texts == expected_texts
    assert len(logprobs) == 4 * 3
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
