"""Text to token ids, and the bytes that each id stands for.

Knows: the `tokenizer.json` format, the `tokenizers` library, the two ways in which vocabularies spell
bytes. Does not know: chat templates, files, transformers (whose import costs more than all of this).

**Control tokens cannot be typed.** A tokenizer library looks for the spelling of `<|im_start|>` in the
text that it is given, and text comes from people. So before the library sees the vocabulary, each
control token is renamed to a random spelling that nobody can know. Ordinary text then has no way to
one, whatever the model type or the normaliser would do; and a control token is placed by writing its
random spelling, which keeps the library's own handling of what stands around it (prefix spaces,
`lstrip`, `rstrip`) as it is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import tokenizers

from engine.detokenizer import Vocabulary, common_prefix
from engine.loading.errors import ModelError

Spec = dict[str, Any]
"""A parsed tokenizer.json."""

_TAG = re.compile(r"[<\[]\S+[>\]]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"
"""SentencePiece's sign for a space."""
_NEAR = 256
"""So many characters at the end of a text say how its last blanks are cut."""


class Tokenizer:
    """A tokenizer.json, loaded.

    Args:
        spec: the parsed tokenizer.json; not changed.
        vocab_size: rows of the model's embedding. Tokens beyond them cannot be fed to the model, and are
            left out; ids without a token give no text.
        eos_ids: ids that end a sequence.
        bos_id: the id that begins one, if the model has such.
        template: source of the chat template. Added tokens that are not special but that the template
            writes, like Qwen's `<tool_call>`, are control tokens too.

    Raises:
        ModelError: the vocabulary is of a kind that we cannot turn into bytes, or the library refuses it.
    """

    def __init__(
        self, spec: Spec, *, vocab_size: int, eos_ids: Iterable[int], bos_id: int | None, template: str = ""
    ) -> None:
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        added = [token for token in spec.get("added_tokens") or [] if token["id"] < vocab_size]
        self.special_tokens: dict[str, int] = {
            token["content"]: token["id"]
            for token in added
            if token["special"] or token["id"] in self.eos_ids
        }
        """Spelling -> id of the tokens that never stand for text."""
        self.template_tokens: dict[str, int] = {
            token["content"]: token["id"]
            for token in added
            if token["content"] not in self.special_tokens
            and _TAG.fullmatch(token["content"])
            and token["content"] in template
        }
        """Spelling -> id of the tokens that a template writes, but a model may also write as text."""
        self.control_tokens = {
            spelling: id_
            for spelling, id_ in {**self.special_tokens, **self.template_tokens}.items()
            if len(spelling) > 1
        }
        """Spelling -> id of the tokens that ordinary text never gives."""
        self.text_prefix = _text_prefix(spec.get("post_processor") or {})
        """Ids that come before a text that is no chat, in models that were trained so: BOS, or nothing."""
        self._placeholders = {id_: self.random_spelling() for id_ in self.control_tokens.values()}
        self.vocabulary = _vocabulary(spec, added, self.special_tokens, vocab_size, self.eos_ids)
        self._backend = _build(_renamed(spec, added, self._placeholders))

    @staticmethod
    def random_spelling() -> str:
        """Five characters of a private plane: 80 bits that nobody types and no normaliser touches."""
        return "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(5))

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. Spellings of control tokens inside it are text; no BOS is added.

        Raises:
            ValueError: the text holds a lone surrogate, which no byte sequence stands for.
        """
        return self.encode_mixed([text])

    def encode_mixed(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of ordinary text (str) with control tokens (ids) in it, tokenised as one string.

        Raises:
            KeyError: an id is no control token's.
            ValueError: the text holds a lone surrogate.
        """
        text = "".join(part if isinstance(part, str) else self._placeholders[part] for part in parts)
        text.encode()
        # The library's `encode` holds the interpreter's lock all the while, a second for a megabyte, in
        # which no token is made for anyone. Its batches do not.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def open_end(self, text: str) -> str:
        """The blanks at the end of a text that may be part of the next token, as in " word": a model that
        goes on from there does not expect them yet.

        Newlines, too, where the vocabulary makes one token of them and an indent. What is a token's own,
        whatever follows, is none of it.
        """
        blanks = text[len(text.rstrip()) :]
        if not blanks:
            return ""
        here = text[-_NEAR:]
        # How the blanks are cut depends on whether more of them follow. Every vocabulary knows " a".
        word, blank_and_word = self.encode(f"{here}a"), self.encode(f"{here} a")
        num_settled = common_prefix(word, blank_and_word)
        rest = b"".join(self.vocabulary.token_bytes[each] for each in word[num_settled:])
        unsettled = rest.decode(errors="replace").removesuffix("a")
        # A token of words and blanks, or blanks that the vocabulary has no bytes for.
        return unsettled if blanks.endswith(unsettled) else blanks


