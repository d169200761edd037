"""The page's files over HTTP: headers, fresh copies, nothing outside the folder; vendored files' hashes."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.api.page import accepts_gzip, content_security_policy, page_routes, static_directory


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()), base_url="http://chat.example:8000")


def test_the_page_comes_under_a_closed_policy(client: TestClient) -> None:
    reply = client.get("/")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    policy = reply.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert "script-src 'self'" in policy
    assert "connect-src 'self' ws://chat.example:8000 wss://chat.example:8000" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"


@pytest.mark.parametrize(
    "host", ["", "a.example; script-src *", "a b", "a.example:80 *", "[::1", "a.example\n"]
)
def test_a_host_that_is_no_host_adds_nothing_to_the_policy(host: str) -> None:
    assert "connect-src 'self';" in content_security_policy(host)
    assert content_security_policy(host) == content_security_policy("")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "[::1]:8000", "chat.example"])
def test_the_own_host_may_be_spoken_to(host: str) -> None:
    assert f"connect-src 'self' ws://{host} wss://{host};" in content_security_policy(host)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("app.js", "text/javascript"),
        ("styles/base.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/dompurify/purify.min.js", "text/javascript"),
        ("vendor/temml/Temml.woff2", "font/woff2"),
    ],
)
def test_files_have_the_type_a_strict_browser_wants(client: TestClient, path: str, kind: str) -> None:
    reply = client.get(f"/static/{path}")
    assert reply.status_code == 200
    assert reply.headers["content-type"].partition(";")[0] == kind


@pytest.mark.parametrize("path", ["/", "/static/app.js"])
def test_a_copy_is_used_only_while_it_is_fresh(client: TestClient, path: str) -> None:
    first = client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    assert client.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert client.get(path, headers={"If-None-Match": '"older"'}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/styles/base.css"])
def test_text_travels_compressed_to_those_who_take_it(client: TestClient, path: str) -> None:
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert packed.num_bytes_downloaded == int(packed.headers["content-length"]) < len(plain.content)
    assert packed.headers["content-type"] == plain.headers["content-type"]
    for reply in (plain, packed):
        assert reply.headers["vary"] == "Accept-Encoding"


def test_each_encoding_has_a_tag_of_its_own(client: TestClient) -> None:
    tags = {}
    for encoding in ("identity", "gzip"):
        tags[encoding] = client.get("/", headers={"Accept-Encoding": encoding}).headers["etag"]
    assert len(set(tags.values())) == 2
    for encoding in tags:
        for known, tag in tags.items():
            reply = client.get("/", headers={"Accept-Encoding": encoding, "If-None-Match": tag})
            assert reply.status_code == (304 if encoding == known else 200)
            assert reply.headers["vary"] == "Accept-Encoding"


def test_what_is_compressed_already_travels_as_it_is(client: TestClient) -> None:
    reply = client.get("/static/vendor/temml/Temml.woff2", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in reply.headers
    assert "vary" not in reply.headers


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("br, gzip;q=0.5", True),
        ("deflate, *", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.0, *", False),
        ("identity, *;q=0", False),
    ],
)
def test_only_who_accepts_gzip_gets_it(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


def test_a_file_changed_after_the_start_is_sent_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("before")
    monkeypatch.setattr("app.api.page.static_directory", lambda: tmp_path)
    client = TestClient(Starlette(routes=page_routes()))
    assert client.get("/").text == "before"
    changed = (tmp_path / "index.html").stat().st_mtime_ns + 1_000_000_000
    (tmp_path / "index.html").write_text("after")
    os.utime(tmp_path / "index.html", ns=(changed, changed))
    assert client.get("/").text == "after"


@pytest.mark.parametrize(
    "path",
    [
        "../pyproject.toml",
        "%2e%2e/pyproject.toml",
        "..%2fpyproject.toml",
        "vendor/../../pyproject.toml",
        "/etc/passwd",
        "",
    ],
)
def test_nothing_outside_the_folder_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/static/{path}").status_code == 404


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch", static_directory() / "vendor" / "fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks its own module up by name.
    monkeypatch.setitem(sys.modules, "fetch", module)
    spec.loader.exec_module(module)
    return module


def test_vendored_files_are_those_of_the_lock(fetch: ModuleType) -> None:
    assert fetch.problems() == []


def test_a_changed_or_added_file_is_noticed(
    fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.js").write_text("changed")
    (tmp_path / "lib" / "new.js").write_text("new")
    (tmp_path / "lock.json").write_text(
        '[{"file": "lib/a.js", "sha256": "0"}, {"file": "lib/gone.js", "sha256": "0"}]'
    )
    monkeypatch.setattr(fetch, "HERE", tmp_path)
    monkeypatch.setattr(fetch, "LOCK", tmp_path / "lock.json")
    found = fetch.problems()
    assert [line.partition(":")[0] for line in found] == ["lib/new.js", "lib/a.js", "lib/gone.js"]
