"""Every sampling parameter means what it says, and means the same alone, in company, in chunks, after a
prefix hit and after preemption. Over the fake model, whose logits depend on what stands in its KV memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine
from engine.request import ChosenLogprob, Request
from engine.sampling import SamplingParams
from tests import oracle
from tests.engine import table
from tests.engine.table import Told
from tests.fakes import ALPHABET, EOS, Recorder, SamplingRunner, fake_ids, fake_vocabulary, logits_after

PROMPT = fake_ids("a prompt of more than three blocks of tokens, for the cache")
VOCABULARY: Vocabulary = fake_vocabulary()


def make(config: EngineConfig, recorder: Recorder) -> Engine:
    return Engine(SamplingRunner(config.num_blocks), VOCABULARY, config, recorder)


def request(sampling: SamplingParams) -> Request:
    return Request("r", PROMPT, sampling, arrival=0.0)


def by_the_oracle(sampling: SamplingParams, seed: int) -> tuple[list[int], list[ChosenLogprob | None]]:
    """Token by token, without an engine, up to an end token, a stop id or the length."""
    answer: list[int] = []
    told: list[ChosenLogprob | None] = []
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    while len(answer) < (sampling.max_tokens or 0):
        context = [*PROMPT, *answer]
        eos = frozenset({EOS})
        token, logprob = oracle.choose(
            logits_after(context), sampling, PROMPT, answer, seed, len(context), eos
        )
        answer.append(token)
        told.append(logprob)
        if token in ends:
            break
    return answer, told


def text_of(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.token_bytes[t] for t in tokens).decode()


FIRST = by_the_oracle(SamplingParams(seed=11, max_tokens=24), 11)[0]
WORD = FIRST[3], FIRST[4]
PARAMETERS = table.parameters(FIRST[0], EOS, WORD, text_of(FIRST[10:12]))


@pytest.mark.parametrize("name", PARAMETERS)
def test_alone_it_is_what_the_oracle_says(name: str) -> None:
    sampling = PARAMETERS[name]
    told = table.alone(make, request(sampling))[0]
    tokens, logprobs = by_the_oracle(sampling, sampling.seed or 0)
    ends_by_id = tokens[-1] in {EOS, *sampling.stop_token_ids} and not sampling.ignore_eos
    said = tokens[:-1] if ends_by_id else tokens
    text = text_of(said)
    for stop in sampling.stop:
        at = text.find(stop)
        if at >= 0:
            text = text[: at + len(stop)] if sampling.include_stop else text[:at]
            assert (told.reason, told.stop) == ("stop", stop)
    assert told.text == text
    if sampling.logprobs is not None:
        # A letter a token, so the text's length tells how many.
        assert list(told.logprobs) == logprobs[: len(text)]
    if not sampling.stop:
        assert told.reason == ("stop" if ends_by_id else "length")
        assert told.tokens == len(tokens)


def test_the_table_shows_every_parameter_at_work() -> None:
    """An entry that changed nothing would prove nothing."""
    plain = {
        0: table.alone(make, request(PARAMETERS["greedy"])),
        1: table.alone(make, request(PARAMETERS["seed"])),
    }
    for name, sampling in PARAMETERS.items():
        if name not in ("seed", "greedy", "n", "logprobs"):
            assert table.alone(make, request(sampling)) != plain[sampling.temperature > 0], name


@pytest.mark.parametrize("arrangement", [*table.ARRANGEMENTS, "batch of 16"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_it_is_the_same_in_every_arrangement(name: str, arrangement: str) -> None:
    sampling = PARAMETERS[name]
    expected = table.alone(make, request(sampling))
    if arrangement == "batch of 16":
        got = table.in_a_batch_of_16(make, request(sampling), list(PARAMETERS.values()))
    else:
        got = table.ARRANGEMENTS[arrangement](make, request(sampling))
    assert got == expected


def test_the_answers_of_one_request_differ_and_each_has_a_seed_of_its_own() -> None:
    answers = table.alone(make, request(replace(PARAMETERS["seed"], n=5)))
    assert len({told.text for told in answers}) == 5
    assert answers[0] == table.alone(make, request(PARAMETERS["seed"]))[0]


def test_min_tokens_delays_stop_strings_too() -> None:
    sampling = replace(PARAMETERS["seed"], stop=(ALPHABET,), min_tokens=0)
    free = table.alone(make, request(sampling))[0].text
    early, late = free[1], free[20]
    told = table.alone(make, request(replace(sampling, stop=(early, late), min_tokens=10)))[0]
    assert len(told.text) >= 10
    assert told.text == free[: len(told.text)]


def test_a_stop_strings_tokens_have_no_log_probabilities_unless_it_is_included() -> None:
    sampling = replace(PARAMETERS["stop"], logprobs=0)
    for included in (False, True):
        told: Told = table.alone(make, request(replace(sampling, include_stop=included)))[0]
        assert len(told.logprobs) == len(told.text)
