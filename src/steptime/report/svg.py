"""SVG elements as escaped markup, and the few shapes the charts share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

FONT_PX = 13
"""Size of a chart's text; one unit of every chart's view box is one CSS pixel at its design width."""


def element(name: str, *children: str, **attributes: object) -> Markup:
    """`<name attributes>children</name>`; None attributes are left out, `stroke_width` becomes `stroke-width`.

    Children and attribute values are escaped unless they are Markup.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inside)


def _value(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def group(*children: str, tip: str | None = None, **attributes: object) -> Markup:
    """A `<g>`; with `tip` its children answer to the pointer and to the keyboard."""
    if tip is None:
        return element("g", *children, **attributes)
    return element("g", element("title", tip), *children, class_="tip", tabindex=0, **attributes)


def text(x: float, y: float, content: str, *, anchor: str = "start", class_: str | None = None) -> Markup:
    """A line of text; `y` is its baseline, `anchor` one of start, middle, end."""
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """A rectangle filled by its class; a negative or absent width draws nothing."""
    return element("rect", x=x, y=y, width=max(0.0, width), height=height, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line styled by its class."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def whisker(low: float, high: float, y: float, half: float, class_: str) -> Markup:
    """A horizontal interval with end ticks."""
    return Markup("").join(
        [
            line(low, y, high, y, class_),
            line(low, y - half, low, y + half, class_),
            line(high, y - half, high, y + half, class_),
        ]
    )


def drawing(width: float, height: float, label: str, children: Sequence[str]) -> Markup:
    """The `<svg>`; `label` is what a screen reader says."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=label,
        preserveAspectRatio="xMinYMin meet",
    )


def text_width(content: str, size: float = FONT_PX) -> float:
    """Estimated width in px in a system sans-serif font; on the wide side, so that labels that fit do fit."""
    narrow = sum(character in "iljtfr.,:;'|[]() \u00a0" for character in content)
    wide = sum(character in "mwMWGOQ%×µ" for character in content)
    return size * (0.34 * narrow + 0.88 * wide + 0.58 * (len(content) - narrow - wide))


def fit(content: str, width: float, size: float = FONT_PX) -> str:
    """The text, shortened with an ellipsis until it is estimated to fit into `width` px."""
    if text_width(content, size) <= width:
        return content
    while content and text_width(f"{content}…", size) > width:
        content = content[:-1]
    return f"{content.rstrip()}…"


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers (1, 2, 5 times a power of ten) that span `low`..`high`, about so many."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_decimals(marks: Sequence[float]) -> int:
    """The decimals that tell neighbouring tick marks apart."""
    step = min((after - before for before, after in pairwise(marks)), default=1.0)
    return max(0, -math.floor(math.log10(step) + 1e-9))
