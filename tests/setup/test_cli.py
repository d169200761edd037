"""The `tickwire` command from outside: what it prints, its exit codes, and what it leaves unimported."""

import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app import __version__
from app.cli import main
from app.settings import Settings, flag

ROOT = Path(__file__).parents[2]


def tickwire(
    *arguments: str, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=env, **options,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    """No settings from the machine that the tests run on."""
    monkeypatch.chdir(tmp_path)
    for name in ("PORT", "TICKWIRE_CONFIG", *(f"TICKWIRE_{name.upper()}" for name in Settings.model_fields)):
        monkeypatch.delenv(name, raising=False)


def test_version():
    done = tickwire("--version")
    assert (done.returncode, done.stdout) == (0, f"tickwire {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["serve", "--help"], ["serve", "--print-config"]]
)
def test_what_needs_no_model_imports_nothing_heavy(arguments):
    program = f"""
import sys
from app.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert {"app", "pydantic"} <= loaded
    assert loaded.isdisjoint(
        {"torch", "numba", "numpy", "transformers", "uvicorn", "starlette", "engine", "kernels"}
    )


def test_every_setting_has_a_flag_that_is_obeyed(capsys):
    given = {
        "host": "h", "port": "1", "model": "m", "served_model_name": "s", "device": "cpu",
        "dtype": "float32", "kv_cache_dtype": "fp8", "cuda_graphs": "false", "batch_invariant": "false",
        "threads": "2",
        "max_model_len": "3", "kv_cache_tokens": "32", "max_num_seqs": "4", "token_budget": "5",
        "prefill_chunk": "6", "admission": "static", "chunked_prefill": "false", "prefix_cache": "false",
        "max_queue": "9", "max_queue_per_session": "10", "turn_tokens": "11", "recorded_ticks": "12",
        "record": "/r", "chaos_preempt_every": "13", "chaos_slow_tick_ms": "14.5", "cache_dir": "/c",
        "max_message_bytes": "2048", "log_level": "debug",
        "allowed_origins": "https://a.example,https://b.example", "send_timeout_s": "7.5",
        "shutdown_timeout_s": "8", "api_keys": "k1,k2", "on_disconnect": "continue",
        "resume_grace_s": "9", "handshake_timeout_s": "10.5",
    }  # fmt: skip
    assert set(given) == set(Settings.model_fields)
    assert (
        main(["serve", "--print-config", *(part for name in given for part in (flag(name), given[name]))])
        == 0
    )
    text = capsys.readouterr().out
    assert "k1" not in text, "a secret is not printed"
    printed = tomllib.loads(text)
    expected = Settings.model_validate_strings(given)
    assert expected.api_keys == ("k1", "k2")
    assert printed == {
        **expected.model_dump(exclude={"api_keys"}),
        "cache_dir": "/c",
        "record": "/r",
        "allowed_origins": list(expected.allowed_origins),
    }


def test_help_tells_what_a_flag_allows_and_its_default(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "Port to listen on. 0 takes any free one. Allowed: an integer from 0 to 65535. Default: 8000."
        in words
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["serve", "--port", "x"],
            "tickwire: port: got 'x' (from --port), allowed: an integer from 0 to 65535",
        ),
        (
            ["serve", "--config", "absent.toml"],
            "tickwire: cannot read the settings file absent.toml: No such file",
        ),
        (
            ["pull", "--cache-dir", "~nobody-at-all/x"],
            "tickwire: cache_dir: got '~nobody-at-all/x' (from --cache-dir)",
        ),
        (["serve", "--por", "1"], "unrecognized arguments: --por 1"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_message(arguments, message):
    done = tickwire(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tickwire("serve", "--port", str(port), "--cache-dir", str(tmp_path / "cache"))
    assert done.returncode == 1
    assert done.stderr == (
        f"tickwire: cannot listen on 127.0.0.1 port {port}: Address already in use. "
        "Choose another with --port or --host.\n"
    )
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("host", ["name.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_told(host):
    done = tickwire("serve", "--host", host, "--port", "0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"tickwire: cannot listen on {host} port 0: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["serve", "--port", "0", "--model"], ["pull"]])
def test_a_model_that_is_not_there_is_told(command):
    done = tickwire(*command, "/no/such/model")
    assert done.returncode == 1
    assert done.stderr.startswith("tickwire: model: got '/no/such/model', which is not there; allowed: ")
    assert "Traceback" not in done.stderr


def test_a_cache_of_8_bits_on_a_cpu_is_refused():
    done = tickwire("serve", "--port", "0", "--kv-cache-dtype", "fp8")
    assert done.returncode == 2
    assert done.stderr.endswith("kv_cache_dtype: got 'fp8' with device 'cpu', allowed there: 'auto'\n")
