"""The style sheets: they know start and end, which change sides with the language, not left and right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.api.page import static_directory

SIDES = re.compile(
    r"(?<![\w-])(?:(?:margin|padding|border|scroll-margin|scroll-padding)-(?:left|right)[\w-]*|left|right"
    r"|border-(?:top|bottom)-(?:left|right)-radius)\s*:"
    r"|(?:text-align|float|clear)\s*:\s*(?:left|right)"
)
FOUR = re.compile(r"(?<![\w-])(margin|padding|inset|border-width|border-style)\s*:\s*([^;}]+)")
CORNERS = re.compile(r"(?<![\w-])border-radius\s*:\s*([^;}]+)")


def values(written: str) -> list[str]:
    """What stands between spaces, those in brackets left together."""
    return re.findall(r"(?:[^\s()]|\((?:[^()]|\([^()]*\))*\))+", written.partition("!")[0])


def one_sided(css: str) -> list[str]:
    found = [match[0] for match in SIDES.finditer(css)]
    for match in FOUR.finditer(css):
        four = values(match[2])
        if len(four) == 4 and four[1] != four[3]:
            found.append(match[0])
    for match in CORNERS.finditer(css):
        top_left, top_right, bottom_right, bottom_left = corners(values(match[1]))
        if top_left != top_right or bottom_right != bottom_left:
            found.append(match[0])
    return found


def corners(given: list[str]) -> list[str]:
    return {1: given * 4, 2: given * 2, 3: [*given, given[1 % len(given)]]}.get(len(given), given)


# Where script or a turned shape has to do with the screen's own sides.
PHYSICAL = {"menu": ["inset: 0 auto auto 0"], "settings": ["border-width: 0 1.75px 1.75px 0"]}


def style_sheets() -> list[Path]:
    return sorted((static_directory() / "styles").glob("*.css"))


@pytest.mark.parametrize("sheet", style_sheets(), ids=lambda sheet: sheet.stem)
def test_style_sheets_know_start_and_end_not_left_and_right(sheet: Path) -> None:
    assert one_sided(sheet.read_text()) == PHYSICAL.get(sheet.stem, [])


def test_what_has_a_side_is_noticed() -> None:
    wrong = ["left:0", "margin-left:1px", "float:right", "padding:0 1px 2px 3px", "border-radius:1px 2px"]
    right = ["margin-inline-start:1px", "padding:0 calc(1px + 2px) 1px calc(1px + 2px)", "border-radius:1px"]
    assert [css for css in wrong + right if one_sided(f"a{{{css}}}")] == wrong
