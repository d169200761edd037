"""A chat with the real model, put in order, found again, saved, deleted and brought back."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.person import ask, choose, last_answer
from tests.browser.real.conftest import PATIENCE_MS, set_up

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_keep_find_save_and_bring_back_a_chat(context: BrowserContext, page: Page) -> None:
    await set_up(context, temperature=0, max_output_tokens=40)
    await page.reload()
    question = "Name three rivers in Europe. Answer in one sentence."
    await ask(page, question)
    said = last_answer(page).locator(".prose")
    await expect(said).to_contain_text(re.compile(r"\w{4,}\W"), timeout=PATIENCE_MS)
    # A few words are enough, if it has not ended by itself.
    await page.keyboard.press("Escape")
    ended = re.compile("completed|length|stopped")
    await expect(last_answer(page)).to_have_attribute("data-state", ended)
    answer = await said.inner_text()
    await page.locator("#conversations .open").focus()
    await page.keyboard.press("F2")
    await page.get_by_role("textbox", name="New title").fill("Rivers")
    await page.keyboard.press("Enter")
    await choose(page, "Rivers", "Pin")
    await expect(page.locator("#conversations h2")).to_have_text(["Pinned"])

    await page.get_by_role("button", name="New chat").first.click()
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    word = max(re.findall(r"[A-Za-z]+", answer), key=len)
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Search").fill(word.upper())
    # The question may have the word, too.
    hit = page.get_by_role("option").filter(has=page.locator("b", has_text="Answer"))
    await expect(hit.locator("mark", has_text=re.compile(f"^{word}$", re.IGNORECASE)).first).to_be_visible()
    await hit.click()
    await expect(page.locator("#transcript .turn.found .prose")).to_have_text(answer, use_inner_text=True)

    async with page.expect_download() as download:
        await choose(page, "Rivers", "Export as JSON")
    file = await download.value
    assert file.suggested_filename == "Rivers.json"
    path = Path(await file.path())
    (saved,) = json.loads(await asyncio.to_thread(path.read_text))["conversations"]
    assert saved["messages"][1]["stats"]["tokens"] > 0

    await choose(page, "Rivers", "Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#conversations li")).to_have_count(0)
    await page.locator("input[type=file]").set_input_files(path)
    dialog = page.get_by_role("dialog", name="Import chats")
    await expect(dialog).to_contain_text("1 chat added")
    await dialog.get_by_role("button", name="Close").click()
    await expect(page.locator("#conversations h2")).to_have_text(["Pinned"])
    await page.locator("#conversations .open").click()
    await expect(page.locator("#transcript .question")).to_have_text(question)
    await expect(last_answer(page).locator(".prose")).to_have_text(answer, use_inner_text=True)
    await expect(last_answer(page).locator(".figures")).to_contain_text("token")
