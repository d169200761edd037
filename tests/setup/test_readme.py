"""What the README says of the settings is what the schema says."""

from pathlib import Path

from app.settings import Settings, allowed, default_text

README = Path(__file__).parents[2] / "README.md"


def settings_table() -> str:
    rows = ["| Setting | Allowed | Default | Meaning |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = f"`{default_text(name)}`" if default_text(name) else "not set"
        rows.append(f"| `{name}` | {allowed(name)} | {default} | {field.description} |")
    return "\n".join(rows)


def test_the_table_of_settings_is_the_schema():
    stated = (
        README.read_text(encoding="utf-8").split("test_readme.py -->\n")[1].split("\n<!-- /settings -->")[0]
    )
    assert stated == settings_table(), f"put this table into README.md:\n{settings_table()}"
