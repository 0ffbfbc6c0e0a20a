"""The step as a picture: its time on one scale before and after, by phase and by what it was spent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from steptime.explain import GROUPS, PHASES, CorrectedCell
from steptime.report import numbers, palette, svg

_RESOURCE_WORDS = {
    "exposed_communication": "exposed communication",
    "exposed_copy": "exposed copy",
    "idle": "idle",
}
_SMALL_SHARE = 0.005
"""Groups below this share of the step, before and after, are drawn as one row."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One step: what it is called, its time in ns with the interval, and its cells (empty: not broken down)."""

    label: str
    ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    cells: tuple[CorrectedCell, ...] = ()


def kind(cell: CorrectedCell) -> str:
    """What a reader calls the cell's time: `matmul`, `idle: python`, `exposed communication: all_reduce`."""
    if cell.resource == "compute":
        return cell.group
    return f"{_RESOURCE_WORDS.get(cell.resource, cell.resource)}: {cell.group.replace('_', ' ')}"


def _order(cell: CorrectedCell) -> tuple[int, int, str, str]:
    phase = PHASES.index(cell.phase) if cell.phase in PHASES else len(PHASES)
    group = GROUPS.index(cell.group) if cell.resource == "compute" and cell.group in GROUPS else len(GROUPS)
    return phase, group, cell.resource, cell.group


def _filled(x: float, y: float, width: float, height: float, cell: CorrectedCell) -> list[Markup]:
    name = palette.swatch(cell.resource, cell.group)
    edge = "" if width > 3 else " thin"
    drawn = [svg.rect(x, y, width, height, f"seg f-{name}{edge}")]
    over = palette.pattern(name)
    if over and width > 2:
        drawn.append(svg.element("rect", x=x, y=y, width=width, height=height, fill=f"url(#{over})"))
    return drawn


def _tip(cell: CorrectedCell, whole: int) -> str:
    return (
        f"{kind(cell)}, {cell.phase}\n{numbers.nanoseconds(cell.ns)} ns, {numbers.share(cell.ns, whole)} of the step\n"
        f"interval {numbers.nanoseconds(cell.low_ns)} to {numbers.nanoseconds(cell.high_ns)} ns"
    )


def _segment(x: float, y: float, width: float, height: float, cell: CorrectedCell, whole: int) -> Markup:
    drawn = _filled(x, y, width, height, cell)
    name = palette.swatch(cell.resource, cell.group)
    label = cell.group.replace("_", " ") if cell.resource in ("compute", "idle") else kind(cell)
    share = numbers.share(cell.ns, whole)
    if width > max(svg.text_width(label), svg.text_width(share)) + 10:
        middle = x + width / 2
        drawn.append(svg.text(middle, y + height / 2 - 3, label, anchor="middle", class_=f"i-{name}"))
        drawn.append(svg.text(middle, y + height / 2 + 13, share, anchor="middle", class_=f"i-{name} num"))
    elif width > svg.text_width(share) + 4:
        drawn.append(svg.text(x + width / 2, y + height / 2 + 5, share, anchor="middle", class_=f"i-{name} num"))
    return svg.group(*drawn, tip=_tip(cell, whole))


def _phases(cells: Sequence[CorrectedCell], y: float, scale: float) -> list[Markup]:
    drawn, x = [], 0.0
    for phase, members in groupby(cells, key=lambda cell: cell.phase):
        ns = sum(cell.ns for cell in members)
        width = ns * scale
        if width > 3:
            drawn.append(svg.line(x + 1, y, x + width - 1, y, "bracket"))
        for label in (f"{phase} {numbers.duration(ns)}", phase):
            if width > svg.text_width(label):
                drawn.append(svg.text(x + width / 2, y + 16, label, anchor="middle", class_="soft"))
                break
        x += width
    return drawn


def step_bars(bars: Sequence[Bar], width: float) -> Markup:
    """The steps as stacked bars on one time scale: phases in order, groups within them, labels where they fit."""
    scale = (width - 2) / max(1, *(bar.ns for bar in bars))
    drawn: list[Markup] = []
    y, height = 0.0, 46.0
    for bar in bars:
        drawn.append(svg.text(0, y + 15, bar.label, class_="strong"))
        time = numbers.duration_interval(bar.ns, bar.low_ns, bar.high_ns)
        drawn.append(svg.text(svg.text_width(bar.label) + 14, y + 15, time, class_="num"))
        y += 24
        cells = sorted((cell for cell in bar.cells if cell.ns > 0), key=_order)
        if not cells:
            drawn.append(
                svg.group(
                    svg.rect(0, y, bar.ns * scale, height, "seg whole"), tip=f"{bar.label}: {time}, not broken down"
                )
            )
        x = 0.0
        for cell in cells:
            drawn.append(_segment(x, y, cell.ns * scale, height, cell, bar.ns))
            x += cell.ns * scale
        y += height
        if cells:
            drawn.extend(_phases(cells, y + 6, scale))
            y += 22
        y += 20
    label = "; ".join(f"{bar.label} {numbers.duration(bar.ns)}" for bar in bars)
    return svg.drawing(width, y - 8, f"The step as stacked bars. {label}", drawn)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One kind of time: `cells` has a tuple for each bar; `swatch` is a palette name."""

    label: str
    swatch: str
    cells: tuple[tuple[CorrectedCell, ...], ...]

    def ns(self, bar: int) -> int:
        return sum(cell.ns for cell in self.cells[bar])

    def bounds(self, bar: int) -> tuple[int, int]:
        """The interval of a sum in ns: the sums of the ends, which contains it whatever the cells' dependence."""
        return _bounds(self.cells[bar])


