"""Puts the page's third-party files into this folder, and says whether they are still what they were.

Knows which files of which npm packages the page uses (`lock.json`), and their hashes. It does not know a
registry: `npm pack` asks the one that npm is configured for. Files are as they were published; those that are
no modules have one line more, which makes them modules.

    python static/vendor/fetch.py            check the files that are here against lock.json (no network)
    python static/vendor/fetch.py --update   fetch the versions of PACKAGES anew and rewrite lock.json
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "lock.json"


HIGHLIGHTED = (
    "bash c cpp csharp css diff dockerfile go ini java javascript json kotlin markdown php python ruby rust "
    "shell sql swift typescript xml yaml"
)


@dataclass(frozen=True)
class Package:
    """One npm package: the name of its folder here, and the files to take, each under its own base name."""

    name: str
    version: str
    licence: str
    folder: str
    files: tuple[str, ...]
    export: str = ""
    """The name that its scripts (.js) declare and that is to be their default export; of modules: empty."""


PACKAGES = (
    Package("marked", "18.2.1", "MIT", "marked", ("lib/marked.esm.js", "LICENSE")),
    Package(
        "dompurify",
        "3.5.0",
        "MPL-2.0 OR Apache-2.0",
        "dompurify",
        ("dist/purify.min.js", "LICENSE", "LICENSE-MPL"),
    ),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        "highlightjs",
        ("es/core.min.js", *(f"es/languages/{name}.min.js" for name in HIGHLIGHTED.split()), "LICENSE"),
    ),
    Package(
        "temml",
        "0.13.5",
        "MIT",
        "temml",
        ("dist/temml.min.js", "dist/Temml-Local.css", "dist/Temml.woff2", "LICENSE"),
        export="temml",
    ),
    Package(
        "@fontsource-variable/instrument-sans",
        "5.3.0",
        "OFL-1.1",
        "instrument-sans",
        (
            "files/instrument-sans-latin-wght-normal.woff2",
            "files/instrument-sans-latin-ext-wght-normal.woff2",
            "LICENSE",
        ),
    ),
)


def sha256(data: bytes) -> str:
    """The hex digest under which lock.json records a file."""
    return hashlib.sha256(data).hexdigest()


def problems() -> list[str]:
    """What differs between lock.json and this folder, one line each; empty when all is well."""
    locked = {entry["file"]: entry["sha256"] for entry in json.loads(LOCK.read_text())}
    present = {path.relative_to(HERE).as_posix() for path in HERE.glob("*/*") if path.is_file()}
    found = [f"{name}: not in lock.json" for name in sorted(present - locked.keys())]
    for name, expected in locked.items():
        if name not in present:
            found.append(f"{name}: missing")
        elif (got := sha256((HERE / name).read_bytes())) != expected:
            found.append(f"{name}: sha256 is {got}, lock.json says {expected}")
    return found


def download(package: Package) -> dict[str, bytes]:
    """The wanted files of one package, by path inside it. Raises CalledProcessError when npm fails."""
    with tempfile.TemporaryDirectory() as scratch:
        spec = f"{package.name}@{package.version}"
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", scratch, spec],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        archive = (Path(scratch) / packed.stdout.strip().splitlines()[-1]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name.removeprefix("package/"): member for member in tar.getmembers()}
        contents: dict[str, bytes] = {}
        for file in package.files:
            stream = tar.extractfile(members[file])
            if stream is None:
                raise ValueError(f"{spec}: {file} is not a regular file")
            contents[file] = stream.read()
    return contents


def update() -> None:
    """Fetches every package; then the folder holds their files, lock.json and this one."""
    downloads = [(package, download(package)) for package in PACKAGES]
    for folder in HERE.glob("*/"):
        shutil.rmtree(folder)
    lock = []
    for package, contents in downloads:
        for file, published in contents.items():
            data = published
            if package.export and file.endswith(".js"):
                data += f"\nexport default {package.export};\n".encode()
            target = HERE / package.folder / Path(file).name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
            lock.append(
                {
                    "name": package.name,
                    "version": package.version,
                    "licence": package.licence,
                    "file": target.relative_to(HERE).as_posix(),
                    "sha256": sha256(data),
                }
            )
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")


def main() -> int:
    """Exit status 0 when the folder matches lock.json."""
    if sys.argv[1:] == ["--update"]:
        update()
    elif sys.argv[1:]:
        print(f"unknown arguments {sys.argv[1:]}: allowed are none, or --update", file=sys.stderr)
        return 2
    for line in (found := problems()):
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
