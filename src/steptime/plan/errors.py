"""pydantic's findings told as one line that names the field and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from steptime.errors import SteptimeError

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}


def nearest(name: str, names: Sequence[str]) -> str:
    """The mend for an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def plain_error(error: ValidationError, where: str, known: dict[str, list[str]]) -> SteptimeError:
    """The first finding of `error`; `known` maps a section ("" for the plan itself) to its field names."""
    found = error.errors()
    first = found[0]
    location = [str(part) for part in first["loc"]]
    dotted = ".".join(location[:2])
    if first["type"] == "extra_forbidden":
        names = known.get(location[0] if len(location) > 1 else "", [])
        kind = "field" if len(location) > 1 else "section"
        return SteptimeError(f"{dotted} is not a {kind} of the plan", where=where, mend=nearest(location[-1], names))
    same_field = [one for one in found if [str(part) for part in one["loc"]][:2] == location[:2]]
    # an element of a list is named by its own value, not by the whole list
    value = first["input"]
    wanted = " or ".join(dict.fromkeys(_wanted(one) for one in same_field))
    return SteptimeError(f"{dotted} is {_shown(value)}", where=where, mend=wanted)


def _wanted(finding: Any) -> str:
    context = finding.get("ctx", {})
    if finding["type"] == "literal_error":
        return "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
    if finding["type"] == "greater_than_equal":
        return f"at least {context['ge']:g}"
    if finding["type"] == "greater_than":
        return f"more than {context['gt']:g}"
    return _TYPES.get(finding["type"]) or str(finding["msg"])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
