"""Every sampling parameter, and every way in which an engine may come to run a request: what the table tests
over the fake and the real model share.

Whoever uses it gives a way to make an engine over a model, and compares what `tell` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.config import Chaos, EngineConfig
from engine.engine import Engine
from engine.request import ChosenLogprob, FinishedEvent, Request, TokenEvent
from engine.sampling import SamplingParams
from tests.fakes import Recorder, run_until_idle

MakeEngine = Callable[[EngineConfig, Recorder], Engine]

CONFIG = EngineConfig(num_blocks=300, max_model_len=512, max_num_seqs=20, token_budget=256)


def parameters(common: int, eos: int, word: tuple[int, ...], stop: str) -> dict[str, SamplingParams]:
    """Each parameter at work, alone and in company.

    Args:
        common: a token that answers are likely to hold.
        eos: the model's end token.
        word: two tokens that the answer of the first entry holds one after the other.
        stop: a text that this answer holds.
    """
    base = SamplingParams(seed=11, max_tokens=24)
    greedy = SamplingParams(temperature=0, max_tokens=24)
    return {
        "seed": base,
        "greedy": greedy,
        "temperature": replace(base, temperature=0.6),
        "top_p": replace(base, top_p=0.7),
        "top_k": replace(base, top_k=5),
        "min_p": replace(base, min_p=0.2),
        "presence_penalty": replace(greedy, presence_penalty=1.5),
        "frequency_penalty": replace(base, frequency_penalty=-1.0),
        "repetition_penalty": replace(greedy, repetition_penalty=1.3),
        "logit_bias": replace(base, logit_bias=((common, 4.0), (eos, -100.0))),
        "allowed_token_ids": replace(base, allowed_token_ids=(common, *word, 5, 7)),
        "bad_words": replace(base, bad_words=(word, (common,))),
        "min_tokens": replace(base, min_tokens=9, logit_bias=((eos, 100.0),)),
        "ignore_eos": replace(base, ignore_eos=True, logit_bias=((eos, 5.0),)),
        "stop": replace(base, stop=(stop,)),
        "stop_token_ids": replace(base, stop_token_ids=(word[1],)),
        "include_stop": replace(base, stop=(stop,), include_stop=True),
        "n": replace(base, n=3),
        "logprobs": replace(base, logprobs=4),
        "all together": SamplingParams(
            temperature=0.9,
            top_p=0.95,
            top_k=40,
            min_p=0.01,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            repetition_penalty=1.1,
            logit_bias=((common, 1.0),),
            bad_words=(word,),
            min_tokens=5,
            seed=-12345,
            max_tokens=24,
            stop=(stop,),
            n=2,
            logprobs=2,
        ),
    }


@dataclass(frozen=True)
class Told:
    """What a client learns of one answer, when text and times are taken away that may differ."""

    text: str
    reason: str
    stop: str | int | None
    tokens: int
    logprobs: tuple[ChosenLogprob, ...]


def tell(recorder: Recorder, name: str, n: int) -> list[Told]:
    answers = []
    for choice in range(n):
        events = [e for e in recorder.events(name) if e.choice == choice]
        end = events[-1]
        assert isinstance(end, FinishedEvent), events
        said = [e for e in events[:-1] if isinstance(e, TokenEvent)]
        answers.append(
            Told(
                "".join(e.text for e in said),
                end.reason.value,
                end.stop,
                end.num_output_tokens,
                tuple(each for e in said for each in e.logprobs),
            )
        )
    return answers


def alone(make: MakeEngine, request: Request, **changes: Any) -> list[Told]:
    recorder = Recorder()
    engine = make(replace(CONFIG, prefix_cache=False, **changes), recorder)
    engine.submit(request)
    run_until_idle(engine)
    return tell(recorder, request.id, request.sampling.n)


def in_a_batch_of_16(make: MakeEngine, request: Request, company: list[SamplingParams]) -> list[Told]:
    recorder = Recorder()
    engine = make(CONFIG, recorder)
    for i in range(15):
        if i == 7:
            engine.submit(request)
            engine.tick()
        prompt = request.prompt[i % 3 :] + request.prompt[: 1 + 2 * i]
        sampling = replace(company[i % len(company)], n=1, seed=i)
        engine.submit(Request(f"other{i}", prompt, sampling, arrival=0.0))
    run_until_idle(engine)
    assert max(record.rows for record in engine.recorder.records()) >= 16
    return tell(recorder, request.id, request.sampling.n)


def in_chunks(make: MakeEngine, request: Request) -> list[Told]:
    return alone(make, request, prefill_chunk=7)


def after_a_prefix_hit(make: MakeEngine, request: Request) -> list[Told]:
    recorder = Recorder()
    engine = make(CONFIG, recorder)
    engine.submit(Request("before", request.prompt, SamplingParams(temperature=0, max_tokens=1), 0.0))
    run_until_idle(engine)
    engine.submit(request)
    run_until_idle(engine)
    end = recorder.events(request.id)[-1]
    assert isinstance(end, FinishedEvent)
    assert end.num_cached_tokens > 0
    return tell(recorder, request.id, request.sampling.n)


def after_preemption(make: MakeEngine, request: Request) -> list[Told]:
    recorder = Recorder()
    engine = make(replace(CONFIG, prefix_cache=False, chaos=Chaos(preempt_every=3)), recorder)
    engine.submit(request)
    run_until_idle(engine)
    assert engine.stats().num_preemptions > 0
    return tell(recorder, request.id, request.sampling.n)


def after_preemption_with_hits(make: MakeEngine, request: Request) -> list[Told]:
    recorder = Recorder()
    engine = make(replace(CONFIG, chaos=Chaos(preempt_every=2)), recorder)
    engine.submit(request)
    run_until_idle(engine)
    assert engine.stats().num_preemptions > 0
    return tell(recorder, request.id, request.sampling.n)


ARRANGEMENTS = {
    "chunked prefill": in_chunks,
    "after a prefix hit": after_a_prefix_hit,
    "after preemption": after_preemption,
    "after preemption, with hits": after_preemption_with_hits,
}
"""All but the company, which needs to know who else there is."""
