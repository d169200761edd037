"""`tickwire top`: the engine of a running server, drawn in the terminal.

Knows: the JSON of GET /debug/engine, and the terminal. Does not know: anything of the server's inside.

`picture` is a pure function from a snapshot to lines; around it is a thin loop that fetches, draws and
listens for `q`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import shutil
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from app.terminal import printable

REFRESH_S = 1.0
ANSWER_S = 10.0
"""How long the server has to answer: an engine tells between two ticks, and a tick may be a long one."""

KINDS = (("used", "#"), ("reserved", "-"), ("internal", "x"), ("cached", "c"), ("free", "."))
"""Of token slots: a name and what the bar shows it with."""
NAMES = {"internal": "lost"}

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; and back."""
HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


class TopError(Exception):
    """There is nothing to draw; the message says why, fit to print."""


# -- the picture ------------------------------------------------------------------------------------------


def picture(snapshot: dict[str, Any], width: int, height: int) -> list[str]:
    """The snapshot as at most `height` lines of at most `width` characters.

    Raises:
        KeyError, TypeError: it is no snapshot of an engine.
    """
    fixed = [*_head(snapshot), "", *_memory(snapshot, width), "", *_policies(snapshot), ""]
    left = height - len(fixed)
    blocks = _blocks(snapshot["blocks"], width, most=max(1, left // 2 - 1))
    left -= len(blocks) + 1
    tables = _side_by_side(_rows(snapshot["running"], left), _queue(snapshot["waiting"], left))
    lines = [*fixed, *blocks, "", *tables]
    return [printable(" ".join(line.splitlines()))[:width].rstrip() for line in lines[:height]]


def _head(snapshot: dict[str, Any]) -> list[str]:
    stats, config, recent = snapshot["stats"], snapshot["config"], snapshot["recent"]
    state = f"FAILED: {stats['failure']}" if stats["failure"] else f"admission {config['admission']}"
    hits, queried = stats["hit_tokens"], stats["queried_tokens"]
    return [
        f"tickwire top  {snapshot['model']}  {state}",
        f"{recent['sampled_per_s']:.1f} tokens/s  {recent['computed_per_s']:.1f} computed/s  "
        f"{recent['mean_ms']:.1f} ms a tick  {stats['ticks']} ticks  {stats['restarts']} restarts",
        f"{stats['running']} of {config['max_num_seqs']} rows  {stats['waiting']} waiting  "
        f"{stats['preemptions']} preempted  prefix hits {_share(hits, queried)} of {queried} prompt tokens",
    ]


def _memory(snapshot: dict[str, Any], width: int) -> list[str]:
    memory, sums = snapshot["memory"], snapshot["memory_over_ticks"]
    total = memory["total"]
    held = sums["used"] + sums["reserved"] + sums["internal"]
    shares = "  ".join(
        f"{sign} {NAMES.get(kind, kind)} {_share(memory[kind], total)}" for kind, sign in KINDS
    )
    return [
        f"memory: {total} token slots",
        _bar([(memory[kind], sign) for kind, sign in KINDS], total, width),
        shares,
        f"of what was held over all ticks: used {_share(sums['used'], held)}  "
        f"reserved {_share(sums['reserved'], held)}  lost inside {_share(sums['internal'], held)}  "
        f"lost outside {_share(sums['external'], held)}",
    ]


def _bar(parts: list[tuple[int, str]], total: int, width: int) -> str:
    """One line in which each part is as long as its share. The ends are rounded, so all add up."""
    bar, done = "", 0
    for count, sign in parts:
        done += count
        bar += sign * (round(done * width / total) - len(bar))
    return bar


def _policies(snapshot: dict[str, Any]) -> list[str]:
    """What runs, and what the others would have taken on the same arrivals."""
    memory, sums, stats = snapshot["memory"], snapshot["memory_over_ticks"], snapshot["stats"]
    real = {
        "slots": memory["used"] + memory["reserved"] + memory["internal"],
        "running": stats["running"],
        "waiting": stats["waiting"],
        "ticks": sums["ticks"],
        "used": sums["used"],
        "allocated": sums["used"] + sums["reserved"] + sums["internal"],
    }
    arms = {f"this ({snapshot['config']['admission']})": real, **snapshot["shadow"]}
    lines = [f"{'the same requests under':<26}{'slots':>9}{'rows':>7}{'waiting':>9}{'ticks':>10}{'used':>9}"]
    for name, arm in arms.items():
        lines.append(
            f"{name:<26}{arm['slots']:>9}{arm['running']:>7}{arm['waiting']:>9}{arm['ticks']:>10}"
            f"{_share(arm['used'], arm['allocated']):>9}"
        )
    return lines


def _blocks(blocks: dict[str, Any], width: int, most: int) -> list[str]:
    """A legend, and the map on at most `most` lines. Where a character must stand for several blocks, it is
    their most frequent kind."""
    all_blocks: str = blocks["map"]
    group = -(-len(all_blocks) // (width * most))
    shown = all_blocks
    if group > 1:
        groups = (all_blocks[at : at + group] for at in range(0, len(all_blocks), group))
        shown = "".join(Counter(each).most_common(1)[0][0] for each in groups)
    legend = "  ".join(f"{sign} {meaning}" for sign, meaning in blocks["legend"].items())
    size = f"{len(all_blocks)} blocks" if group == 1 else f"{len(all_blocks)} blocks, {group} a character"
    return [f"{size}:  {legend}", *(shown[at : at + width] for at in range(0, len(shown), width))]


def _rows(running: list[dict[str, Any]], most: int) -> list[str]:
    lines = [f"{'row':>4} {'sequence':<12}{'prompt':>7}{'answer':>7}{'computed':>9}{'blocks':>7}  session"]
    for each in sorted(running, key=lambda each: int(each["row"])):
        note = "  ended" if each["is_padding"] else ""
        lines.append(
            f"{each['row']:>4} {each['id']:<12}{each['prompt_tokens']:>7}{each['output_tokens']:>7}"
            f"{each['computed_tokens']:>9}{each['blocks']:>7}  {each['session']}{note}"
        )
    return _cut(lines, most)


def _queue(waiting: list[dict[str, Any]], most: int) -> list[str]:
    lines = [f"{'session':<10}{'waiting':>8}"]
    lines += [f"{each['session']:<10}{each['count']:>8}" for each in waiting]
    return _cut(lines, most)


def _cut(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    shown = max(most - 1, 0)
    return [*lines[:shown], f"... {len(lines) - shown} more"][: max(most, 0)]


def _side_by_side(left: list[str], right: list[str]) -> list[str]:
    column = max((len(line) for line in left), default=0) + 4
    count = max(len(left), len(right))
    left, right = (lines + [""] * (count - len(lines)) for lines in (left, right))
    return [f"{a:<{column}}{b}" for a, b in zip(left, right, strict=True)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


# -- the loop ---------------------------------------------------------------------------------------------


def top(url: str, *, once: bool) -> int:
    """Draw until `q` or Ctrl-C; with `once`, or where nobody looks at a terminal, print one picture. Returns
    0, or 1 if there is nothing to draw."""
    try:
        address = debug_address(url)
        if once or not sys.stdout.isatty():
            print("\n".join(_draw(address)))
        else:
            _watch(address)
    except TopError as error:
        print(f"tickwire: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def debug_address(url: str) -> str:
    """Where the server tells about its engine, from any of its addresses.

    Raises:
        TopError: it is no address of a server.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise TopError(f"--url: got {url!r}, allowed: an address like http://127.0.0.1:8000")
    return parts._replace(path="/debug/engine", query="", fragment="").geturl()


def _watch(address: str) -> None:
    lines = _draw(address)  # while the screen is still the old one, for the message if there is no server
    with _other_screen(), contextlib.suppress(KeyboardInterrupt):
        while True:
            text = "".join(f"{line}{TO_LINE_END}\r\n" for line in lines[:-1]) + f"{lines[-1]}{TO_LINE_END}"
            sys.stdout.write(HOME + text + TO_SCREEN_END)
            sys.stdout.flush()
            if _wants_to_leave():
                return
            lines = _draw(address)


def _draw(address: str) -> list[str]:
    size = shutil.get_terminal_size()
    try:
        return picture(_fetch(address), size.columns, size.lines)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TopError(f"what {address} tells is no picture of an engine: {error!r}") from error


def _fetch(address: str) -> dict[str, Any]:
    # A proxy for the outer world cannot reach this machine's own addresses.
    is_local = urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_local else []))
    try:
        with opener.open(address, timeout=ANSWER_S) as response:
            snapshot: dict[str, Any] = json.load(response)
            return snapshot
    except urllib.error.HTTPError as error:
        raise TopError(f"what listens at {address} shows no engine: HTTP status {error.code}") from error
    except http.client.HTTPException as error:
        raise TopError(f"what listens at {address} is no Tickwire server: {error!r}") from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise TopError(f"no server at {address} ({reason}); start one with: tickwire serve") from error


@contextlib.contextmanager
def _other_screen() -> Iterator[None]:
    """The terminal's other screen, and keys that are read without Enter; back to how it was, whatever
    happens."""
    import termios
    import tty

    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        sys.stdout.write(ENTER)
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        if keyboard is not None and before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _wants_to_leave() -> bool:
    """Waits for a refresh's time, or for a key; whether it was `q`."""
    keyboard = [sys.stdin] if sys.stdin.isatty() else []
    readable, _, _ = select.select(keyboard, [], [], REFRESH_S)
    return bool(readable) and sys.stdin.read(1) in ("q", "Q", "")
