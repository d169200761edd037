"""Conversations kept: the newest ones, within bounds."""

from __future__ import annotations

from app.store import MESSAGE_OVERHEAD, ConversationStore


def talk(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def test_the_least_recently_used_goes_first() -> None:
    store = ConversationStore(max_count=2, max_bytes=10_000)
    store.put("a", talk("a"))
    store.put("b", talk("b"))
    assert store.get("a") == talk("a")
    store.put("c", talk("c"))
    assert store.get("b") is None
    assert store.get("a") == talk("a")
    assert len(store) == 2


def test_bytes_are_bounded_and_given_back() -> None:
    one = 4 * 100 + MESSAGE_OVERHEAD
    store = ConversationStore(max_count=100, max_bytes=2 * one)
    for name in "abc":
        store.put(name, talk("x" * 100))
        assert store.num_bytes <= 2 * one
    assert store.get("a") is None
    store.put("huge", talk("x" * 10_000))
    assert store.get("huge") is None
    assert store.get("c") is not None
    for name in "bc":
        store.discard(name)
    store.discard("never there")
    assert store.num_bytes == 0


def test_the_same_id_again_replaces() -> None:
    store = ConversationStore(max_count=2, max_bytes=10_000)
    store.put("a", talk("one"))
    store.put("a", talk("two"))
    assert store.get("a") == talk("two")
    assert len(store) == 1
