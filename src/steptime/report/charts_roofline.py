"""The roofline: the step's ops against the ceilings that were measured on this machine.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009: attainable FLOP/s =
min(peak FLOP/s, bandwidth x intensity), intensity in FLOP per byte. Bytes here are an op's inputs and outputs, each
moved once, so an op whose operands stay in a cache can stand above the slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from markupsafe import Markup

from steptime.explain import OpRow, Utilisation
from steptime.report import numbers, palette, svg

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in px."""
_SAME_PLACE_PX = 70.0
"""Circles of one name closer than this share one label."""
MOST_POINTS = 120
"""So many ops are drawn, the longest; a step may have thousands, and the rest would be dust."""
_LABELLED = 10
"""So many ops, the longest first, get their name beside them where there is room."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An op on the roofline; `roof` is what the two ceilings allow at its intensity (None: not probed)."""

    op: OpRow
    intensity: float
    flops_per_s: float
    roof: float | None
    side: str | None


def points(ops: Sequence[OpRow], ceilings: Sequence[Utilisation]) -> list[Point]:
    """The ops with a FLOP formula, bytes and time, longest first, each against the ceilings of its own dtype."""
    by_dtype = {row.dtype: row for row in ceilings if row.work == "arithmetic"}
    found = []
    for op in ops:
        if not op.flops or not op.bytes or op.self_ns <= 0:
            continue
        intensity = op.flops / op.bytes
        roof, side = None, None
        row = by_dtype.get(op.dtype)
        if row and row.ceiling_flops_per_s and row.ceiling_bytes_per_s:
            slope = row.ceiling_bytes_per_s * intensity
            roof = min(row.ceiling_flops_per_s, slope)
            side = "memory" if slope < row.ceiling_flops_per_s else "compute"
        found.append(Point(op=op, intensity=intensity, flops_per_s=op.flops / (op.self_ns / 1e9), roof=roof, side=side))
    return sorted(found, key=lambda point: -point.op.self_ns)


@dataclass(frozen=True)
class _Frame:
    """The plot's box in px and its logarithmic axes (powers of ten)."""

    left: float
    top: float
    right: float
    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return self.left + (math.log10(value) - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (math.log10(value) - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)


def roofline(ops: Sequence[OpRow], ceilings: Sequence[Utilisation], width: float, step_ns: int) -> Markup:
    """Log-log: FLOP per byte across, FLOP/s up; an op's area is its time in the step, its colour its group."""
    shown = points(ops, ceilings)[:MOST_POINTS]
    if not shown:
        return Markup("")
    frame = _frame(shown, ceilings, width)
    drawn = _grid(frame)
    longest = max(point.op.self_ns for point in shown)
    radii = [max(2.5, (20 if width >= 600 else 14) * math.sqrt(point.op.self_ns / longest)) for point in shown]
    circles = [
        (frame.x(point.intensity), frame.y(point.flops_per_s), radius)
        for point, radius in zip(shown, radii, strict=True)
    ]
    taken = [(x - 0.8 * r, y - 0.8 * r, x + 0.8 * r, y + 0.8 * r) for x, y, r in circles]
    lines, labels = _ceilings(frame, ceilings, taken)
    drawn.extend(lines)
    for point, (x, y, radius) in zip(shown, circles, strict=True):
        name = palette.swatch(point.op.resource, point.op.group)
        circle = svg.element("circle", cx=x, cy=y, r=radius, class_=f"point f-{name}")
        drawn.append(svg.group(circle, tip=_tip(point, step_ns)))
    drawn.extend(labels)
    named: list[tuple[str, float, float]] = []
    for point, (x, y, radius) in list(zip(shown, circles, strict=True))[:_LABELLED]:
        label = point.op.name.removeprefix("aten::")
        if any(label == other and math.hypot(x - at_x, y - at_y) < _SAME_PLACE_PX for other, at_x, at_y in named):
            continue
        place = _free(frame, x, y, radius, svg.text_width(label), taken)
        if place:
            taken.append(place)
            named.append((label, x, y))
            drawn.append(svg.text(place[0], place[3] - 4, label, class_="halo"))
    return svg.drawing(width, frame.bottom + 44, "Roofline of the step's ops", drawn)


def _frame(shown: Sequence[Point], ceilings: Sequence[Utilisation], width: float) -> _Frame:
    xs = [point.intensity for point in shown] + [row.ridge for row in ceilings if row.ridge]
    ys = [point.flops_per_s for point in shown] + [
        row.ceiling_flops_per_s for row in ceilings if row.ceiling_flops_per_s
    ]
    wide = width >= 600
    return _Frame(
        left=78.0 if wide else 52.0,
        top=14.0,
        right=width - 12,
        bottom=420.0 if wide else 320.0,
        x_low=math.floor(math.log10(min(xs)) - 0.15),
        x_high=math.ceil(math.log10(max(xs)) + 0.3),
        y_low=math.floor(math.log10(min(ys)) - 0.1),
        y_high=math.ceil(math.log10(max(ys)) + 0.1),
    )


def _grid(frame: _Frame) -> list[Markup]:
    drawn = []
    for power in range(int(frame.x_low), int(frame.x_high) + 1):
        x = frame.x(10.0**power)
        drawn.append(svg.line(x, frame.top, x, frame.bottom, "grid"))
        label = f"{10.0**power:,.0f}" if power >= 0 else f"{10.0**power:g}"
        drawn.append(svg.text(x, frame.bottom + 18, label, anchor="middle", class_="soft num"))
    every = 1 if frame.y_high - frame.y_low <= 6 else 2
    for power in range(int(frame.y_low), int(frame.y_high) + 1, every):
        y = frame.y(10.0**power)
        drawn.append(svg.line(frame.left, y, frame.right, y, "grid"))
        drawn.append(svg.text(frame.left - 8, y + 4, _power(power), anchor="end", class_="soft num"))
    drawn.append(svg.text(frame.right, frame.bottom + 38, "FLOP per byte", anchor="end", class_="soft"))
    drawn.append(svg.text(frame.left + 6, frame.top + 14, "FLOP/s", class_="soft"))
    return drawn


def _power(power: int) -> str:
    scale, prefix = next(
        pair for pair in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (-99, "")) if power >= pair[0]
    )
    return f"{10 ** (power - max(scale, 0)):g} {prefix}".rstrip() if scale >= 0 else f"{10.0**power:g}"


