"""One fixed colour per kind of time, in light and in dark, with an ink that can be read on it.

The hues are Paul Tol's "muted" qualitative scheme (SRON/EPS/TN/09-002, issue 3.2), which stays apart for colour-blind
readers; exposed communication and copies carry a hatching and idle time dots besides, and every row has its label, so
that no meaning hangs on hue alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptime.explain import GROUPS

LIGHT: Mapping[str, str] = {
    "matmul": "#332288",
    "attention": "#88ccee",
    "convolution": "#44aa99",
    "recurrent": "#117733",
    "normalisation": "#ddcc77",
    "elementwise": "#999933",
    "reduction": "#5f6b1f",
    "random": "#cc6677",
    "embedding": "#aa4499",
    "optimizer": "#882255",
    "copy": "#6b8299",
    "other": "#8a8a86",
    "exposed-communication": "#d55e00",
    "exposed-copy": "#e69f00",
    "idle": "#d2d2cb",
}
DARK: Mapping[str, str] = {
    "matmul": "#8f86e8",
    "attention": "#88ccee",
    "convolution": "#44aa99",
    "recurrent": "#3fa564",
    "normalisation": "#ddcc77",
    "elementwise": "#b5b54a",
    "reduction": "#8b9a3c",
    "random": "#de8190",
    "embedding": "#cb74bc",
    "optimizer": "#cd6a9c",
    "copy": "#8aa1b8",
    "other": "#9d9d98",
    "exposed-communication": "#e8772a",
    "exposed-copy": "#e69f00",
    "idle": "#4b4b48",
}
_DARK_INK, _LIGHT_INK = "#16161a", "#ffffff"


def swatch(resource: str, group: str) -> str:
    """The palette's name for a cell; a compute group this version does not know is "other"."""
    if resource == "compute":
        return group if group in GROUPS and group in LIGHT else "other"
    return {"exposed_communication": "exposed-communication", "exposed_copy": "exposed-copy"}.get(resource, "idle")


def pattern(name: str) -> str | None:
    """The id of the SVG pattern laid over the colour, or None for a plain one."""
    return {"exposed-communication": "hatch", "exposed-copy": "cross", "idle": "dots"}.get(name)


def contrast(first: str, second: str) -> float:
    """WCAG 2.2 contrast ratio of two `#rrggbb` colours, 1..21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(colour: str) -> str:
    """Black or white, whichever reads better on `colour`."""
    return max((_DARK_INK, _LIGHT_INK), key=lambda candidate: contrast(colour, candidate))


def variables(colours: Mapping[str, str]) -> str:
    """CSS custom properties: `--c-NAME` the fill, `--i-NAME` the ink on it."""
    return "".join(f"--c-{name}:{colour};--i-{name}:{ink(colour)};" for name, colour in colours.items())


def classes() -> str:
    """CSS classes that use them: `.f-NAME` fills, `.b-NAME` colours an HTML swatch, `.i-NAME` is text on the fill."""
    return "".join(
        f".f-{name}{{fill:var(--c-{name})}}.b-{name}{{background:var(--c-{name})}}.i-{name}{{fill:var(--i-{name})}}"
        for name in LIGHT
    )
