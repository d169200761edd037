"""The settings: one schema, and where each value came from.

Knows: every setting's name, type, range and default; the four places a value can come from (command
line, environment, TOML file, default) and their order. Does not know: what a setting does.

A layer is checked as a whole even where a stronger layer overrides it, so that a wrong value in a file
is found on the day it is written.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

PREFIX = "TICKWIRE_"
CONFIG_VARIABLE = "TICKWIRE_CONFIG"
CONFIG_FILE = "tickwire.toml"
"""Read from the working directory when no other file is named."""


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$XDG_CACHE_HOME/tickwire, or ~/.cache/tickwire. A relative XDG_CACHE_HOME counts as unset, as its
    specification demands."""
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "tickwire"


def _split(value: object) -> object:
    """A comma-separated text (command line, environment) or a list (file) -> a tuple."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


def _expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error


HomePath = Annotated[Path, AfterValidator(_expand_home)]
Text = Annotated[str, StringConstraints(min_length=1)]
Origin = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s,]+$")]
Secret = Annotated[str, StringConstraints(pattern=r"^[^\s,]+$")]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Everything that can be set. The command line's flags, the variables, the keys of the file and the
    table in the README are all made from these fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: Text = Field(
        "127.0.0.1", description="Address to listen on. 0.0.0.0 opens the server to the network."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0 takes any free one.")
    model: Text = Field(
        "default",
        description="`default` (SmolLM2-135M-Instruct), a Hugging Face folder, a .gguf file, or a hub id.",
    )
    served_model_name: Text | None = Field(
        None, description="The model's name on the wire. Not set: the name the model came with."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where the model runs. `cuda` is a GPU, AMD's included."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Float type of weights and activations. `auto`: float32 on a CPU, which knows no other; "
        "on a GPU the 16 bits of the checkpoint, bfloat16 if it has more.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto",
        description="Float type of the KV cache. `auto`: that of the activations. `fp8` (e4m3, on a GPU) "
        "holds twice the tokens of 16 bits, and rounds what it holds to 4 significant bits.",
    )
    cuda_graphs: bool = Field(
        True,
        description="On a GPU: whether forward passes are captured at the start and replayed. `false` starts "
        "faster and runs slower.",
    )
    batch_invariant: bool | None = Field(
        None,
        description="Whether an answer is bit for bit the same whatever is computed beside it. `false` takes "
        "a library's matrix products. Not set: true on a CPU, where it costs nothing "
        "(`benchmarks/batch_invariant.py`), false on a GPU.",
    )
    threads: Count | None = Field(
        None, description="CPU threads for the model. Not set: as many as there are physical cores."
    )
    max_model_len: Count | None = Field(
        None,
        description="Context in tokens, prompt and answer together. Not set: what the model was made for.",
    )
    kv_cache_tokens: int | None = Field(
        None,
        ge=16,
        description="Tokens that the KV cache holds for all sequences. Not set: a share of the free memory.",
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Sequences that may run in one tick. Not set: 32, on a GPU 256."
    )
    token_budget: Count | None = Field(
        None,
        description="Tokens that one tick may compute, over all sequences. Not set: 512, on a GPU 2048.",
    )
    prefill_chunk: Count | None = Field(
        None, description="Tokens of one prompt that one tick may compute. Not set: 256, on a GPU 1024."
    )
    admission: Literal["paged", "reserve_max", "reserve_pow2", "static"] = Field(
        "paged",
        description="How KV memory is promised. `paged` takes it as it is filled; the others, to be compared "
        "with, reserve it for whole sequences.",
    )
    chunked_prefill: bool = Field(
        True, description="Whether prompts are computed in chunks beside those who are answered already."
    )
    prefix_cache: bool = Field(True, description="Whether computed prefixes are kept and shared.")
    max_queue: Count = Field(1024, description="Answers that may wait for their turn.")
    max_queue_per_session: Count = Field(256, description="Of these, one session's (API key or connection).")
    turn_tokens: Count = Field(
        512, description="Tokens' worth of requests that a session may enter per turn, when others wait too."
    )
    recorded_ticks: Count = Field(
        1024, le=1_000_000, description="How many of the last ticks `/debug/trace` can show."
    )
    record: HomePath | None = Field(
        None,
        description="File to record the scheduler's run in, for `tickwire replay`. It holds no text.",
        json_schema_extra={"allowed": "a path"},
    )
    chaos_preempt_every: int = Field(
        0, ge=0, description="For tests: in every so many ticks a sequence is preempted. 0: never."
    )
    chaos_slow_tick_ms: float = Field(
        0.0, ge=0, description="For tests: milliseconds that every tick is delayed by."
    )
    cache_dir: HomePath = Field(
        default_factory=default_cache_dir,
        description="Where models are kept. Not set: $XDG_CACHE_HOME/tickwire, or ~/.cache/tickwire.",
        json_schema_extra={"allowed": "a path"},
    )
    max_message_bytes: int = Field(
        1024 * 1024, ge=1024, description="Largest request body or socket message accepted, in bytes."
    )
    allowed_origins: Annotated[tuple[Origin, ...], BeforeValidator(_split)] = Field(
        (),
        description="Other web origins whose pages may use the server. Its own page always may.",
        json_schema_extra={
            "allowed": "origins like https://example.org, without a path; several are separated by commas"
        },
    )
    api_keys: Annotated[tuple[Secret, ...], BeforeValidator(_split)] = Field(
        (),
        description="Keys of which clients must send one, as `Authorization: Bearer KEY`. None: no key is "
        "asked for. Better set in the environment or the file: a command line can be read by others.",
        json_schema_extra={"allowed": "keys without spaces; several are separated by commas", "secret": True},
    )
    on_disconnect: Literal["cancel", "continue"] = Field(
        "cancel",
        description="What becomes of an answer whose reader's connection breaks, unless the request says: it "
        "ends at once, or goes on and can be taken up again.",
    )
    resume_grace_s: float = Field(
        60.0,
        ge=0,
        description="Seconds that an answer that is to go on does so without a reader, and that it can be "
        "taken up after its end if it is not stored.",
    )
    handshake_timeout_s: float = Field(
        10.0, gt=0, description="Seconds that a client has to send its request's head, and to authenticate."
    )
    send_timeout_s: float = Field(
        20.0, gt=0, description="Seconds that a reader may take nothing before its connection is cut."
    )
    shutdown_timeout_s: float = Field(
        10.0, ge=0, description="Seconds that running answers get to finish after a signal to stop."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least that is logged."
    )


class SettingsError(ValueError):
    """Settings that cannot be used. The message has one line for each problem: the field, where the
    value came from, what was got and what is allowed."""


@dataclass(frozen=True)
class Loaded:
    """The settings in effect, and for each field where its value came from: a flag, a variable, the
    file's path, or "default"."""

    settings: Settings
    sources: dict[str, str]


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def load_settings(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    config: str | None = None,
    directory: Path | None = None,
) -> Loaded:
    """Settings from the command line > environment > TOML file > defaults.

    Args:
        flags: texts given on the command line, by field name.
        environ: the variables. An empty one counts as not set.
        config: the file named on the command line; else TICKWIRE_CONFIG names it, else
            `tickwire.toml` in `directory` (the working directory) is read if it is there.

    Raises:
        SettingsError: a value, a key, a variable or the file itself is wrong.
    """
    path = _config_path(config, environ, directory or Path())
    from_file = _from_file(path) if path else {}
    texts, text_sources = _texts(flags or {}, environ)
    from_text = _checked(lambda: Settings.model_validate_strings(texts), text_sources)
    sources = dict.fromkeys(Settings.model_fields, "default")
    sources.update(dict.fromkeys(from_file, str(path)))
    sources.update(text_sources)
    values = {"cache_dir": default_cache_dir(environ), **from_file, **from_text}
    return Loaded(Settings.model_construct(**values), sources)  # each layer was checked above


