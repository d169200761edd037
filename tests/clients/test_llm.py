"""The `llm` command against the server, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.app.harness import continued, expected, said
from tests.clients.environments import environment
from tests.clients.serving import PATIENCE, serving

MODELS = """
- {{model_id: chat, model_name: fake-model, api_base: "{url}"}}
- {{model_id: text, model_name: fake-model, api_base: "{url}", completion: true}}
- {{model_id: responses, model_name: fake-model, api_base: "{url}", responses: true}}
"""

OPTIONS = ("-o", "temperature", "0", "-o", "max_tokens", "30")

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Runs the command with these arguments; returns what it said."""
    python = environment("llm", ["llm>=0.36"])
    home = tmp_path_factory.mktemp("llm")
    with serving() as server:
        (home / "extra-openai-models.yaml").write_text(MODELS.format(url=server.base_url))

        def run(model: str, *arguments: str) -> str:
            done = subprocess.run(
                [python, "-m", "llm", "-m", model, *OPTIONS, *arguments],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LLM_USER_PATH": str(home)},
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.removesuffix("\n")

        yield run


def test_a_prompt_and_a_continuation_of_it_that_is_streamed(ask: Ask) -> None:
    first = said("hello", 30)
    assert ask("chat", "--no-stream", "hello") == first
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "more"},
    ]
    assert ask("chat", "--continue", "more") == expected(talk, 30)


def test_a_completion(ask: Ask) -> None:
    assert ask("text", "Once upon") == continued("Once upon", 30)


def test_a_response(ask: Ask) -> None:
    assert ask("responses", "hello") == said("hello", 30)
