"""The browser page: `GET /` and `GET /static/...`, with the headers that keep it closed to the outside.

Knows where the page's files lie, what a browser may do with them, and that text travels best compressed. It
does not know what the page does: the page talks to the server through the same endpoints as every client.
"""

from __future__ import annotations

import functools
import gzip
import mimetypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

# Host names, IPv4 and bracketed IPv6 with an optional port: nothing that could end a CSP directive early.
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

# Not every system's table knows these, and a browser told `nosniff` runs no script of another type.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/javascript", ".mjs")
mimetypes.add_type("font/woff2", ".woff2")

_TEXT = {".css", ".html", ".js", ".json", ".svg"}
_DOCUMENTS = {".html", ".svg"}

_HEADERS = {
    # Every load asks again with its ETag, so that a new version of the page is seen at once.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}
_DOCUMENT_HEADERS = {
    "Referrer-Policy": "no-referrer",
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


class _Packed(NamedTuple):
    mtime_ns: int
    data: bytes


@functools.cache
def _packed_files(directory: Path) -> Mapping[str, _Packed]:
    """The text files of a folder, compressed: path -> what it was when the server began."""
    files = (path for path in directory.rglob("*") if path.suffix in _TEXT)
    return {
        os.path.realpath(path): _Packed(path.stat().st_mtime_ns, gzip.compress(path.read_bytes(), mtime=0))
        for path in files
    }


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip: named, or by `*`, and not with `q=0`."""
    weights: dict[str, str] = {}
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.partition(";")
        weights[coding.strip()] = parameter.replace(" ", "")
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and re.fullmatch(r"q=0(\.0*)?", weight) is None


class _PageFiles(StaticFiles):
    """StaticFiles (which refuses every path outside its folder), compressed, with the page's headers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=os.fspath(directory))
        self._packed = _packed_files(directory)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        packed = self._packed.get(os.path.realpath(full_path))
        if packed is None:
            return super().file_response(full_path, stat_result, scope, status_code)
        asked = Headers(scope=scope)
        # A file that was changed since is sent as it is.
        if packed.mtime_ns == stat_result.st_mtime_ns and accepts_gzip(asked.get("accept-encoding", "")):
            response = self._packed_response(packed, FileResponse(full_path, stat_result=stat_result))
            if self.is_not_modified(response.headers, asked):
                response = NotModifiedResponse(response.headers)
        else:
            response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Vary"] = "Accept-Encoding"
        return response

    @staticmethod
    def _packed_response(packed: _Packed, plain: FileResponse) -> Response:
        # The page is many small files, and its headers are a good part of what it weighs.
        headers = {"Content-Encoding": "gzip", "ETag": f'{plain.headers["etag"][:12]}-gzip"'}
        return Response(packed.data, media_type=plain.media_type, headers=headers)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        if Path(path).suffix in _DOCUMENTS:
            response.headers.update(_DOCUMENT_HEADERS)
            response.headers["Content-Security-Policy"] = content_security_policy(
                Headers(scope=scope).get("host", "")
            )
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the page. Raises FileNotFoundError when its files are not there."""
    files = _PageFiles(static_directory())

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index, methods=["GET"]), Mount("/static", files, name="static")]
