"""Quality: every seed's loss before and after, and the equivalence test's interval against its margin."""

from __future__ import annotations

import math

from markupsafe import Markup

from steptime.report import numbers, svg
from steptime.report.tuning import Loss


def _loss_text(value: float) -> str:
    """Losses differ late in their digits: five significant ones."""
    return numbers.signed_text(f"{value:.5g}")


def difference_text(loss: Loss) -> str:
    """−0.0000022 [−0.000210, 0.000200], margin ±0.000420: all in the decimals of the margin."""
    if loss.difference is None or loss.low is None or loss.high is None or loss.margin is None:
        return numbers.MISSING
    places = numbers.decimals(loss.margin)
    ends = numbers.interval(loss.low, loss.high, 1.0, loss.margin)
    return numbers.signed_text(f"{loss.difference:.{places}f}{numbers.NBSP}{ends}, margin ±{loss.margin:.{places}f}")


def finite_pairs(loss: Loss) -> list[tuple[int, float, float]]:
    """Seed, loss before, loss after, of the pairs in which both are finite."""
    pairs = list(zip(loss.baseline, loss.tuned, strict=False))
    seeds = loss.seeds if len(loss.seeds) == len(pairs) else tuple(range(1, len(pairs) + 1))
    return [
        (seed, before, after)
        for seed, (before, after) in zip(seeds, pairs, strict=True)
        if math.isfinite(before) and math.isfinite(after)
    ]


def paired_seeds(loss: Loss, width: float) -> Markup:
    """One row a seed: the unchanged script's loss (ring) and the tuned one's (dot), joined."""
    rows = finite_pairs(loss)
    if not rows:
        return Markup("")
    seeds, pairs = [seed for seed, _, _ in rows], [(before, after) for _, before, after in rows]
    values = [value for pair in pairs for value in pair]
    low, high = min(values), max(values)
    pad = 0.08 * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad
    left, right, pitch = 70.0, 14.0, 26.0
    scale = (width - left - right) / (high - low)
    bottom = len(pairs) * pitch + 4
    drawn: list[Markup] = []
    marks = svg.ticks(low, high, 6 if width >= 600 else 3)
    places = svg.tick_decimals(marks)
    for tick in marks:
        x = left + (tick - low) * scale
        drawn.append(svg.line(x, 0, x, bottom, "grid"))
        drawn.append(
            svg.text(x, bottom + 18, numbers.signed_text(f"{tick:.{places}f}"), anchor="middle", class_="soft num")
        )
    for index, ((before, after), seed) in enumerate(zip(pairs, seeds, strict=True)):
        y = index * pitch + pitch / 2
        x1, x2 = left + (before - low) * scale, left + (after - low) * scale
        drawn.append(svg.text(0, y + 4, f"seed {seed}", class_="soft num"))
        tip = (
            f"seed {seed}: {_loss_text(before)} before, {_loss_text(after)} after, "
            f"difference {numbers.signed_text(f'{after - before:+.3g}')}"
        )
        drawn.append(
            svg.group(
                svg.line(x1, y, x2, y, "error"),
                svg.element("circle", cx=x1, cy=y, r=5, class_="ring"),
                svg.element("circle", cx=x2, cy=y, r=4.5, class_="measured"),
                tip=tip,
            )
        )
    drawn.append(svg.text(left, bottom + 38, f"{loss.name}: ring before, dot after", class_="soft"))
    return svg.drawing(width, bottom + 44, f"{loss.name} of each seed, before and after", drawn)


def equivalence(loss: Loss, width: float) -> Markup:
    """The mean paired difference with its interval, inside (or not) the margin that counts as the same."""
    if loss.margin is None or loss.difference is None or loss.low is None or loss.high is None:
        return Markup("")
    reach = 1.25 * max(loss.margin, abs(loss.low), abs(loss.high))
    middle, y, bottom = width / 2, 26.0, 52.0
    scale = (width / 2 - 10) / reach
    margin = loss.margin * scale
    drawn = [
        svg.rect(middle - margin, 4, 2 * margin, bottom - 8, "margin-band"),
        svg.line(middle, 0, middle, bottom, "zero"),
    ]
    for value, anchor in ((-loss.margin, "middle"), (0.0, "middle"), (loss.margin, "middle")):
        x = middle + value * scale
        label = "0" if value == 0 else numbers.signed_text(f"{value:+.3g}")
        drawn.append(svg.text(x, bottom + 14, label, anchor=anchor, class_="soft num"))
    tip = f"mean difference {difference_text(loss)}"
    drawn.append(
        svg.group(
            svg.whisker(middle + loss.low * scale, middle + loss.high * scale, y, 6, "error strong"),
            svg.element("circle", cx=middle + loss.difference * scale, cy=y, r=5, class_="measured"),
            tip=tip,
        )
    )
    drawn.append(
        svg.text(
            middle,
            bottom + 34,
            "after − before, mean; the band is the margin",
            anchor="middle",
            class_="soft",
        )
    )
    return svg.drawing(width, bottom + 40, tip, drawn)
