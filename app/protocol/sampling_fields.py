"""What a model's entry tells of the fields by which tokens are chosen: their ranges and their defaults.

Knows: which fields those are. Does not know: a single number. Ranges are those that requests are checked
against, defaults are the engine's.
"""

from __future__ import annotations

from typing import Any

from app.protocol.responses import CreateResponse
from engine.sampling import SamplingParams

_ENGINE_NAMES = {"max_output_tokens": "max_tokens"}

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_output_tokens",
    "seed",
    "stop",
)
"""As `response.create` names them."""


def sampling_fields(context: int) -> dict[str, dict[str, Any]]:
    """A JSON schema of each, with its default. null says the same as leaving a field out.

    Args:
        context: how many tokens a prompt and its answer may have together.
    """
    checked = CreateResponse.model_json_schema()["properties"]
    fields = {name: _schema(checked[name]) | {"default": _default(name)} for name in SAMPLING_FIELDS}
    fields["max_output_tokens"].pop("exclusiveMaximum")
    fields["max_output_tokens"]["maximum"] = context
    return fields


def _schema(field: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in field["anyOf"] if kind != {"type": "null"}]
    return dict(kinds[0]) if len(kinds) == 1 else {"anyOf": kinds}


def _default(name: str) -> Any:
    value = getattr(SamplingParams(), _ENGINE_NAMES.get(name, name))
    return list(value) if isinstance(value, tuple) else value
