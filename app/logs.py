"""Logs: one JSON object per line on stderr, whoever writes it.

Knows: structlog's and the standard library's set-up. Does not know: what is worth logging.

The engine, and libraries such as uvicorn, log through the standard library; their records end in the
same writer. That writer holds a lock only while it writes one line, so any thread may log.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import orjson
import structlog
from structlog.typing import FilteringBoundLogger

OWN_LOGGERS = ("app", "engine", "kernels", "uvicorn")
"""Standard-library loggers that follow the level that was set. All others speak only from WARNING up:
at debug a compiler such as numba's would bury everything else."""

# orjson escapes what JSON demands: C0, quote, backslash. DEL, C1 and the Unicode line separators may
# stand in JSON, yet they steer terminals and split lines for some readers.
_STEERING = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


def get_logger() -> FilteringBoundLogger:
    """`log.info("event_name", key=value)`. May be called, and its result kept, before `configure`."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def configure(level: str) -> None:
    """Send everything from `level` ("debug", "info", "warning", "error") up to stderr as JSON lines.

    Keys of each line: `level`, `timestamp` (ISO 8601, UTC), `event`; `logger` for the standard library's;
    `exception` (a list of frames, without local variables: those may hold prompts) after an error.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(frames),
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(True)
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[_ToStructlog()], force=True)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(threshold)


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            # structlog knows only the five named levels; libraries make up others in between.
            level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
            get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info)
        except Exception:
            self.handleError(record)


def _to_json(line: dict[str, Any], default: Callable[[Any], Any]) -> bytes:
    try:
        text = orjson.dumps(line, default=default)
    except TypeError:
        # A lone surrogate, a huge integer, a key that is no text: a log line must not raise for that.
        plain = {
            str(key): value if isinstance(value, str | int) else repr(value) for key, value in line.items()
        }
        text = json.dumps(plain).encode()
    return _STEERING.sub(_escape, text)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())
