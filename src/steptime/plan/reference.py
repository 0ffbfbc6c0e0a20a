"""The reference page of the plan file, written from the code."""

from __future__ import annotations

from pathlib import Path

from steptime.plan.plan import Plan

BEGIN, END = "<!-- generated: fields -->", "<!-- end of generated -->"


def reference() -> str:
    """Markdown: one table a section, one row a field."""
    lines = [BEGIN]
    section = ""
    for field in Plan.fields():
        if field.section != section:
            section = field.section
            lines += [
                "",
                f"### `[{section}]`",
                "",
                "| field | values | default | obeyed by | |",
                "|---|---|---|---|---|",
            ]
        values = field.type.replace("|", "\\|")
        lines.append(f"| `{field.name}` | {values} | {_default(field.default)} | {field.applies_to} | {field.doc} |")
    return "\n".join([*lines, "", END])


def with_reference(page: str) -> str:
    """`page` with what stands between the marks written anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + reference() + tail


def _default(value: object) -> str:
    if value is None:
        return "unset"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value}"


def write(page: Path) -> None:
    """Writes the reference in `page` anew."""
    page.write_text(with_reference(page.read_text("utf-8")), "utf-8")
