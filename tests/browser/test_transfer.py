"""Chats as files: what is saved can be read, and what other programs have saved comes in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import FilePayload, Page, expect

from tests.browser.fake import FakeServer, says
from tests.browser.person import ask, choose, last_answer
from tests.browser.records import Entry, conversation, keep, kept

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXPORTS = Path(__file__).parent / "exports"

Shown = list[tuple[str, str]]


async def bring(page: Page, *files: Path | FilePayload) -> list[str]:
    """Imports files. Returns what came of it, line by line."""
    await page.locator("input[type=file]").set_input_files(list(files))  # type: ignore[arg-type]
    dialog = page.get_by_role("dialog", name="Import chats")
    close = dialog.get_by_role("button", name="Close")
    await expect(close).to_be_visible()
    told = await dialog.locator("li").all_inner_texts()
    await close.click()
    return told


def payload(name: str, content: str | bytes) -> FilePayload:
    data = content.encode() if isinstance(content, str) else content
    return {"name": name, "mimeType": "application/json", "buffer": data}


def path_of(entry: Entry, head: str | None = None) -> Shown:
    """Who says what, from the first message to the one that is shown last."""
    path: Shown = []
    key = head or entry["head"]
    while key is not None:
        message = entry["messages"][key]
        path.insert(0, (message["role"], message["text"]))
        key = message["parent"]
    return path


def leaves(entry: Entry) -> list[Shown]:
    """All branches, the shown one first, then by what is said."""
    parents = {message["parent"] for message in entry["messages"].values()}
    keys = [key for key in entry["messages"] if key not in parents]
    return [path_of(entry), *sorted(path_of(entry, key) for key in keys if key != entry["head"])]


async def chats(page: Page) -> dict[str, Entry]:
    return {entry["title"]: entry for entry in await kept(page)}


async def saved(page: Page, act: Coroutine[Any, Any, None]) -> tuple[str, str]:
    """A file that the page gives: its name and its text."""
    async with page.expect_download() as download:
        await act
    file = await download.value
    return file.suggested_filename, await asyncio.to_thread(Path(await file.path()).read_text)


async def choose_of_all(page: Page, entry: str) -> None:
    await page.get_by_role("button", name="Import and export").click()
    await page.get_by_role("menuitem", name=entry).click()


async def test_all_chats_go_out_and_come_in_as_they_were(page: Page, fake: FakeServer) -> None:
    fake.scripts += [says("One.")]
    await ask(page, "Said here")
    await expect(last_answer(page).locator(".figures")).to_contain_text("1 token")
    await keep(page, conversation("Tree", "Q", "A", "Q2", "A2", branches={1: "Other", 2: "Else"}))
    before = await chats(page)
    name, text = await saved(page, choose_of_all(page, "Export all as JSON"))
    assert re.fullmatch(r"Tickwire chats \d{4}-\d\d-\d\d\.json", name)
    document = json.loads(text)
    assert (document["format"], document["version"], len(document["conversations"])) == ("tickwire", 1, 2)
    assert not re.search("responseId|sequence", text)
    assert await bring(page, payload(name, text)) == ["0 chats added", "2 already here"]

    for title in before:
        await choose(page, title, "Delete")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#conversations li")).to_have_count(0)
    assert await bring(page, payload(name, text)) == ["2 chats added"]
    after = await chats(page)
    assert {title: leaves(entry) for title, entry in after.items()} == {
        title: leaves(entry) for title, entry in before.items()
    }
    for title, entry in after.items():
        assert entry["id"] != before[title]["id"]
        assert entry["setup"] == before[title]["setup"]
        assert entry["updated"] == before[title]["updated"]
    (answer,) = [m for m in after["Said here"]["messages"].values() if m["role"] == "assistant"]
    (first,) = [m for m in before["Said here"]["messages"].values() if m["role"] == "assistant"]
    assert (answer["stats"], answer["status"]) == (first["stats"], "completed")
    # What came in is known by the name it had, wherever it goes next.
    assert await bring(page, payload(name, text)) == ["0 chats added", "2 already here"]


async def test_markdown_shows_the_branch_on_screen_and_ends_open_code(page: Page) -> None:
    code = "See:\n\n````md\n```\nnot an end\n```"
    entry = conversation(
        "../A: *b*?\u202e", "# Not a heading of ours", code, "Next", "Done", branches={3: "No"}
    )
    entry["conversation"]["setup"]["system"] = "Be kind."
    await keep(page, entry)
    name, text = await saved(page, choose(page, "../A: *b*?\u202e", "Export as Markdown"))
    assert name == "A b.md"
    assert text == (
        "# ../A: \\*b\\*?\u202e\n\n## System prompt\n\nBe kind.\n\n## You\n\n# Not a heading of ours\n\n"
        f"## Answer\n\n{code}\n````\n\n## You\n\nNext\n\n## Answer\n\nDone\n"
    )


async def test_chats_of_chatgpt(page: Page) -> None:
    told = [
        "1 chat added",
        "1 chat without any text",
        "4 messages or pictures left out: only text can be kept",
    ]
    assert await bring(page, EXPORTS / "chatgpt.json") == told
    chat = (await chats(page))["Capitals of Europe"]
    question = ("user", "What is the capital of France?")
    answer = ("assistant", "Let me look that up.\n\nParis.")
    rest = [("user", "And where is this?"), ("assistant", "That is **Rome**.")]
    assert leaves(chat) == [[question, answer, *rest], [question, ("assistant", "Lyon.")]]
    assert (chat["created"], chat["updated"]) == (1713952800123, 1713952990654)
    assert await bring(page, EXPORTS / "chatgpt.json") == ["0 chats added", "1 already here", told[1]]


async def test_chats_of_open_webui(page: Page) -> None:
    assert await bring(page, EXPORTS / "open_webui.json") == ["2 chats added"]
    garden = (await chats(page))["Garden plans"]
    question = ("user", "What grows in the shade?")
    shown = [
        question,
        ("assistant", "Ferns."),
        ("user", "How often do I water them?"),
        ("assistant", "Weekly."),
    ]
    assert leaves(garden) == [shown, [question, ("assistant", "Hostas.")]]
    assert garden["setup"]["system"] == "You are a gardener."
    assert (garden["pinned"], garden["created"]) == (True, 1738000000000)
    older = (await chats(page))["Older one"]
    assert leaves(older) == [[("user", "Ping"), ("assistant", "Pong")]]
    assert older["created"] == 1700000000000


async def test_chats_of_llama_cpp(page: Page) -> None:
    told = await bring(page, EXPORTS / "llama_cpp.jsonl", EXPORTS / "llama_cpp.json")
    left_out = "2 messages or pictures left out: only text can be kept"
    assert told == ["2 chats added", left_out, "2 chats added"]
    found = await chats(page)
    sing = ("user", "Sing.")
    assert leaves(found["Sea shanties"]) == [
        [sing, ("assistant", "Yo ho ho!")],
        [sing, ("assistant", "No.")],
    ]
    assert found["Sea shanties"]["setup"]["system"] == "You are a sailor."
    assert leaves(found["Second session"]) == [[("user", "Ahoy"), ("assistant", "Ahoy!")]]
    assert leaves(found["Numbers for ids"]) == [[("user", "One?"), ("assistant", "Two.")]]
    assert leaves(found["Oldest?"]) == [[("user", "Oldest?"), ("assistant", "Oldest.")]]
    assert found["Oldest?"]["created"] == 1720000000000


async def test_of_a_damaged_file_the_good_comes_in_and_of_none_what_was_there_goes(page: Page) -> None:
    await keep(page, conversation("Mine", "Q", "A"))
    lines = (EXPORTS / "llama_cpp.jsonl").read_text().splitlines()
    lines[4] = lines[4][:-9]
    whole = json.loads((EXPORTS / "open_webui.json").read_text())
    cut = json.dumps([whole[0], 5, whole[1]])[:-40]
    newer = json.dumps([{"holiday": 1, "sun": "yes"}])
    told = [
        await bring(page, payload("lines.jsonl", "\n".join(lines))),
        await bring(page, payload("cut.json", cut)),
        await bring(page, payload("other.json", newer)),
        await bring(page, payload("notes.txt", "Dear diary")),
        await bring(page, payload("all.zip", b"PK\x03\x04" + bytes(40))),
        await bring(page, payload("empty.json", "[]")),
    ]
    damaged = "1 chat could not be read: the file is damaged or cut off there"
    assert told[0] == ["2 chats added", damaged, "2 messages or pictures left out: only text can be kept"]
    assert told[1] == ["1 chat added", damaged, "1 entry was no chat"]
    for (reason,), words in zip(
        told[2:], ("found holiday, sun", "no JSON", "Unpack it", "no chats"), strict=True
    ):
        assert words in reason
    assert set(await chats(page)) == {"Mine", "Sea shanties", "Second session", "Garden plans"}


async def test_a_hostile_file_changes_nothing_but_its_own_chats(page: Page) -> None:
    script = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    evil = (
        '{"id":"x","title":'
        + json.dumps(script)
        + ',"__proto__":{"polluted":1},"head":"b","constructor":{"prototype":'
        '{"polluted":1}},"setup":{"model":null,"system":"","sampling":{"__proto__":{"polluted":1},"input":"other",'
        '"temperature":0.5,"stop":[{}]}},"messages":['
        '{"id":"__proto__","parent":null,"role":"user","text":' + json.dumps(script) + ',"created":-1},'
        '{"id":"b","parent":"__proto__","role":"assistant","text":' + json.dumps(script) + ',"created":1e99,'
        '"status":"streaming","responseId":"resp_1","error":{"__proto__":{"polluted":1},"message":7},"stats":[]},'
        '{"id":"c","parent":"d","role":"user","text":"Round"},'
        '{"id":"d","parent":"c","role":"user","text":"and round"},'
        '{"id":null,"parent":null,"role":"user","text":"Nobody"},'
        '{"id":"b","parent":"b","role":"system","text":"twice"},null,7]}'
    )
    told = await bring(
        page, payload("evil.json", '{"format":"tickwire","version":1,"conversations":[' + evil + "]}")
    )
    assert told[0] == "1 chat added"
    (chat,) = await kept(page)
    assert leaves(chat) == [[("user", script), ("assistant", script)]]
    assert chat["setup"] == {"model": None, "system": "", "sampling": {"temperature": 0.5}}
    (answer,) = [m for m in chat["messages"].values() if m["role"] == "assistant"]
    assert answer["status"] == "interrupted"
    assert "responseId" not in answer
    await page.locator("#conversations .open").click()
    await expect(last_answer(page)).to_be_visible()
    assert await page.evaluate("[({}).polluted, [].polluted]") == [None, None]
    await expect(page).not_to_have_title("run")


COUNT_WRITES = """() => {
  window.writes = 0;
  const { transaction } = IDBDatabase.prototype;
  IDBDatabase.prototype.transaction = function (...args) {
    if (args[1] === "readwrite") window.writes++;
    return transaction.apply(this, args);
  };
}"""


async def test_many_chats_are_written_some_dozens_at_once(page: Page) -> None:
    messages = [{"id": "q", "parent": None, "role": "user", "text": "Hello", "created": 1000}]
    chat = {"title": "Again", "created": 1000, "updated": 1000, "head": "q", "messages": messages}
    many = [chat | {"id": f"c{number}"} for number in range(200)]
    await page.evaluate(COUNT_WRITES)
    content = json.dumps({"format": "tickwire", "version": 1, "conversations": many})
    assert await bring(page, payload("many.json", content)) == ["200 chats added"]
    assert len(await kept(page)) == 200
    assert await page.evaluate("writes") <= 20


async def test_files_are_dropped_on_the_page(page: Page) -> None:
    data = await page.evaluate_handle(
        """(text) => {
          const data = new DataTransfer();
          data.items.add(new File([text], "chats.json", { type: "application/json" }));
          return data;
        }""",
        (EXPORTS / "open_webui.json").read_text(),
    )
    cover = page.locator(".drop")
    await page.dispatch_event("#composer", "dragenter", {"dataTransfer": data})
    await expect(cover).to_contain_text("Drop to import chats")
    await cover.dispatch_event("dragleave", {"dataTransfer": data})
    await expect(cover).to_be_hidden()
    await page.dispatch_event("#composer", "dragenter", {"dataTransfer": data})
    await cover.dispatch_event("drop", {"dataTransfer": data})
    await expect(cover).to_be_hidden()
    await expect(page.get_by_role("dialog", name="Import chats")).to_contain_text("2 chats added")
    await page.keyboard.press("Escape")
    await expect(page.locator("#conversations .title")).to_have_text(["Garden plans", "Older one"])
