"""What a section of the page is made of; templates/report.html.j2 draws each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

WIDE_PX, NARROW_PX = 920.0, 350.0
"""Every chart is drawn twice, for a desk and for a phone, because text in a scaled SVG would not stay readable."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph in small type: how to read what stands above."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class Absent:
    """Why a part is not here, and what would bring it."""

    kind: ClassVar[str] = "absent"
    text: str


@dataclass(frozen=True)
class Heading:
    """A heading below the section's."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Drawn:
    """The same chart at both widths."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Figure:
    """A chart and its caption."""

    kind: ClassVar[str] = "figure"
    drawn: Drawn
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: numbers stand right, code in monospace, wide ones may wrap."""

    head: str
    number: bool = False
    code: bool = False
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A table's row; `swatch` is a palette name shown before the first cell, `below` a second line in it."""

    cells: tuple[str, ...]
    swatch: str = ""
    below: str = ""
    total: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; `label` is what a screen reader calls its scrolling frame."""

    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TableBlock:
    """A table in the text, or behind a summary line."""

    kind: ClassVar[str] = "table"
    table: Table
    summary: str = ""


@dataclass(frozen=True)
class Pairs:
    """Names and values."""

    kind: ClassVar[str] = "pairs"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Code:
    """Text as it stands in a file."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Diff:
    """Lines of a unified diff, each with its mark: add, del, at or empty."""

    kind: ClassVar[str] = "diff"
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class RemedyLine:
    """One remedy: verdict, its tone (good, bad, open, none) and what there is to say."""

    name: str
    verdict: str
    tone: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RemedyList:
    """Every remedy."""

    kind: ClassVar[str] = "remedies"
    remedies: tuple[RemedyLine, ...]


@dataclass(frozen=True, kw_only=True)
class FindingBlock:
    """One finding, its evidence behind a summary line."""

    kind: ClassVar[str] = "finding"
    title: str
    text: str = ""
    summary: str = "Evidence"
    pairs: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()


Block = Text | Note | Absent | Heading | Figure | TableBlock | Pairs | Code | Diff | RemedyList | FindingBlock


@dataclass(frozen=True, kw_only=True)
class Section:
    """A numbered section of the page."""

    id: str
    title: str
    blocks: tuple[Block, ...]


def figure(draw: Callable[[float], Markup], caption: str = "") -> Figure:
    """The chart that `draw(width in px)` makes, at both widths."""
    return Figure(Drawn(draw(WIDE_PX), draw(NARROW_PX)), caption)


def table(label: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """A Table of sequences."""
    return Table(label=label, columns=tuple(columns), rows=tuple(rows))
