"""Every sampling parameter over real weights: in the batch-invariant mode an answer, and each of its log
probabilities, is the same bit for bit alone, in company, in chunks, after a prefix hit, after preemption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import Chaos, EngineConfig
from engine.engine import Engine
from engine.loading import LoadedModel, load
from engine.request import FinishedEvent, Request
from engine.runner import make_runner
from engine.sampling import SamplingParams
from tests.devices import DEVICES
from tests.engine import table
from tests.fakes import Recorder, run_until_idle

pytestmark = pytest.mark.slow

MAX_TOKENS = 12
MESSAGES = [{"role": "user", "content": "Tell me something about rivers, mountains and the sea, and why."}]


@pytest.fixture(scope="module", params=DEVICES)
def loaded(default_model_dir: Path, request: pytest.FixtureRequest) -> LoadedModel:
    return load(
        str(default_model_dir),
        device=request.param,
        batch_invariant=True,
        cache_dir=default_model_dir.parent,
        progress=print,
    )


def make_engine(loaded: LoadedModel, config: EngineConfig) -> tuple[Engine, Recorder]:
    recorder = Recorder()
    runner = make_runner(loaded.model, config)
    return Engine(runner, loaded.tokenizer.vocabulary, config, recorder), recorder


@pytest.fixture(scope="module")
def requests(loaded: LoadedModel) -> dict[str, Request]:
    """The table's entries, with tokens that this model does say."""
    assert loaded.chat_template is not None
    prompt = tuple(loaded.chat_template.encode(MESSAGES))
    engine, recorder = make_engine(loaded, table.CONFIG)
    sampling = SamplingParams(seed=11, max_tokens=MAX_TOKENS, logprobs=0)
    engine.submit(Request("first", prompt, sampling, arrival=0.0))
    run_until_idle(engine)
    told = table.tell(recorder, "first", 1)[0]
    ids = [each.chosen.token_id for each in told.logprobs]
    (eos,) = loaded.tokenizer.vocabulary.eos_ids
    stop = told.text[len(told.text) // 2 :][:4]
    entries = table.parameters(ids[0], eos, (ids[2], ids[3]), stop)
    return {
        name: Request(name, prompt, replace(entry, max_tokens=MAX_TOKENS), arrival=0.0)
        for name, entry in entries.items()
    }


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel, requests: dict[str, Request]) -> dict[str, list[table.Told]]:
    answers = {}
    for name, request in requests.items():
        engine, recorder = make_engine(loaded, replace(table.CONFIG, prefix_cache=False))
        engine.submit(request)
        run_until_idle(engine)
        answers[name] = table.tell(recorder, name, request.sampling.n)
    return answers


def together(engine: Engine, recorder: Recorder, requests: dict[str, Request]) -> dict[str, list[table.Told]]:
    """All at once, but not all beginning in the same tick."""
    for index, request in enumerate(requests.values()):
        engine.submit(request)
        if index % 7 == 3:
            engine.tick()
    run_until_idle(engine)
    engine.scheduler.check()
    assert max(record.rows for record in engine.recorder.records()) >= 16
    return {name: table.tell(recorder, name, request.sampling.n) for name, request in requests.items()}


def test_in_company(loaded: LoadedModel, requests: dict[str, Request], alone: object) -> None:
    engine, recorder = make_engine(loaded, replace(table.CONFIG, prefix_cache=False))
    assert together(engine, recorder, requests) == alone


def test_in_chunks(loaded: LoadedModel, requests: dict[str, Request], alone: object) -> None:
    engine, recorder = make_engine(loaded, replace(table.CONFIG, prefix_cache=False, prefill_chunk=7))
    assert together(engine, recorder, requests) == alone


def test_after_a_prefix_hit(loaded: LoadedModel, requests: dict[str, Request], alone: object) -> None:
    engine, recorder = make_engine(loaded, table.CONFIG)
    prompt = requests["seed"].prompt
    engine.submit(Request("before", prompt, SamplingParams(temperature=0, max_tokens=1), arrival=0.0))
    run_until_idle(engine)
    assert together(engine, recorder, requests) == alone
    for name in requests:
        ends = [e for e in recorder.events(name) if isinstance(e, FinishedEvent)]
        assert all(end.num_cached_tokens >= 16 for end in ends)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["computed again", "found again"])
def test_after_preemption(
    loaded: LoadedModel, requests: dict[str, Request], alone: object, prefix_cache: bool
) -> None:
    config = replace(table.CONFIG, prefix_cache=prefix_cache, chaos=Chaos(preempt_every=2))
    engine, recorder = make_engine(loaded, config)
    assert together(engine, recorder, requests) == alone
    assert engine.stats().num_preemptions > 5
