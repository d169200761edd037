"""A chat as token ids: the model's template for the scaffold, and people's words as nothing but text.

Knows: chat templates (Jinja, rendered in transformers' sandbox), and how to tell the scaffold's control
tokens from the same characters typed by a person. Does not know: requests, roles' meaning, the wire.

How: wherever a content spells a control token, or could complete one together with what the template
puts beside it, a mark is set that occurs nowhere else. Then the template is rendered; what still spells
a control token was written by the template. Those become ids, the marks go, and everything is tokenised
as one string by a tokenizer that does not know how control tokens are spelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Loading makes chat templates, so it cannot be imported from here at run time.
    from engine.loading.tokenizer import Tokenizer

_ROLE = re.compile(r"\w[\w-]*")
_MAX_GROWTH = 4
_MAX_SCAFFOLD = 65536
"""A rendered chat may have this many characters, plus _MAX_GROWTH per character given. No real template
comes near; one that repeats itself without end must not fill the memory."""
_SHOWN_OF_KEY = 60

ChatMessage = Mapping[str, Any]
"""{"role", "content"}: texts. An assistant's may have "tool_calls", a list of {"id", "type": "function",
"function": {"name": text, "arguments": object}}; a tool's has "tool_call_id"."""


class TemplateError(ValueError):
    """The template refuses these messages (a role that it does not know, an order it does not like), or it
    fails on them. The message is fit for the client to read.

    Args:
        at: dotted path to what is refused, like "3.tool_calls"; "" if it is the messages as a whole.
    """

    def __init__(self, reason: str, at: str = "") -> None:
        super().__init__(reason)
        self.at = at


