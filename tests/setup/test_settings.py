"""Where a setting's value comes from, and what is said when it cannot be used."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.settings import Settings, SettingsError, as_toml, default_cache_dir, load_settings


def write(directory: Path, text: str, name: str = "tickwire.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "port", "source"),
    [
        ({}, {}, None, 8000, "default"),
        ({}, {}, "port = 1", 1, "tickwire.toml"),
        ({}, {"PORT": "2"}, "port = 1", 2, "PORT"),
        ({}, {"PORT": "2", "TICKWIRE_PORT": "3"}, "port = 1", 3, "TICKWIRE_PORT"),
        ({"port": "4"}, {"PORT": "2", "TICKWIRE_PORT": "3"}, "port = 1", 4, "--port"),
        ({"port": "4"}, {}, None, 4, "--port"),
        ({}, {"PORT": "", "TICKWIRE_PORT": ""}, "port = 1", 1, "tickwire.toml"),
    ],
)
def test_the_strongest_source_wins(tmp_path, flags, environ, toml, port, source):
    if toml:
        write(tmp_path, toml)
    loaded = load_settings(flags, environ, directory=tmp_path)
    assert loaded.settings.port == port
    assert loaded.sources["port"].removeprefix(f"{tmp_path}/") == source


def test_sources_mix_field_by_field(tmp_path):
    write(tmp_path, 'host = "file"\nmax_num_seqs = 5\nthreads = 1')
    environ = {
        "TICKWIRE_MAX_NUM_SEQS": "6",
        "TICKWIRE_ALLOWED_ORIGINS": "https://a.example, http://b.example:81",
    }
    got = load_settings({"threads": "7"}, environ, directory=tmp_path).settings
    assert (got.host, got.max_num_seqs, got.threads, got.port) == ("file", 6, 7, 8000)
    assert got.allowed_origins == ("https://a.example", "http://b.example:81")


def test_the_file_is_the_named_one_else_the_variables_else_the_directorys(tmp_path):
    write(tmp_path, "port = 1")
    by_variable = str(write(tmp_path, "port = 2", "variable.toml"))
    by_name = str(write(tmp_path, "port = 3", "named.toml"))
    environ = {"TICKWIRE_CONFIG": by_variable}
    assert load_settings({}, {}, directory=tmp_path).settings.port == 1
    assert load_settings({}, environ, directory=tmp_path).settings.port == 2
    assert load_settings({}, environ, by_name, directory=tmp_path).settings.port == 3


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [
        ("/caches", Path("/caches/tickwire")),
        ("", Path.home() / ".cache/tickwire"),
        ("rel", Path.home() / ".cache/tickwire"),
    ],
)
def test_default_cache_dir_follows_xdg(tmp_path, xdg, expected):
    assert default_cache_dir({"XDG_CACHE_HOME": xdg}) == expected
    assert load_settings({}, {"XDG_CACHE_HOME": xdg}, directory=tmp_path).settings.cache_dir == expected


def test_a_home_directory_is_expanded(tmp_path):
    write(tmp_path, 'cache_dir = "~/models"')
    assert load_settings({}, {}, directory=tmp_path).settings.cache_dir == Path.home() / "models"


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "message"),
    [
        ({"port": "x"}, {}, "", "port: got 'x' (from --port), allowed: an integer from 0 to 65535"),
        (
            {},
            {"TICKWIRE_PORT": "65536"},
            "",
            "port: got '65536' (from TICKWIRE_PORT), allowed: an integer from 0 to",
        ),
        ({}, {"PORT": "-1"}, "", "port: got '-1' (from PORT), allowed: an integer from 0 to 65535"),
        ({}, {}, "port = true", "port: got True (from {file}), allowed: an integer"),
        ({}, {}, 'port = "80"', "port: got '80' (from {file}), allowed: an integer"),
        ({"port": "1"}, {}, "port = 1.5", "port: got 1.5 (from {file}), allowed: an integer"),
        ({"threads": "0"}, {}, "", "threads: got '0' (from --threads), allowed: an integer of at least 1"),
        ({"prefix_cache": "maybe"}, {}, "", "got 'maybe' (from --prefix-cache), allowed: true or false"),
        ({}, {}, "prefix_cache = 1", "prefix_cache: got 1 (from {file}), allowed: true or false"),
        (
            {},
            {"TICKWIRE_ADMISSION": "greedy"},
            "",
            "allowed: paged or reserve_max or reserve_pow2 or static",
        ),
        (
            {"record": "~nobody-here/x"},
            {},
            "",
            "record: got '~nobody-here/x' (from --record), allowed: a path",
        ),
        ({"send_timeout_s": "nan"}, {}, "", "got 'nan' (from --send-timeout-s), allowed: a number above 0"),
        ({}, {}, "send_timeout_s = inf", "got inf (from {file}), allowed: a number above 0"),
        (
            {"log_level": "loud"},
            {},
            "",
            "log_level: got 'loud' (from --log-level), allowed: debug or info or",
        ),
        ({"host": ""}, {}, "", "host: got '' (from --host), allowed: a text that is not empty"),
        (
            {},
            {"TICKWIRE_ALLOWED_ORIGINS": "https://a/"},
            "",
            "got 'https://a/' (from TICKWIRE_ALLOWED_ORIGINS)",
        ),
        ({}, {}, "prot = 1", "unknown key prot in {file}; did you mean port?"),
        ({}, {}, "[serve]\nport = 1", "unknown key serve in {file}; known: host, port,"),
        ({}, {"TICKWIRE_PROT": "1"}, "", "unknown variable TICKWIRE_PROT; did you mean TICKWIRE_PORT?"),
        ({}, {"TICKWIRE_port": "1"}, "", "unknown variable TICKWIRE_port; did you mean TICKWIRE_PORT?"),
        ({}, {}, "port = ", "{file} is not a TOML file: "),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, flags, environ, toml, message):
    file = write(tmp_path, toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ, directory=tmp_path)
    assert message.replace("{file}", str(file)) in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path):
    with pytest.raises(SettingsError) as caught:
        load_settings({"port": "x", "threads": "y"}, {}, directory=tmp_path)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["port", "threads"]


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_named_file_must_be_readable(tmp_path, name):
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load_settings({}, {}, str(tmp_path / name))


def test_a_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes('host = "é"'.encode("latin-1"))
    with pytest.raises(SettingsError, match="is not a TOML file"):
        load_settings({}, {}, str(path))


# What a person could have written into any of the fields: unusual texts above all.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
anything = st.fixed_dictionaries(
    {},
    optional={
        "host": texts,
        "port": st.integers(0, 65535),
        "model": texts,
        "served_model_name": texts,
        "threads": st.integers(1, 2**40),
        "cache_dir": texts.filter(lambda text: not text.startswith("~") and "\0" not in text).map(Path),
        "prefix_cache": st.booleans(),
        "record": st.none() | st.just(Path("/tmp/journal")),
        "allowed_origins": st.lists(
            st.sampled_from(["https://a.example", 'http://"b"', "http://c\x7f\\"])
        ).map(tuple),
        "send_timeout_s": st.floats(min_value=1e-300, allow_infinity=False),
        "log_level": st.sampled_from(["debug", "error"]),
    },
)


@given(values=anything, source=texts)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_printed_settings_can_be_read_back(tmp_path, values, source):
    wanted = Settings(**values)
    loaded = load_settings({}, {}, directory=tmp_path / "none")
    printed = as_toml(type(loaded)(wanted, dict.fromkeys(loaded.sources, source)))
    again = load_settings({}, {}, str(write(tmp_path, printed, "printed.toml")))
    assert again.settings == wanted
    assert set(tomllib.loads(printed)) <= set(Settings.model_fields)


def test_printed_settings_tell_the_sources(tmp_path):
    file = write(tmp_path, "max_num_seqs = 4")
    printed = as_toml(load_settings({"host": "::1"}, {"TICKWIRE_THREADS": "2"}, directory=tmp_path))
    lines = printed.splitlines()
    assert 'host = "::1"  # --host' in lines
    assert "threads = 2  # TICKWIRE_THREADS" in lines
    assert f"max_num_seqs = 4  # {file}" in lines
    assert "port = 8000  # default" in lines
    assert "# max_model_len is not set" in lines


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("0", False), ("on", True)])
def test_a_switch_is_set_by_a_word(tmp_path, text, value):
    by_flag = load_settings({"prefix_cache": text}, {}, directory=tmp_path)
    by_variable = load_settings({}, {"TICKWIRE_PREFIX_CACHE": text}, directory=tmp_path)
    assert by_flag.settings.prefix_cache is by_variable.settings.prefix_cache is value


def test_a_switch_in_a_file_is_a_boolean(tmp_path):
    write(tmp_path, "prefix_cache = false")
    assert load_settings({}, {}, directory=tmp_path).settings.prefix_cache is False


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1
