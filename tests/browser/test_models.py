"""What the page knows of the server's models, while keys and connections change."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext

from tests.browser.fake import FakeServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_late_reply_to_an_older_key_changes_nothing(
    context: BrowserContext, fake: FakeServer
) -> None:
    page = await context.new_page()
    await page.goto(f"{fake.origin}/blank")
    known = await page.evaluate(
        """async () => {
          const { Models } = await import("/static/model/models.js");
          const { ServerError } = await import("/static/model/server.js");
          const replies = [];
          const get = () => new Promise((resolve, reject) => replies.push({ resolve, reject }));
          const models = new Models({ get });
          const asked = [models.refresh(), models.refresh()];
          replies[1].resolve({ data: [{ id: "m" }] });
          replies[0].reject(new ServerError(401));
          await Promise.all(asked);
          return { refused: models.refused, list: models.list };
        }"""
    )
    assert known == {"refused": False, "list": [{"id": "m"}]}
