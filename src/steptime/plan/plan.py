"""`Plan`: how a training is run, as one validated value.

plan = Plan.from_toml(Path("plan.toml"))
faster = plan.with_patch({"kernels.dropout": "parallel", "data.prefetch_thread": 2})
faster.to_toml(Path("plan.toml"))
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import tomli_w
from pydantic import Field, ValidationError

from steptime.errors import SteptimeError
from steptime.plan.collectives import CollectivesSection
from steptime.plan.compiler import CompilerSection
from steptime.plan.data import DataSection
from steptime.plan.errors import nearest, plain_error
from steptime.plan.kernels import KernelsSection
from steptime.plan.legality import ScriptFacts, objections
from steptime.plan.optimizer import OptimizerSection
from steptime.plan.precision import PrecisionSection
from steptime.plan.process import ProcessSection
from steptime.plan.section import AppliesTo, Section

VERSION = 1
PlanPatch = Mapping[str, Any]
"""Dotted field name -> new value, e.g. `{"precision.autocast": "bf16"}`; None takes a field back to its default."""

_HEADER = """\
# A steptime plan: how a training is run. Fields left out keep their defaults, which change nothing.
# Use it: steptime run --plan {name} -- python train.py
"""


@dataclass(frozen=True, kw_only=True)
class FieldDoc:
    """One field of the Plan as the reference page shows it."""

    section: str
    name: str
    type: str
    default: Any
    applies_to: AppliesTo
    doc: str


class Plan(Section):
    """Every setting of a run, by section. The default Plan changes nothing."""

    process: ProcessSection = Field(default_factory=ProcessSection)
    precision: PrecisionSection = Field(default_factory=PrecisionSection)
    compiler: CompilerSection = Field(default_factory=CompilerSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    data: DataSection = Field(default_factory=DataSection)
    kernels: KernelsSection = Field(default_factory=KernelsSection)
    collectives: CollectivesSection = Field(default_factory=CollectivesSection)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "plan") -> Self:
        """The Plan of nested `values` (section -> field -> value).

        Raises:
            SteptimeError: an unknown section or field, a wrong type or value; names the field and the mend.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise plain_error(error, where, _known()) from None

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """The Plan in the file.

        Raises:
            SteptimeError: it cannot be read, is not TOML, has another version, or does not validate.
        """
        where = path.name
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise SteptimeError(f"cannot be read ({error.strerror})", where=str(path)) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SteptimeError(f"not valid TOML: {error}", where=str(path)) from None
        version = values.pop("version", None)
        if version is None:
            raise SteptimeError("version is missing", where=where, mend=f"add the line version = {VERSION} at its top")
        if version != VERSION or isinstance(version, bool):
            newer = isinstance(version, int) and version > VERSION
            mend = "upgrade steptime" if newer else f"set version = {VERSION}"
            raise SteptimeError(
                f"version is {version!r}; this steptime reads version {VERSION}", where=where, mend=mend
            )
        return cls.parse(values, where=where)

    def to_toml(self, path: Path) -> None:
        """Writes the non-default fields, always the same bytes for the same Plan; the old file stays until it is whole.

        Raises:
            SteptimeError: the file cannot be written.
        """
        text = self.toml(name=path.name)
        try:
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise SteptimeError(f"cannot be written ({error.strerror})", where=str(path)) from None
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp's 0600 would hide a plan from the team that shares the folder
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            raise SteptimeError(f"cannot be written ({error.strerror})", where=str(path)) from None

    def toml(self, *, name: str = "plan.toml") -> str:
        """The text of the plan file."""
        return _HEADER.format(name=name) + "\n" + tomli_w.dumps({"version": VERSION, **self.agent_json()})

    def agent_json(self) -> dict[str, dict[str, Any]]:
        """Non-default fields by section, as plain JSON values: what the agent in the user's process is told."""
        filled = self.model_dump(mode="json", exclude_defaults=True)
        return {section: filled[section] for section in _sections() if filled.get(section)}

    def with_patch(self, patch: PlanPatch) -> Self:
        """A Plan with the fields of `patch` replaced.

        Raises:
            SteptimeError: a name that is no field, or a value that the field does not take.
        """
        values: dict[str, dict[str, Any]] = {name: dict(fields) for name, fields in self.agent_json().items()}
        known = _known()
        for dotted, value in patch.items():
            section, _, field = dotted.partition(".")
            if field not in known.get(section, []):
                every = [f"{one}.{name}" for one in known[""] for name in known[one]]
                raise SteptimeError(f"{dotted} is not a field of the plan", where="patch", mend=nearest(dotted, every))
            if value is None:
                values.get(section, {}).pop(field, None)
            else:
                values.setdefault(section, {})[field] = value
        return type(self).parse(values, where="patch")

    def difference(self) -> dict[str, Any]:
        """The patch that makes this Plan of the default one."""
        return {
            f"{section}.{name}": value for section, all_ in self.agent_json().items() for name, value in all_.items()
        }

    def check(self, facts: ScriptFacts) -> list[str]:
        """Why this Plan cannot hold for such a script on such a machine: one line a reason, none when it can."""
        return objections(self.difference(), facts)

    @classmethod
    def fields(cls) -> list[FieldDoc]:
        """Every field with its documentation, in the order of the sections."""
        return [
            FieldDoc(
                section=section,
                name=name,
                type=_type_text(info.annotation, info.metadata),
                default=info.default,
                applies_to=info.json_schema_extra["applies_to"],  # type: ignore[index]
                doc=" ".join((info.description or "").split()),
            )
            for section, model in _sections().items()
            for name, info in model.model_fields.items()
        ]


def _sections() -> dict[str, type[Section]]:
    return {name: info.annotation for name, info in Plan.model_fields.items()}  # type: ignore[misc]


def _known() -> dict[str, list[str]]:
    sections = _sections()
    return {"": list(sections), **{name: list(model.model_fields) for name, model in sections.items()}}


_PLAIN = {int: "whole number", float: "number", bool: "true, false", type(None): ""}


def _type_text(annotation: Any, metadata: list[Any]) -> str:
    """The values that a field takes, for a reader of TOML."""
    if annotation in _PLAIN:
        text = _PLAIN[annotation]
    elif getattr(annotation, "__origin__", None) is tuple:
        text = "list of whole numbers"
    else:
        parts = [_type_text(part, []) if not isinstance(part, str) else f'"{part}"' for part in get_args(annotation)]
        text = ", ".join(part for part in parts if part)
    bounds = [f">= {one.ge:g}" for one in metadata if hasattr(one, "ge")]
    bounds += [f"> {one.gt:g}" for one in metadata if hasattr(one, "gt")]
    return " ".join([text, *bounds])