def _config_path(config: str | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    named = config or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    here = directory / CONFIG_FILE
    return here if here.is_file() else None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not a TOML file: {error}") from error
    # TOML has types of its own, so `port = "80"` or `port = true` is a mistake there. JSON mode is the
    # strict mode in which a path may still be written as a text.
    text = json.dumps(values, default=str)
    return _checked(
        lambda: Settings.model_validate_json(text, strict=True),
        dict.fromkeys(Settings.model_fields, str(path)),
    )


def _texts(flags: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The values that come as text, and the flag or variable each was given by."""
    texts, sources = {}, {}
    if environ.get("PORT"):
        texts["port"], sources["port"] = environ["PORT"], "PORT"
    unknown = []
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE or not value:
            continue
        field = name.removeprefix(PREFIX).lower()
        if name != variable(field) or field not in Settings.model_fields:
            unknown.append(_unknown("variable", name, [variable(each) for each in Settings.model_fields]))
            continue
        texts[field], sources[field] = value, name
    if unknown:
        raise SettingsError("\n".join(unknown))
    texts.update(flags)
    sources.update({name: flag(name) for name in flags})
    return texts, sources


def _checked(validate: Callable[[], Settings], sources: Mapping[str, str]) -> dict[str, Any]:
    """The values of one layer, or SettingsError with every problem in it."""
    try:
        layer = validate()
    except ValidationError as error:
        raise SettingsError("\n".join(_problem(each, sources) for each in error.errors())) from error
    return {name: getattr(layer, name) for name in layer.model_fields_set}


def _problem(error: ErrorDetails, sources: Mapping[str, str]) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return _unknown("key", name, list(Settings.model_fields), f" in {next(iter(sources.values()))}")
    got = "a value that is not shown" if is_secret(name) else repr(error["input"])
    return f"{name}: got {got} (from {sources[name]}), allowed: {allowed(name)}"


def _unknown(kind: str, name: str, known: list[str], where: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name}{where}; {hint}"


@functools.cache
def _schema() -> dict[str, Any]:
    properties: dict[str, Any] = Settings.model_json_schema()["properties"]
    return properties


def allowed(name: str) -> str:
    """What a field takes, in words, from the schema: "an integer from 0 to 65535"."""
    schema = _schema()[name]
    if "allowed" in schema:
        return str(schema["allowed"])
    schema = next((each for each in schema.get("anyOf", []) if each["type"] != "null"), schema)
    if schema["type"] == "boolean":
        return "true or false"
    if "const" in schema or "enum" in schema:
        return " or ".join(schema.get("enum") or [schema["const"]])
    noun = {"integer": "an integer", "number": "a number", "string": "a text that is not empty"}[
        schema["type"]
    ]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    if "exclusiveMinimum" in schema:
        return f"{noun} above {schema['exclusiveMinimum']:g}"
    return noun if low is None else f"{noun} of at least {low:g}"


def is_secret(name: str) -> bool:
    """Whether a field's value must never be shown."""
    return bool(_schema()[name].get("secret"))


def default_text(name: str) -> str:
    """A field's default as it would stand in the file; "" where not setting it has a meaning of its own."""
    field = Settings.model_fields[name]
    return "" if field.default is None or field.default_factory else _toml_value(field.default)


def as_toml(loaded: Loaded) -> str:
    """The settings in effect as a settings file; a comment tells where each value came from."""
    lines = []
    for name in Settings.model_fields:
        value = getattr(loaded.settings, name)
        if is_secret(name) and value:
            lines.append(f"# {name}: {len(value)} of them, not shown")
            continue
        if value is None:
            lines.append(f"# {name} is not set")
            continue
        # Quoted like a text: a file's path may hold a line break, and a comment may not.
        source = (
            loaded.sources[name] if loaded.sources[name].isprintable() else _toml_value(loaded.sources[name])
        )
        lines.append(f"{name} = {_toml_value(value)}  # {source}")
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, (str, Path)):
        # A TOML basic string is a JSON string, but DEL has to be escaped in it as well.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
