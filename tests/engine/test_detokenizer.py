"""Text deltas: whole characters, nothing of a stop string, and joined the same as decoding in one go."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer, Vocabulary, text_of

BYTES = Vocabulary(tuple(bytes([i]) for i in range(256)), eos_ids=frozenset())


def deltas(
    data: bytes, stop: tuple[str, ...] = (), vocabulary: Vocabulary = BYTES
) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(vocabulary, stop)
    out = [detokenizer.push(b) for b in data]
    out.append(detokenizer.flush())
    return out, detokenizer


def test_a_character_over_several_tokens_comes_out_whole() -> None:
    text = "👩‍👩‍👧‍👦 삼겹살 é नमस्ते"
    out, _ = deltas(text.encode())
    assert "".join(out) == text
    assert "\ufffd" not in "".join(out)
    assert out[:4] == ["", "", "", "👩"]


@given(st.binary(max_size=60))
def test_joined_deltas_equal_one_shot_decoding(data: bytes) -> None:
    out, _ = deltas(data)
    assert "".join(out) == data.decode("utf-8", "replace")


def test_a_real_replacement_character_is_not_held_back() -> None:
    out, _ = deltas("a\ufffdb".encode())
    assert out == ["a", "", "", "\ufffd", "b", ""]


def test_text_is_held_only_as_far_as_a_proper_prefix_of_a_stop_reaches() -> None:
    detokenizer = Detokenizer(BYTES, ("DEFGHIJ",))
    assert [detokenizer.push(ord(c)) for c in "ABCDEFXYDE"] == [
        "A",
        "B",
        "C",
        "",
        "",
        "",
        "DEFX",
        "Y",
        "",
        "",
    ]
    assert detokenizer.flush() == "DE"


def test_nothing_from_a_stop_string_on_is_given_out() -> None:
    out, detokenizer = deltas(b"ABCDEFGHIJKLM", ("DEFGHIJ",))
    assert "".join(out) == "ABC"
    assert detokenizer.stopped_by == "DEFGHIJ"


@pytest.mark.parametrize(
    ("text", "stop", "expected", "by"),
    [
        ("xabcdy", ("abcd", "bc"), "xa", "bc"),
        ("xabcdy", ("abc", "bc"), "x", "abc"),
        ("aaab", ("aab",), "a", "aab"),
        ("end\n\n\n", ("\n\n\n\n\n",), "end\n\n\n", None),
        ("STOP", ("STOP",), "", "STOP"),
    ],
)
def test_the_stop_that_is_completed_first_wins(
    text: str, stop: tuple[str, ...], expected: str, by: str | None
) -> None:
    out, detokenizer = deltas(text.encode(), stop)
    assert ("".join(out), detokenizer.stopped_by) == (expected, by)


def first_completed(text: str, stops: tuple[str, ...]) -> str:
    """The same rule, character by character: an independent oracle."""
    for end in range(1, len(text) + 1):
        matches = [s for s in stops if text[:end].endswith(s)]
        if matches:
            return text[: end - len(max(matches, key=len))]
    return text


@given(
    st.text("aßb😀", max_size=40),
    st.lists(st.text("aßb😀", min_size=1, max_size=5), max_size=4).map(tuple),
    st.data(),
)
def test_stops_do_not_depend_on_how_text_is_cut_into_tokens(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)) | {0, len(raw)})
    pieces = tuple(raw[a:b] for a, b in itertools.pairwise(cuts))
    detokenizer = Detokenizer(Vocabulary(pieces, frozenset()), stops)
    out = ""
    for i in range(len(pieces)):
        out += detokenizer.push(i)
        if detokenizer.stopped_by is not None:
            break
    out += detokenizer.flush()
    assert out == first_completed(text, stops)


def test_the_leading_space_of_a_sentencepiece_answer_is_taken_away_once() -> None:
    vocabulary = Vocabulary((b"", b" Hello", b" there", b" "), frozenset({0}), strip_leading_space=True)
    detokenizer = Detokenizer(vocabulary)
    assert [detokenizer.push(i) for i in (0, 1, 2, 3)] == ["", "Hello", " there", " "]


def test_special_tokens_give_no_text() -> None:
    vocabulary = Vocabulary((b"", b"a"), frozenset({0}))
    detokenizer = Detokenizer(vocabulary)
    assert detokenizer.push(1) + detokenizer.push(0) + detokenizer.push(1) == "aa"


def test_a_space_in_the_middle_of_a_text_is_kept() -> None:
    vocabulary = Vocabulary((b"", b" Hello", b" there"), frozenset({0}), strip_leading_space=True)
    detokenizer = Detokenizer(vocabulary, in_mid_text=True)
    assert [detokenizer.push(token) for token in (1, 2)] == [" Hello", " there"]
    assert text_of([1, 2], vocabulary) == "Hello there"
    assert text_of("é".encode()[:1], BYTES) == "\ufffd"


@pytest.mark.parametrize(
    ("seam", "said", "told"),
    [
        (" ", "lighthouse", "lighthouse"),
        (" ", " lighthouse", "lighthouse"),
        (" ", "  lighthouse", " lighthouse"),
        ("\n    ", "\n    return", "return"),
        ("\n  ", "\n    return", "  return"),
        ("\n  ", "\nreturn", "return"),
        ("\n  ", "return\n  ", "return\n  "),
        (" ", "", ""),
        ("\n ", "\n", ""),
    ],
)
def test_what_stands_at_the_seam_is_not_told_again(seam: str, said: str, told: str) -> None:
    raw = said.encode()
    for cut in range(len(raw) + 1):
        vocabulary = Vocabulary((raw[:cut], raw[cut:]), frozenset())
        detokenizer = Detokenizer(vocabulary, stop=["never"], in_mid_text=True, seam=seam)
        assert detokenizer.push(0) + detokenizer.push(1) + detokenizer.flush() == told
