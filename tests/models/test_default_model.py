"""The default model's greedy answers are those of transformers on the same weights."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers

from engine.loading import LoadedModel, load
from tests.models.paging import PagedRun

NEW_TOKENS = 64
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List five fruits.",
    "What is 17 times 23?",
    "Tell me a short story about a robot who learns to paint.",
    "Translate 'good morning' into Spanish, French and German.",
    "Why is the sky blue?",
    "Give me three tips for sleeping well.",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet, and when?",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog does not mind. The fox runs on.",
    "What are the pros and cons of working from home?",
    "Describe a sunset in the mountains.",
    "How do I boil an egg?",
    "Hi",
    "What does the word 'serendipity' mean?",
    "Continue the series: 2, 4, 8, 16,",
    "Write an email to my boss asking for a day off next Friday because my sister is getting married.",
    "Name the planets of the solar system in order from the sun, and say one thing about each of them.",
]


@pytest.fixture(scope="module")
def loaded(default_model_dir: Path) -> LoadedModel:
    return load(str(default_model_dir), cache_dir=default_model_dir.parent, progress=print)


def our_answers(loaded: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts in one flat batch, then one token each per step."""
    run = PagedRun(loaded.config, len(prompts), max(map(len, prompts)) + NEW_TOKENS)
    chunks = dict(enumerate(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    while chunks:
        logits = loaded.model.forward(run.inputs(chunks, all_rows=False), run.kv)
        chosen = dict(zip(chunks, logits.argmax(-1).tolist(), strict=True))
        for index, token in chosen.items():
            answers[index].append(token)
        chunks = {
            index: [token]
            for index, token in chosen.items()
            if token not in loaded.config.eos_ids and len(answers[index]) < NEW_TOKENS
        }
    return answers


@torch.inference_mode()
def their_answers(model: transformers.PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """`generate`, all prompts at once: padded on the left, which changes nothing but the time it takes."""
    width, end = max(map(len, prompts)), 2
    padded = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    whole = model.generate(
        padded, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=end
    )
    answers: list[list[int]] = whole[:, width:].tolist()
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]


@torch.inference_mode()
def margin(model: transformers.PreTrainedModel, prompt: list[int], answer: list[int], place: int) -> float:
    """How far the two best logits stood apart where the answers part."""
    best = model(torch.tensor([prompt + answer[:place]])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


@pytest.mark.slow
def test_greedy_answers_are_those_of_generate(loaded: LoadedModel, default_model_dir: Path) -> None:
    assert loaded.chat_template is not None
    prompts = [loaded.chat_template.encode([{"role": "user", "content": text}]) for text in PROMPTS]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32)
    ours = our_answers(loaded, prompts)
    wanted = their_answers(theirs, prompts)
    parted = []
    for text, prompt, got, want in zip(PROMPTS, prompts, ours, wanted, strict=True):
        if got != want:
            place = next(i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b)
            parted.append(f"{text!r} at token {place}, margin {margin(theirs, prompt, want, place):.2e}")
    assert parted == []
    assert sum(map(len, ours)) > 800, "the answers are long enough to mean something"


def test_transformers_agrees_on_the_folder(loaded: LoadedModel, default_model_dir: Path) -> None:
    """The converted folder is an ordinary one: same tokenizer, ends and template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_dir)
    generation = transformers.GenerationConfig.from_pretrained(default_model_dir)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert generation.eos_token_id in (2, [2])
    assert loaded.config.eos_ids == loaded.tokenizer.eos_ids == {2}
    assert (loaded.config.bos_id, loaded.tokenizer.bos_id) == (1, 1)
    assert loaded.name == "SmolLM2-135M-Instruct"
    messages = [{"role": "user", "content": "Hello, 2026! Grüße  20"}]
    assert loaded.chat_template is not None
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert loaded.chat_template.encode(messages) == wanted


def test_a_start_from_the_cache_imports_no_heavy_library(default_model_dir: Path) -> None:
    """transformers alone would double the time from start to ready."""
    code = (
        "import pathlib, sys, engine.loading as l; folder = pathlib.Path(sys.argv[1]); "
        "l.load('default', cache_dir=folder.parent, progress=print); "
        "print([name for name in ('transformers', 'gguf', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(default_model_dir)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_digits_are_tokens_of_their_own(loaded: LoadedModel) -> None:
    """SmolLM2 was trained so, and a GGUF file says it only by a name ("smollm")."""
    vocabulary = loaded.tokenizer.vocabulary.token_bytes
    pieces = [vocabulary[id_] for id_ in loaded.tokenizer.encode("in  2026")]
    assert pieces == [b"in", b"  ", b"2", b"0", b"2", b"6"]


def test_other_threads_go_on_while_a_long_text_is_tokenised(loaded: LoadedModel) -> None:
    """The loop and the engine are such threads. A library that kept the interpreter to itself would let
    this one wake up once or twice."""
    done = threading.Event()

    def encode() -> None:
        loaded.tokenizer.encode("All work and no play makes Jack a dull boy. " * 20_000)
        done.set()

    worker = threading.Thread(target=encode)
    worker.start()
    num_wakes = 0
    while not done.wait(0.001):
        num_wakes += 1
    worker.join()
    assert num_wakes > 10