class ChatTemplate:
    """A model's chat template.

    Args:
        source: the Jinja text.
        tokenizer: the model's, made with this same template.
        special: names by which the template calls special tokens (`bos_token`, ...) -> spelling.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, special: Mapping[str, str]) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._special = dict(special)
        self._control = tokenizer.control_tokens
        everyone, model_only = set(tokenizer.control_tokens), set(tokenizer.template_tokens)
        self._shields = {
            # What the model itself may have written, like <think>, comes back in its messages; the
            # template looks for it there, and it must become the same tokens again.
            True: _Shield(everyone - model_only),
            False: _Shield(everyone),
        }
        """Is it an assistant's message -> what breaks the spellings in it."""
        self._split = _any_of(everyone)

    def encode(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The prompt for the next message of the chat, or for the rest of its last one.

        For contents that spell no control token these are the ids of transformers' `apply_chat_template`.

        Args:
            add_generation_prompt: end with the beginning of an assistant's message.
            continue_final_message: end within the last message instead, after all of its content but what
                may be part of the next token (`Tokenizer.open_end`).

        Raises:
            TemplateError: the template refuses or fails, it knows no tools and there is something of one, a
                role is no plain word, a text holds a lone surrogate, or the template does not write the
                content that is to be continued exactly once.
        """
        _check(messages)
        if "tool_calls" not in self._source:
            _refuse_tools(messages)
        mark = self._tokenizer.random_spelling()
        shielded = [self._shield(message, mark) for message in messages]
        if continue_final_message:
            # Not from the shielded content: its marks are no part of what is tokenised.
            open_end = self._tokenizer.open_end(messages[-1]["content"])
            rendered = self._render_up_to(shielded, open_end)
        else:
            rendered = self._render(shielded, add_generation_prompt)
        parts = self._split.split(rendered)
        # A capturing split: text and control tokens in turn.
        return self._tokenizer.encode_mixed(
            [self._control[part] if index % 2 else part.replace(mark, "") for index, part in enumerate(parts)]
        )

    def _shield(self, message: ChatMessage, mark: str) -> dict[str, Any]:
        content = self._shields[message["role"] == "assistant"].apply(message["content"], mark)
        shielded = {**message, "content": content}
        # Names and arguments are free text, even the model's own: the template looks for nothing in them.
        shield = self._shields[False]
        if "tool_call_id" in message:
            shielded["tool_call_id"] = shield.apply(message["tool_call_id"], mark)
        if "tool_calls" in message:
            shielded["tool_calls"] = [
                {
                    "id": shield.apply(call["id"], mark),
                    "type": "function",
                    "function": {
                        key: shield.apply_within(part, mark) for key, part in call["function"].items()
                    },
                }
                for call in message["tool_calls"]
            ]
        return shielded

    def _render_up_to(self, messages: list[dict[str, Any]], open_end: str) -> str:
        """Up to `open_end`, with which the last content ends. Templates trim contents; they cannot trim the
        blanks before it, for something else stands there for the end."""
        *before, last = messages
        content = last["content"].removesuffix(open_end)
        end = self._tokenizer.random_spelling()
        rendered = self._render([*before, {**last, "content": content + end}], add_generation_prompt=False)
        if rendered.count(end) != 1:
            raise TemplateError(
                f"the model's chat template writes the last message's content {rendered.count(end)} times, "
                "and it can be continued only where that is once"
            )
        return rendered[: rendered.index(end)]

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        # Half a second, which those who only continue text need not wait for.
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered, _ = render_jinja_template(
                [messages],
                chat_template=self._source,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except Exception as error:  # the template is a program that we did not write: it may raise anything
            raise TemplateError(f"the model's chat template refuses them: {error}") from error
        text: str = rendered[0]
        given = sum(len(text) for text, _ in _texts(messages))
        if len(text) > _MAX_SCAFFOLD + _MAX_GROWTH * given:
            raise TemplateError(f"the model's chat template made {len(text)} characters of {given}")
        return text


class _Shield:
    """Marks that keep a text from spelling, or helping to spell, any of `spellings`."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = list(spellings)
        self._starts = re.compile(f"(?={_any_of(self._spellings).pattern})")
        self._heads = {s[:n] for s in self._spellings for n in range(1, len(s))}
        self._tails = {s[n:] for s in self._spellings for n in range(1, len(s))}
        self._longest = max(map(len, self._spellings), default=0)

    def apply(self, text: str, mark: str) -> str:
        """The text with a mark after the first character of every spelling, and at an edge that is the
        beginning, the end or the middle of one. Templates trim, so an edge is where the words begin."""
        core = text.strip()
        if not core:
            return text
        lead, trail = text[: text.index(core)], text[text.index(core) + len(core) :]
        # Zero-width matches, so that overlapping spellings are all found.
        starts = [match.start() + 1 for match in self._starts.finditer(core)]
        pieces = [core[a:b] for a, b in zip([0, *starts], [*starts, len(core)], strict=True)]
        before = mark if self._opens(core) else ""
        after = mark if any(core[-n:] in self._heads for n in range(1, self._longest)) else ""
        return f"{lead}{before}{mark.join(pieces)}{after}{trail}"

    def apply_within(self, value: Any, mark: str) -> Any:
        """The same of all texts in a JSON value, keys included."""
        match value:
            case str():
                return self.apply(value, mark)
            case dict():
                return {self.apply(key, mark): self.apply_within(part, mark) for key, part in value.items()}
            case list():
                return [self.apply_within(part, mark) for part in value]
        return value

    def _opens(self, core: str) -> bool:
        """Could what the template puts before `core` make a control token with it?"""
        if any(core[:n] in self._tails for n in range(1, self._longest)):
            return True
        return len(core) < self._longest and any(core in spelling for spelling in self._spellings)


def _any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """Captures any of them, of several at one place the longest. Of none: matches nowhere."""
    longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def _check(messages: Sequence[ChatMessage]) -> None:
    for index, message in enumerate(messages):
        role = message["role"]
        if not _ROLE.fullmatch(role):
            raise TemplateError(f"got {role!r}, allowed: letters, digits, '_' and '-'", f"{index}.role")
    for text, at in _texts(messages):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = f"got a lone surrogate at character {error.start}"
            raise TemplateError(f"{got}, allowed: whole characters", at) from error


def _refuse_tools(messages: Sequence[ChatMessage]) -> None:
    for index, message in enumerate(messages):
        if "tool_calls" in message:
            at = f"{index}.tool_calls"
        elif message["role"] == "tool":
            at = f"{index}.role"
        else:
            continue
        raise TemplateError("the model's chat template knows no tools", at)


def _texts(value: object, at: str = "") -> Iterator[tuple[str, str]]:
    """All texts in a JSON value, keys included, with where they are."""
    match value:
        case str():
            yield value, at
        case Mapping():
            for key, part in value.items():
                yield key, at
                yield from _texts(part, f"{at}.{key[:_SHOWN_OF_KEY]}")
        case list() | tuple():
            for index, part in enumerate(value):
                yield from _texts(part, f"{at}.{index}" if at else str(index))
