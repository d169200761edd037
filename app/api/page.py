"""The browser page: `GET /` and `GET /static/...`, with the headers that keep it closed to the outside.

Knows where the page's files lie and what a browser may do with them. It does not know what the page does:
the page talks to the server through the same public endpoints as every other client.
"""

from __future__ import annotations

import mimetypes
import os
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

# Host names, IPv4 and bracketed IPv6 with an optional port: nothing that could end a CSP directive early.
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

# Not every system's table knows these, and a browser told `nosniff` runs no script of another type.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/javascript", ".mjs")
mimetypes.add_type("font/woff2", ".woff2")

_HEADERS = {
    # Every load asks again with its ETag, so that a new version of the page is seen at once.
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def static_directory() -> Path:
    """The folder of the page's files: inside the installed package, or beside `app/` in a source tree.

    Raises FileNotFoundError naming both places when neither has an index.html.
    """
    package = Path(__file__).resolve().parents[1]
    places = [package / "static", package.parent / "static"]
    for place in places:
        if (place / "index.html").is_file():
            return place
    raise FileNotFoundError(f"the page's files are missing: no index.html in {places[0]} or {places[1]}")


def content_security_policy(host: str) -> str:
    """The policy for a page that was asked for under `host` (the Host header's value).

    Not every browser lets `connect-src 'self'` cover a WebSocket to the page's own host, so it is named; a
    Host header that is not plainly a host is left out and only 'self' remains.
    """
    sockets = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            f"connect-src 'self'{sockets}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types dompurify",
        ]
    )


class _PageFiles(StaticFiles):
    """StaticFiles (which refuses every path outside its folder) plus the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        response.headers["Content-Security-Policy"] = content_security_policy(
            Request(scope).headers.get("host", "")
        )
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the page. Raises FileNotFoundError when its files are not there."""
    files = _PageFiles(directory=os.fspath(static_directory()))

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index, methods=["GET"]), Mount("/static", files, name="static")]