def _text_prefix(processor: Mapping[str, Any]) -> tuple[int, ...]:
    """What a tokenizer.json's post-processor puts before a single text."""
    steps = processor.get("processors", []) if processor.get("type") == "Sequence" else [processor]
    for step in steps:
        if step.get("type") != "TemplateProcessing":
            continue
        ids: list[int] = []
        for piece in step["single"]:
            if "SpecialToken" not in piece:
                return tuple(ids)
            ids += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return ()


def _renamed(spec: Spec, added: list[dict[str, Any]], placeholders: Mapping[int, str]) -> Spec:
    """The tokenizer.json in which the ids of `placeholders` are spelled so, and not as they were."""
    names = {token["content"]: placeholders[token["id"]] for token in added if token["id"] in placeholders}
    model = dict(spec["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    elif isinstance(vocab, dict):
        model["vocab"] = {**vocab}
        for spelling, placeholder in names.items():
            if spelling in vocab:
                model["vocab"][placeholder] = model["vocab"].pop(spelling)
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return {
        **spec,
        "model": model,
        "added_tokens": [
            # Its edges are found by whoever places it; a normaliser that prepends a space would
            # hide a normalised one in the middle of a text.
            {**token, "content": names[token["content"]], "single_word": False, "normalized": False}
            if token["content"] in names
            else token
            for token in added
            # Left over of the special ones: a single character, which would be a trap in ordinary text.
            if token["content"] in names or not token["special"]
        ],
        # Would only add BOS and EOS, and names them by the old spelling; see `text_prefix`.
        "post_processor": None,
        # Cutting or padding prompts is never right here, and some files come with it switched on.
        "truncation": None,
        "padding": None,
    }


def _build(spec: Spec) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(orjson.dumps(spec).decode())
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"tokenizer.json: the tokenizers library cannot read it: {error}") from error


def _vocabulary(
    spec: Spec,
    added: list[dict[str, Any]],
    special_tokens: Mapping[str, int],
    vocab_size: int,
    eos_ids: frozenset[int],
) -> Vocabulary:
    decoder = spec.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        to_bytes = _byte_level_bytes
    elif kinds & {"ByteFallback", "Metaspace"}:
        to_bytes = _sentencepiece_bytes
    else:
        raise ModelError(
            f"tokenizer.json: its decoder is {decoder.get('type')!r}; those known are byte-level BPE and "
            "SentencePiece (with byte fallback or Metaspace)"
        )
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):
        vocab = {piece: id_ for id_, (piece, _) in enumerate(vocab)}
    table = [b""] * vocab_size
    for piece, id_ in vocab.items():
        if id_ < vocab_size:
            table[id_] = to_bytes(piece)
    for token in added:
        table[token["id"]] = token["content"].encode()
    for id_ in (*special_tokens.values(), *eos_ids):
        table[id_] = b""
    return Vocabulary(tuple(table), eos_ids, any(_strips_leading_space(step) for step in steps))


def _strips_leading_space(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Strip":
        return bool(step.get("content") == " " and step.get("start"))
    return step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the other 68 bytes from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()
_LATIN_1_BYTES = {ord(character): byte for character, byte in BYTE_ALPHABET.items()}


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return piece.translate(_LATIN_1_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_WORD_START, " ").encode()
