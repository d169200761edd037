"""Chats that are there already: put into the page's store as it keeps them."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

Entry = dict[str, Any]

_PUT = """async ({ entries }) => {
  const opening = indexedDB.open("tickwire");
  await new Promise((resolve) => (opening.onsuccess = resolve));
  // Entries that differ by a millisecond must not come to be equal, or change places, while they are put in.
  const now = Date.now();
  const writing = opening.result.transaction(["conversations", "messages"], "readwrite");
  for (const { conversation, messages } of entries) {
    writing.objectStore("conversations").put({ ...conversation, updated: now - conversation.age });
    for (const message of messages) writing.objectStore("messages").put(message);
  }
  await new Promise((resolve) => (writing.oncomplete = resolve));
  opening.result.close();
}"""

_ALL = """async () => {
  const opening = indexedDB.open("tickwire");
  await new Promise((resolve) => (opening.onsuccess = resolve));
  const reading = opening.result.transaction(["conversations", "messages"]);
  const conversations = reading.objectStore("conversations").getAll();
  const messages = reading.objectStore("messages").getAll();
  await new Promise((resolve) => (reading.oncomplete = resolve));
  opening.result.close();
  return [conversations.result, messages.result];
}"""


def conversation(title: str, *texts: str, age: int = 0, branches: dict[int, str] | None = None) -> Entry:
    """A conversation of these texts, question and answer in turn, the last one shown.

    Args:
        age: in milliseconds, since it was last written to.
        branches: by the place of a text, another one that was in its place before.
    """
    identity = f"c{title}"
    messages: list[Entry] = []

    def message(place: int, text: str, key: str) -> None:
        parent = f"{identity}-{place - 1}" if place else None
        role = ("user", "assistant")[place % 2]
        record = {"id": key, "conversation": identity, "parent": parent, "role": role, "text": text}
        ended = {"status": "completed", "error": None, "stats": None}
        messages.append(record | {"created": 1000 + place} | (ended if place % 2 else {}))

    for place, text in (branches or {}).items():
        message(place, text, f"{identity}-other{place}")
    for place, text in enumerate(texts):
        message(place, text, f"{identity}-{place}")
    head = f"{identity}-{len(texts) - 1}" if texts else None
    setup = {"model": None, "system": "", "sampling": {}}
    record = {"id": identity, "title": title, "created": 1000, "age": age, "head": head, "setup": setup}
    return {"conversation": record, "messages": messages}


async def keep(page: Page, *entries: Entry) -> None:
    """Has the page find these when it is opened again."""
    await page.evaluate(_PUT, {"entries": list(entries)})
    await page.reload()
    await expect(page.locator("body[data-ready]")).to_be_visible()


async def kept(page: Page) -> list[Entry]:
    """All conversations that the page has kept, each with its messages by their ids."""
    conversations, messages = await page.evaluate(_ALL)
    by_id = {each["id"]: each | {"messages": {}} for each in conversations}
    for message in messages:
        if message["conversation"] in by_id:
            by_id[message["conversation"]]["messages"][message["id"]] = message
    return list(by_id.values())
