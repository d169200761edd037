"""The table, the chart and the verdicts say what the figures say."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from benchmarks.measure import Figures
from benchmarks.report import aims, chart, table

TITLES = {"S0": "static", "S3": "paged"}


def figure(workload: str, arm: str, **changes: float) -> Figures:
    zeros = {field.name: 0 for field in dataclasses.fields(Figures)}
    return Figures(**{**zeros, "workload": workload, "arm": arm, "useful_tokens_rate": 10.0, **changes})


@pytest.mark.parametrize(("rate", "verdict"), [(20.0, "met"), (19.9, "MISSED")])
def test_paged_is_aimed_at_twice_static(rate, verdict):
    (line,) = aims([figure("a", "S0"), figure("a", "S3", useful_tokens_rate=rate)])
    assert line.startswith(f"{verdict}: on a paged makes {rate / 10:.2f} times")


@pytest.mark.parametrize(("used", "verdict"), [(0.96, "met"), (0.959, "MISSED")])
def test_utilisation_is_aimed_at_where_the_trace_is_like_sharegpt(used, verdict):
    (line,) = aims([figure("c", "S3", utilisation=used)])
    assert line.startswith(f"{verdict}: on c paged uses")
    assert aims([figure("a", "S3", utilisation=used)]) == []


def test_what_was_not_run_is_not_judged():
    assert aims([figure("a", "S0"), figure("b", "S3")]) == []


def test_the_table_has_a_line_for_each_arm_under_its_headings():
    *_, heading, static, paged = table(
        [figure("a", "S0"), figure("a", "S3", useful_tokens_rate=25.0)], "s"
    ).split("\n")
    assert static.split()[:3] == ["S0", "1.00x", "10"]
    assert paged.split()[:3] == ["S3", "2.50x", "25"]
    assert len(heading) == len(static) == len(paged)


def test_speed_is_drawn_as_a_multiple_of_static_and_as_it_is_without_it():
    both = [figure("a", "S0"), figure("a", "S3", useful_tokens_rate=25.0)]
    assert "a, S3 paged: 2.5" in titles(chart(both, TITLES, "m", "s"))
    assert "a, S3 paged: 25" in titles(chart(both[1:], TITLES, "m", "s"))


def test_a_workload_that_static_did_not_serve_has_no_multiple_of_it():
    drawing = chart([figure("a", "S0"), figure("e", "S3")], TITLES, "m", "s")
    assert "a, S0 static: 1" in titles(drawing)
    assert not any(t.startswith("e, S3 paged: 1") for t in titles(drawing))


def titles(drawing: str) -> set[str]:
    return {t.text for t in ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}title")}
