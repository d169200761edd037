"""Bar charts as SVG, without a plotting library.

Knows: panels of bars, axes, legends, two colour schemes. Does not know: what is plotted.

Text and lines take their colours from the reader's scheme, light or dark; bars have colours that stand out in
both (Okabe and Ito's, which colour-blind people can tell apart). Each bar tells its value when pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#8c8c8c", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00")

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 14px; font-weight: 600; }
  .small { font-size: 9px; }
  line { stroke: #d0d7de; }
  .axis { stroke: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    line { stroke: #30363d; }
    .axis { stroke: #8b949e; }
  }
"""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 56, 40
_PLOT_HEIGHT = 200
_PANEL_HEIGHT = _TOP + _PLOT_HEIGHT + _BOTTOM


@dataclass(frozen=True, slots=True)
class Panel:
    """A group of bars for each of `groups`, in each group one bar or one part for each of `series`.

    Raises:
        ValueError: a series has not one value for each group.
    """

    title: str
    y_label: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    """None: there is nothing to show."""
    stacked: bool = False
    """The series lie on top of each other instead of side by side."""
    value_format: str = ".3g"
    colours: Sequence[str] = COLOURS

    def __post_init__(self) -> None:
        for name, values in self.series.items():
            if len(values) != len(self.groups):
                raise ValueError(f"series {name!r}: got {len(values)} values, allowed: {len(self.groups)}")

    @property
    def highest(self) -> float:
        columns = [[v or 0.0 for v in column] for column in zip(*self.series.values(), strict=True)]
        return max((sum(c) if self.stacked else max(c) for c in columns), default=0.0)


def svg(panels: Sequence[Panel], width: int = 860) -> str:
    """The panels below each other."""
    height = _PANEL_HEIGHT * len(panels)
    body = "\n".join(_panel(panel, i * _PANEL_HEIGHT, width) for i, panel in enumerate(panels))
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _panel(panel: Panel, top: int, width: int) -> str:
    ticks = _ticks(panel.highest)
    scale = _PLOT_HEIGHT / ticks[-1]
    inner = width - _LEFT - _RIGHT
    parts = [
        f'<g transform="translate(0 {top})">',
        _text(_LEFT, 20, panel.title, "title"),
        *_legend(panel),
        f'<text transform="translate(14 {_TOP + _PLOT_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>",
    ]
    for tick in ticks:
        y = _TOP + _PLOT_HEIGHT - tick * scale
        kind = "grid" if tick else "axis"
        parts.append(f'<line class="{kind}" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", "small", "end"))
    step = inner / max(1, len(panel.groups))
    for index, group in enumerate(panel.groups):
        left = _LEFT + index * step
        kind = "" if step > 60 else "small"
        parts.append(_text(left + step / 2, _TOP + _PLOT_HEIGHT + 18, group, kind, "middle"))
        parts += _bars(panel, index, left + 0.05 * step, 0.9 * step, scale)
    parts.append("</g>")
    return "\n".join(parts)


def _bars(panel: Panel, group: int, left: float, width: float, scale: float) -> list[str]:
    parts, below = [], 0.0
    each = width if panel.stacked else width / max(1, len(panel.series))
    for index, (name, values) in enumerate(panel.series.items()):
        value = values[group]
        if value is None:
            continue
        x = left if panel.stacked else left + index * each
        y = _TOP + _PLOT_HEIGHT - (below + value) * scale
        shown = format(value, panel.value_format)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, each - 1.5):.1f}" height="{value * scale:.1f}"'
            f' fill="{panel.colours[index % len(panel.colours)]}"><title>'
            f"{escape(f'{panel.groups[group]}, {name}: {shown}')}</title></rect>"
        )
        if panel.stacked:
            below += value
        elif each >= 18:
            parts.append(_text(x + each / 2, y - 3, shown, "small", "middle"))
    return parts


def _legend(panel: Panel) -> list[str]:
    parts, x = [], float(_LEFT)
    for index, name in enumerate(panel.series):
        colour = panel.colours[index % len(panel.colours)]
        parts.append(f'<rect x="{x:.0f}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, 39, name))
        x += 14 + 6.8 * len(name) + 16
    return parts


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    class_ = f' class="{kind}"' if kind else ""
    return f'<text{class_} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(highest: float) -> list[float]:
    """From 0 to at least `highest`, in 3 to 6 round steps."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(power * s for s in (0.2, 0.5, 1, 2) if highest <= 5 * power * s)
    return [step * i for i in range(math.ceil(highest / step - 1e-9) + 1)]
