"""Charts are well-formed, complete and true to scale."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.plot import Panel, svg

NS = "{http://www.w3.org/2000/svg}"


def bars(drawing: str) -> dict[str, ET.Element]:
    """By what they say when pointed at."""
    rects = ET.fromstring(drawing).iter(f"{NS}rect")
    return {r.find(f"{NS}title").text: r for r in rects if r.find(f"{NS}title") is not None}


def height(bar: ET.Element) -> float:
    return float(bar.get("height"))


def bottom(bar: ET.Element) -> float:
    return float(bar.get("y")) + height(bar)


def texts(drawing: str) -> set[str]:
    return {t.text for t in ET.fromstring(drawing).iter(f"{NS}text")}


def test_bars_stand_on_the_axis_and_are_as_high_as_their_values():
    drawn = bars(svg([Panel("t", "y", ["a", "b"], {"S0": [1.0, 2.0], "S1": [4.0, None]})]))
    assert set(drawn) == {"a, S0: 1", "b, S0: 2", "a, S1: 4"}
    assert height(drawn["b, S0: 2"]) == pytest.approx(2 * height(drawn["a, S0: 1"]), abs=0.1)
    assert height(drawn["a, S1: 4"]) == pytest.approx(4 * height(drawn["a, S0: 1"]), abs=0.2)
    assert len({round(bottom(bar)) for bar in drawn.values()}) == 1


def test_stacked_parts_lie_on_each_other():
    drawn = bars(svg([Panel("t", "y", ["a"], {"used": [0.25], "lost": [0.75]}, stacked=True)]))
    used, lost = drawn["a, used: 0.25"], drawn["a, lost: 0.75"]
    assert bottom(lost) == pytest.approx(float(used.get("y")), abs=0.2)
    assert used.get("x") == lost.get("x")


@pytest.mark.parametrize("highest", [0.0, 1e-6, 0.37, 1.0, 5.0, 10.0, 19.9, 51.0, 99_999.0])
def test_no_bar_leaves_its_panel(highest):
    (bar,) = bars(svg([Panel("t", "y", ["a"], {"s": [highest]})])).values()
    assert 0 <= height(bar) <= 200
    assert highest == 0 or height(bar) >= 80


def test_titles_axes_groups_and_legend_are_named_and_escaped():
    said = texts(svg([Panel("fast & <slow>", "tokens/s", ["a<b"], {"S&P": [1.0]})]))
    assert {"fast & <slow>", "tokens/s", "a<b", "S&P"} <= said


def test_panels_do_not_overlap():
    panel = Panel("t", "y", ["a"], {"s": [1.0]})
    root = ET.fromstring(svg([panel, panel]))
    first, second = (g.get("transform") for g in root.iter(f"{NS}g"))
    assert first != second
    assert float(root.get("viewBox").split()[3]) == 2 * float(second.split()[1].rstrip(")"))


def test_both_colour_schemes_have_a_colour_for_text():
    style = ET.fromstring(svg([])).find(f"{NS}style").text
    assert "prefers-color-scheme: dark" in style
    assert style.count("text { ") == 2


def test_a_series_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"series 's': got 2 values, allowed: 1"):
        Panel("t", "y", ["a"], {"s": [1.0, 2.0]})
