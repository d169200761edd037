"""The `tickwire` command: reads the command line, runs one command, and turns expected errors into
messages and exit codes.

Knows: the commands and their arguments (those of `serve` are made from the settings schema). Does not
know: how any command does its work. What is slow to import (torch, numba, uvicorn) is imported by the
command that needs it, so `--version` and `--help` answer at once.

Exit codes: 0 done, 1 it failed, 2 the command line or the settings are wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import Any

from app import __version__
from app.settings import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    Loaded,
    Settings,
    SettingsError,
    allowed,
    as_toml,
    default_text,
    flag,
    load_settings,
    variable,
)

CANNOT_LISTEN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EAFNOSUPPORT)

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except SettingsError as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`| head`). The interpreter must not try to flush to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tickwire", description="A chat backend that runs the language model itself.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"tickwire {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_pull(commands)
    _add_chat(commands)
    _add_top(commands)
    _add_replay(commands)
    return parser


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="load the model and serve it",
        description="Load the model and serve it until interrupted.",
        epilog="Every setting can also be a variable (TICKWIRE_PORT=9000; PORT works too) or a key of a TOML "
        "file (port = 9000). The command line wins over variables, and variables over the file. The file "
        f"is --config, else ${CONFIG_VARIABLE}, else ./{CONFIG_FILE} if it is there.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_serve)
    _add_config(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in effect as a TOML file, and leave"
    )
    settings = parser.add_argument_group("settings")
    for name in Settings.model_fields:
        _add_setting(settings, name)


def _add_pull(commands: Any) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch and convert a model ahead of the first start",
        description="Fetch and convert a model, and check that it can be served.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_pull)
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="what `tickwire serve --model` takes (default: the model that `tickwire serve` would serve)",
    )
    _add_config(parser)
    _add_setting(parser, "cache_dir")


def _add_chat(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="chat with a running server in this terminal",
        description="Chat with a running server. Ctrl-C stops an answer; at the prompt it leaves.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_chat)
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="ask this alone, print the answer, and leave"
    )
    parser.add_argument(
        "--url", default="ws://127.0.0.1:8000/v1/responses", help="the server (default: %(default)s)"
    )
    parser.add_argument("--model", help="model to ask for (default: the one being served)")
    parser.add_argument(
        "--system", metavar="TEXT", help="instructions that the model gets before the conversation"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.6,
        metavar="T",
        help="0 (always the likeliest) to 2 (wild) (default: %(default)s)",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"for a server that asks for one (default: the first in ${variable('api_keys')}, which others "
        "cannot read)",
    )


def _add_top(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="watch a running server's engine in this terminal",
        description="Watch a running server's engine: its memory block by block, the ticks, the queue. "
        "q or Ctrl-C leaves.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_top)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="print one picture, and leave")


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="plan a recorded run again, and compare",
        description="Make the calls of a journal (tickwire serve --record FILE) to a new scheduler, without "
        "a model, and compare its plans with those of the run.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_replay)
    parser.add_argument("file", metavar="FILE", type=Path, help="the journal")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings file (TOML)")


def _add_setting(parser: Any, name: str) -> None:
    """Values stay texts here: the schema converts and checks them, with one kind of error message."""
    text = f"{Settings.model_fields[name].description} Allowed: {allowed(name)}."
    if default_text(name):
        text += f" Default: {default_text(name)}."
    parser.add_argument(
        flag(name), dest=name, metavar="VALUE", default=argparse.SUPPRESS, help=text.replace("%", "%%")
    )


def _load(arguments: argparse.Namespace) -> Loaded:
    flags = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    return load_settings(flags, config=arguments.config)


def _serve(arguments: argparse.Namespace) -> int:
    loaded = _load(arguments)
    if arguments.print_config:
        sys.stdout.write(as_toml(loaded))
        return OK
    from app.server import serve
    from engine.loading.errors import ModelError

    settings = loaded.settings
    try:
        return serve(settings)
    except ModelError as error:
        return _fail(str(error))
    except OSError as error:
        # Negative numbers are those of name resolution. Any other error is no business of the address.
        if error.errno is None or (error.errno >= 0 and error.errno not in CANNOT_LISTEN):
            raise
        reason = str(error.strerror).partition(" (while")[0]
        return _fail(
            f"cannot listen on {settings.host} port {settings.port}: {reason}. "
            f"Choose another with {flag('port')} or {flag('host')}."
        )


def _pull(arguments: argparse.Namespace) -> int:
    settings = _load(arguments).settings
    from engine.loading import ModelError, load

    try:
        # Loading is the proof that what was fetched can be served.
        model = load(settings.model, device=settings.device, cache_dir=settings.cache_dir, progress=_say)
    except ModelError as error:
        return _fail(str(error))
    _say(f"{model.name} is ready to be served")
    return OK


def _chat(arguments: argparse.Namespace) -> int:
    from app.terminal import Options, chat

    api_key = arguments.api_key or os.environ.get(variable("api_keys"), "").split(",")[0].strip() or None
    options = Options(arguments.url, arguments.model, arguments.system, arguments.temperature, api_key)
    return chat(options, arguments.prompt)


def _top(arguments: argparse.Namespace) -> int:
    from app.top import top

    return top(arguments.url, once=arguments.once)


def _replay(arguments: argparse.Namespace) -> int:
    from app.journal import Journal, JournalError
    from engine.replay import NotAJournal, PlansDiffer, replay

    try:
        journal = Journal(arguments.file)
        ticks = replay(journal.config, journal)
    except (JournalError, NotAJournal, PlansDiffer) as error:
        return _fail(str(error))
    print(f"{ticks} ticks, the same plans")
    return OK


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _fail(message: str, code: int = FAILED) -> int:
    for line in message.splitlines():
        _say(f"tickwire: {line}")
    return code


if __name__ == "__main__":
    sys.exit(main())