def _ceilings(frame: _Frame, ceilings: Sequence[Utilisation], taken: list[Box]) -> tuple[list[Markup], list[Markup]]:
    """A roof a dtype and one slope a bandwidth, and apart their labels, whose boxes are put into `taken`."""
    drawn, labels = [], []
    low_x, high_x = 10.0**frame.x_low, 10.0**frame.x_high
    bandwidths = sorted({row.ceiling_bytes_per_s for row in ceilings if row.ceiling_bytes_per_s})
    roofs = sorted(
        {
            (row.ceiling_flops_per_s, row.dtype)
            for row in ceilings
            if row.work == "arithmetic" and row.ceiling_flops_per_s
        },
        reverse=True,
    )
    highest = roofs[0][0] if roofs else 10.0**frame.y_high
    for peak, dtype in roofs:
        start = max(low_x, peak / bandwidths[-1]) if bandwidths else low_x
        y = frame.y(peak)
        drawn.append(svg.line(frame.x(start), y, frame.right, y, "roof"))
        label = f"{dtype} {numbers.si(peak, 'FLOP/s')}"
        reach = svg.text_width(label)
        spots = [frame.right - reach - 4, max(frame.x(start), frame.left) + 4, frame.left + 4]
        boxes = [(spot, y - 20, spot + reach, y - 2) for spot in spots]
        box = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), boxes[-1])
        labels.append(svg.text(box[0], y - 6, label, class_="roof-label halo"))
        if box[0] < frame.x(start):
            drawn.append(svg.line(frame.left, y, frame.x(start), y, "leader"))
        taken.append(box)
    for bandwidth in bandwidths:
        start = max(low_x, 10.0**frame.y_low / bandwidth)
        end = min(high_x, highest / bandwidth)
        if start >= end:
            continue
        x1, y1, x2, y2 = frame.x(start), frame.y(start * bandwidth), frame.x(end), frame.y(end * bandwidth)
        drawn.append(svg.line(x1, y1, x2, y2, "roof"))
        labels.extend(_slope_label(frame, numbers.si(bandwidth, "B/s"), (x1, y1, x2, y2), taken))
    return drawn, labels


def _slope_label(frame: _Frame, label: str, ends: Box, taken: list[Box]) -> list[Markup]:
    x1, y1, x2, y2 = ends
    middle_x, middle_y = x1 + 0.3 * (x2 - x1), y1 + 0.3 * (y2 - y1)
    degrees = math.degrees(math.atan2(y2 - y1, x2 - x1))
    reach = svg.text_width(label)
    if math.hypot(x2 - x1, y2 - y1) < reach + 20:
        return []
    taken.append((middle_x - reach / 3, middle_y - reach / 2, middle_x + reach / 3, middle_y))
    content = svg.element(
        "text",
        label,
        x=middle_x,
        y=middle_y - 6,
        text_anchor="middle",
        transform=f"rotate({degrees:.1f} {middle_x:.1f} {middle_y:.1f})",
        class_="roof-label halo",
    )
    return [content]


def _free(frame: _Frame, x: float, y: float, radius: float, reach: float, taken: Sequence[Box]) -> Box | None:
    """A box for a label right, left, above or below of a point that touches no other label; None when there is none."""
    near = 4 + radius
    corners = [(x + near, y - 9), (x - near - reach, y - 9), (x - reach / 2, y - near - 18), (x - reach / 2, y + near)]
    for left, top in corners:
        box = (left, top, left + reach, top + 18)
        inside = box[0] > frame.left and box[2] < frame.right and box[1] > frame.top and box[3] < frame.bottom
        if inside and not any(_overlap(box, other) for other in taken):
            return box
    return None


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _tip(point: Point, step_ns: int) -> str:
    op = point.op
    shapes = " ".join("×".join(map(str, shape)) for shape in op.shapes)
    lines = [
        f"{op.name}, {op.phase}, {op.dtype}",
        shapes,
        f"{numbers.duration(op.self_ns)} per step, {numbers.share(op.self_ns, step_ns)} of the step",
        f"{numbers.si(point.flops_per_s, 'FLOP/s')} at {numbers.plain(point.intensity)} FLOP per byte",
    ]
    if point.roof:
        lines.append(
            f"{point.side}-bound: {numbers.percent(point.flops_per_s / point.roof)} of what the ceilings allow"
        )
    return "\n".join(line for line in lines if line)