def _rows(bars: Sequence[Bar]) -> list[_Row]:
    """One row a kind of time, largest first; what is small everywhere becomes one last row, so that nothing is lost."""
    swatches = {kind(cell): palette.swatch(cell.resource, cell.group) for bar in bars for cell in bar.cells}
    rows = [
        _Row(
            label=label,
            swatch=swatch,
            cells=tuple(tuple(sorted((c for c in bar.cells if kind(c) == label), key=_order)) for bar in bars),
        )
        for label, swatch in swatches.items()
    ]
    rows = [row for row in rows if any(row.ns(index) for index in range(len(bars)))]
    rows.sort(key=lambda row: [-row.ns(index) for index in range(len(bars))])
    small = [row for row in rows if all(row.ns(i) < _SMALL_SHARE * bar.ns for i, bar in enumerate(bars))]
    if len(small) < 2:
        return rows
    kept = [row for row in rows if row not in small]
    cells = tuple(tuple(cell for row in small for cell in row.cells[index]) for index in range(len(bars)))
    return [*kept, _Row(label=f"{len(small)} smaller groups", swatch="other", cells=cells)]


def _bounds(cells: Sequence[CorrectedCell]) -> tuple[int, int]:
    return sum(cell.low_ns for cell in cells), sum(cell.high_ns for cell in cells)


def _value(row: _Row, bars: Sequence[Bar]) -> str:
    """The row's time: with its interval, or before and after, for which there is no room with intervals."""
    if len(bars) == 1:
        return numbers.duration_interval(row.ns(0), *row.bounds(0))
    return " → ".join(numbers.duration(row.ns(index)) for index in range(len(bars)))


def group_rows(bars: Sequence[Bar], width: float) -> Markup:
    """What the time went to, one row a group, with the interval of each; a second bar in the row is the step after.

    Below 600 px the label stands above the bar, beside it otherwise.
    """
    bars = [bar for bar in bars if bar.cells]
    rows = _rows(bars)
    wide = width >= 600
    left, right = (230.0, 190.0) if wide else (0.0, 0.0)
    room = width - left - right - 4
    most = max((max(row.ns(i), row.bounds(i)[1]) for row in rows for i in range(len(bars))), default=1)
    scale = room / max(1, most)
    drawn: list[Markup] = []
    y, thick = 0.0, 14.0 if len(bars) == 1 else 10.0
    for row in rows:
        block = len(bars) * (thick + 3)
        top = y if wide else y + 20
        base = top + block / 2 + 4 if wide else y + 14
        drawn.append(svg.rect(0, base - 11, 12, 12, f"seg f-{row.swatch}"))
        value = _value(row, bars)
        label = row.label.replace("exposed communication", "exposed")
        room_for_label = left - 27 if wide else width - 27 - svg.text_width(value)
        drawn.append(svg.text(19, base, svg.fit(label, room_for_label)))
        drawn.append(svg.text(width, base, value, anchor="end", class_="num"))
        for index, bar in enumerate(bars):
            drawn.extend(_group_bar(row.cells[index], left, top + index * (thick + 3), thick, scale, bar))
            if row is rows[0] and len(bars) > 1:
                drawn.append(
                    _bar_name(bar, row.cells[index], left, top + index * (thick + 3) + thick - 1, scale, width - right)
                )
        y = top + block + (9 if wide else 14)
    label = "; ".join(f"{row.label} {_value(row, bars)}" for row in rows)
    return svg.drawing(width, y, f"Time by group. {label}", drawn)


def _group_bar(
    cells: Sequence[CorrectedCell], x: float, y: float, thick: float, scale: float, bar: Bar
) -> list[Markup]:
    drawn, start = [], x
    for cell in cells:
        length = cell.ns * scale
        drawn.append(svg.group(*_filled(x, y, length, thick, cell), tip=_tip(cell, bar.ns)))
        x += length
    low, high = _bounds(cells)
    if high > low:
        drawn.append(svg.whisker(start + low * scale, start + high * scale, y + thick / 2, 3, "error"))
    return drawn


def _bar_name(bar: Bar, cells: Sequence[CorrectedCell], x: float, y: float, scale: float, most: float) -> Markup:
    """The bar's name behind its interval, or within the bar when there is no room behind it."""
    end = x + max(sum(cell.ns for cell in cells), _bounds(cells)[1]) * scale + 6
    if end + svg.text_width(bar.label, 11) <= most or not cells:
        return svg.text(end, y, bar.label, class_="tiny")
    return svg.text(x + 5, y, bar.label, class_=f"small i-{palette.swatch(cells[0].resource, cells[0].group)}")
