"""What transformers does with the same weights: `generate`, and its own continuous batching.

Knows: transformers' interfaces, and that they differ between releases. Does not know: our engine and kernels.
"""

from __future__ import annotations

import itertools
import logging
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

# Looking for faster attention, it would ask a server that may not be there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from benchmarks.gpu.clock import OutOfTime
from benchmarks.gpu.shapes import Order, RandomWeights, Scale, raw_config

STEPS = 16
"""Decode steps of `generate` that count."""
SPARE_STEPS = 4
"""The first ones do not."""
CACHE_BLOCK = 256
"""Tokens, the default of its continuous batching."""
MOST_TOKENS = 4096
"""That it computes at once: enough for whole prompts, and little beside KV memory."""


def quiet() -> None:
    transformers.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def load(name: str, weights: RandomWeights, scale: Scale) -> Any:
    """transformers' model, which shares the weights' memory."""
    quiet()
    before = torch.get_default_dtype()
    torch.set_default_dtype(scale.dtype)
    try:
        with torch.device(scale.device):
            model = LlamaForCausalLM(LlamaConfig(**raw_config(name)))
    finally:
        torch.set_default_dtype(before)
    missing, unexpected = model.load_state_dict(weights.by_name, strict=False, assign=True)
    model.tie_weights()
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"transformers has other weights: {unexpected} unexpected, {missing} missing")
    return model.eval()


class StepTimes(BaseStreamer):
    """Is told of each step by `generate`, and notes when."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def median_step(self) -> float:
        """Seconds. The first call is the prompt's, the second comes after the prefill."""
        steps = [b - a for a, b in itertools.pairwise(self.times)]
        return statistics.median(steps[1 + SPARE_STEPS :])


@torch.inference_mode()
def generate_step(model: Any, batch: int, context: int) -> float:
    """Seconds of a decode step of `generate`, with its default cache, at about this context."""
    quiet()
    prompt = context - SPARE_STEPS - STEPS
    ids = torch.randint(model.config.vocab_size, (batch, prompt), device=model.device)
    times = StepTimes()
    new_tokens = 1 + SPARE_STEPS + STEPS
    model.generate(
        ids, attention_mask=torch.ones_like(ids), streamer=times, do_sample=False, eos_token_id=None,
        pad_token_id=0, min_new_tokens=new_tokens, max_new_tokens=new_tokens,
    )  # fmt: skip
    return times.median_step()


@dataclass(frozen=True)
class Served:
    """What its continuous batching made of a list of requests."""

    times: list[list[float]]
    """Of each token of the answers that ended."""
    start: float
    attention: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.times))

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / (max(map(max, self.times)) - self.start)

    def median_step(self) -> float:
        """Seconds from token to token, where all answers had begun and none had ended."""
        begun, ended = max(times[0] for times in self.times), min(times[-1] for times in self.times)
        pairs = (pair for times in self.times for pair in itertools.pairwise(times))
        return statistics.median(b - a for a, b in pairs if a >= begun and b <= ended)


def continuous_batching(model: Any, orders: list[Order], rows: int, longest: int, seconds: float) -> Served:
    """Serves all at once, at most `rows` of them in a batch.

    Args:
        longest: prompt and answer together.
        seconds: after so long it stops, and what has ended counts.
    """
    quiet()
    try:
        served = _serve(model, orders, rows, longest, seconds)
    except OutOfTime:
        raise
    except Exception:
        # What it chose by itself may need what is not there; this needs only torch.
        model.set_attn_implementation("paged|sdpa")
        served = _serve(model, orders, rows, longest, seconds)
    if not served.times:
        raise RuntimeError(f"nothing was answered in {seconds:.0f} s")
    return served


def batching_step(model: Any, batch: int, context: int, seconds: float) -> float:
    """Seconds of a decode step of its continuous batching, at about this context."""
    prompts = -(-batch * context // MOST_TOKENS)
    answer = prompts + SPARE_STEPS + STEPS
    ids = torch.randint(model.config.vocab_size, (batch, context - answer)).tolist()
    return continuous_batching(model, [(each, answer) for each in ids], batch, context, seconds).median_step()


def _serve(model: Any, orders: list[Order], rows: int, longest: int, seconds: float) -> Served:
    from transformers.generation import ContinuousBatchingConfig

    sizes = ContinuousBatchingConfig(
        block_size=CACHE_BLOCK,
        num_blocks=rows * (-(-longest // CACHE_BLOCK) + 1),
        max_batch_tokens=min(MOST_TOKENS, rows * longest),
        max_requests_per_batch=rows,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=longest)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=sizes, block=True, timeout=10
    ) as manager:
        # One alone first: the thread makes its cache, and the libraries what they want.
        manager.add_request(orders[0][0], max_new_tokens=4)
        if manager.get_result(timeout=60) is None:
            raise RuntimeError("its first request did not come back")
        attention = str(model.config._attn_implementation)
        start = time.perf_counter()
        for prompt, length in orders:
            manager.add_request(prompt, max_new_tokens=length, record_timestamps=True)
        served = Served([], start, attention)
        try:
            _collect(manager, served.times, len(orders), start + seconds)
        finally:
            if len(served.times) < len(orders):
                # Else its thread would go on until all is answered.
                manager.stop(block=True, timeout=10, hard_stop=True)
    return served


def _collect(manager: Any, times: list[list[float]], count: int, end: float) -> None:
    while len(times) < count and time.perf_counter() < end:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError(f"it stopped by itself after {len(times)} answers")
        if result is not None and result.error is not None:
            raise RuntimeError(f"an answer ended with: {result.error}")
        if result is not None and result.is_finished():
            times.append(result.timestamps)
