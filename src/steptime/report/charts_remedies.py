"""Predicted against measured: what each remedy was said to save, and what it saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from steptime.report import numbers, svg
from steptime.report.tuning import Remedy


def drawn_here(remedy: Remedy) -> bool:
    """Whether the figure has a row for it."""
    return remedy.measured is not None or (remedy.predicted is not None and remedy.predicted.high_s > 0)


def remedy_dots(remedies: Sequence[Remedy], width: float) -> Markup:
    """Seconds saved per step: the predicted interval as a band with its centre, the measured point with its interval.

    Left out, because the text names them all: remedies without numbers, and those that were not tried because even
    the upper end of their prediction is a loss (one of them could squeeze the rest of the axis to nothing).
    """
    shown = [remedy for remedy in remedies if drawn_here(remedy)]
    if not shown:
        return Markup("")
    ends = [0.0]
    for remedy in shown:
        for estimate in (remedy.predicted, remedy.measured):
            if estimate:
                ends.extend([estimate.s, estimate.low_s, estimate.high_s])
    wide = width >= 600
    left, right = (250.0, 110.0) if wide else (6.0, 6.0)
    low, high = min(ends), max(ends)
    pad = 0.04 * ((high - low) or 1e-9)
    low, high = (low - pad if low < 0 else low), high + pad
    scale = (width - left - right) / (high - low)

    def place(seconds: float) -> float:
        return left + (seconds - low) * scale

    pitch = 34.0 if wide else 52.0
    bottom = len(shown) * pitch + 8
    drawn: list[Markup] = []
    for tick in svg.ticks(low, high, 6 if wide else 4):
        drawn.append(svg.line(place(tick), 0, place(tick), bottom, "zero" if tick == 0 else "grid"))
        drawn.append(
            svg.text(place(tick), bottom + 18, _tick(tick, max(high, -low)), anchor="middle", class_="soft num")
        )
    drawn.append(svg.text(width - right, bottom + 38, "saved per step", anchor="end", class_="soft"))
    for index, remedy in enumerate(shown):
        y = index * pitch + (pitch / 2 if wide else 34)
        if wide:
            drawn.append(svg.text(left - 14, y + 4, svg.fit(remedy.name, left - 18), anchor="end"))
            drawn.append(svg.text(width, y + 4, remedy.verdict, anchor="end", class_=f"verdict v-{remedy.tone}"))
        else:
            drawn.append(svg.text(0, y - 14, svg.fit(remedy.name, width - 90), class_="halo"))
            drawn.append(svg.text(width, y - 14, remedy.verdict, anchor="end", class_=f"verdict halo v-{remedy.tone}"))
        drawn.append(_estimates(remedy, place, y))
    label = "; ".join(f"{remedy.name}: {remedy.verdict}" for remedy in shown)
    return svg.drawing(width, bottom + 44, f"Predicted and measured savings. {label}", drawn)


def _estimates(remedy: Remedy, x: Callable[[float], float], y: float) -> Markup:
    drawn: list[Markup] = []
    tip = remedy.name
    if remedy.predicted:
        band = remedy.predicted
        start, end = x(band.low_s), x(band.high_s)
        drawn.append(svg.rect(start, y - 7, max(2.0, end - start), 14, "predicted"))
        drawn.append(svg.line(x(band.s), y - 7, x(band.s), y + 7, "centre"))
        tip += f"\npredicted {band}"
    if remedy.measured:
        point = remedy.measured
        if point.high_s > point.low_s:
            drawn.append(svg.whisker(x(point.low_s), x(point.high_s), y, 4, "error strong"))
        drawn.append(svg.element("circle", cx=x(point.s), cy=y, r=5, class_="measured"))
        tip += f"\nmeasured {point}"
    return svg.group(*drawn, tip=tip)


def _tick(seconds: float, largest: float) -> str:
    unit, scale = ("s", 1.0) if largest >= 1 else ("ms", 1e3) if largest >= 1e-3 else ("µs", 1e6)
    return numbers.signed_text(f"{seconds * scale:g} {unit}") if seconds else "0"
