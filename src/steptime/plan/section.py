"""What every section of a Plan is built of: a strict frozen model, and an option that carries its own documentation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

AppliesTo = Literal["script", "engine", "both"]


class Section(BaseModel):
    """A table of the plan file. Unknown keys and wrong types are errors; nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def option(default: Any, *, applies_to: AppliesTo = "both", ge: float | None = None, gt: float | None = None) -> Any:
    """A field of a section; its docstring is its documentation.

    Args:
        default: the value that changes nothing.
        applies_to: whether an unmodified script, the engine, or both obey it.
        ge: smallest number allowed.
        gt: number it must exceed.
    """
    return Field(default=default, ge=ge, gt=gt, json_schema_extra={"applies_to": applies_to})
