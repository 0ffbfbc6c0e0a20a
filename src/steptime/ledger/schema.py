"""The ledger's tables. A row read back is an ordinary object: complete, and no longer tied to the database.

Times are UTC and timezone-aware; durations are float seconds; ids are random hex, told to users by a short prefix.
A change here needs a migration beside it (a test compares the two).
"""

from __future__ import annotations

import secrets
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, DateTime, Double, ForeignKey, String, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

RUN_KINDS = ("explain", "tune", "run", "probe", "trial")
RUN_STATUSES = ("running", "finished", "failed", "interrupted")
DECISIONS = ("kept", "rejected", "undecided", "not tried", "refused")


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC time: SQLite forgets the zone, so it is put back on the way out."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Only aware times are stored: a naive one would be read back shifted by the writer's zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value}")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The zone again."""
        return None if value is None else value.replace(tzinfo=UTC)


def now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """48 random bits in hex: among a million rows two share an id with a chance of 0.2%, and the insert then fails."""
    return secrets.token_hex(6)


class Base(MappedAsDataclass, DeclarativeBase, kw_only=True):
    """What all rows share."""

    type_annotation_map = {  # noqa: RUF012 - the attribute SQLAlchemy reads
        datetime: UtcDateTime(),
        float: Double(),
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values; times in ISO 8601."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class RunRow(Base, kw_only=True):
    """One execution of a command, with all that is needed to know later what ran and where."""

    __tablename__ = "runs"
    __table_args__ = (_one_of("kind", RUN_KINDS), _one_of("status", RUN_STATUSES))

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created: Mapped[datetime] = mapped_column(default_factory=now, index=True)
    ended: Mapped[datetime | None] = mapped_column(default=None)
    kind: Mapped[str] = mapped_column(String(16))
    parent: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), default=None, index=True)
    """The run (a tune) that this one (a trial) belongs to; nothing writes trials yet."""
    command: Mapped[list[str]]
    cwd: Mapped[str]
    git: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    """Of the user's code: commit, branch, dirty, diff_sha256 (see provenance.git_state); null outside a repository."""
    python: Mapped[str | None] = mapped_column(default=None)
    torch: Mapped[str | None] = mapped_column(default=None)
    packages: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    host: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    hardware: Mapped[str | None] = mapped_column(default=None)
    """Fingerprint of the machine, as `steptime.hardware` makes it."""
    environment: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    """Environment variables, secrets withheld."""
    seeds: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    plan: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    status: Mapped[str] = mapped_column(String(16), default="running")
    exit_code: Mapped[int | None] = mapped_column(default=None)
    step_s: Mapped[float | None] = mapped_column(default=None)
    """Median untraced step time, seconds; `step_low_s` and `step_high_s` are its interval."""
    step_low_s: Mapped[float | None] = mapped_column(default=None)
    step_high_s: Mapped[float | None] = mapped_column(default=None)
    explanation: Mapped[str | None] = mapped_column(default=None)
    """Path of the explanation's JSON, relative to the ledger's folder."""


class ProbeRow(Base, kw_only=True):
    """One calibration of one machine."""

    __tablename__ = "probes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created: Mapped[datetime] = mapped_column(default_factory=now)
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), default=None)
    fingerprint: Mapped[str] = mapped_column(index=True)
    device: Mapped[str | None] = mapped_column(default=None)
    quiet: Mapped[bool | None] = mapped_column(default=None)
    calibration: Mapped[dict[str, Any]]


class PredictionRow(Base, kw_only=True):
    """Seconds a step that a remedy is expected to save, written before it is tried; the measurement comes beside it."""

    __tablename__ = "predictions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created: Mapped[datetime] = mapped_column(default_factory=now)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    remedy: Mapped[str]
    predicted_s: Mapped[float]
    low_s: Mapped[float]
    high_s: Mapped[float]
    basis: Mapped[str]
    """How the number was reached, for a reader who doubts it."""
    settled: Mapped[datetime | None] = mapped_column(default=None)
    measured_s: Mapped[float | None] = mapped_column(default=None)
    measured_low_s: Mapped[float | None] = mapped_column(default=None)
    measured_high_s: Mapped[float | None] = mapped_column(default=None)


class VerdictRow(Base, kw_only=True):
    """What was decided about a remedy, with the numbers that decided it."""

    __tablename__ = "verdicts"
    __table_args__ = (_one_of("decision", DECISIONS),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created: Mapped[datetime] = mapped_column(default_factory=now)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    prediction: Mapped[str | None] = mapped_column(ForeignKey("predictions.id"), default=None)
    remedy: Mapped[str]
    decision: Mapped[str] = mapped_column(String(16))
    why: Mapped[str]
    speed_ratio: Mapped[float | None] = mapped_column(default=None)
    """Baseline step time over the remedy's; above 1 is faster. `speed_low`, `speed_high`: interval at `alpha`."""
    speed_low: Mapped[float | None] = mapped_column(default=None)
    speed_high: Mapped[float | None] = mapped_column(default=None)
    blocks: Mapped[int | None] = mapped_column(default=None)
    """Pairs of A/B blocks behind the interval."""
    alpha: Mapped[float | None] = mapped_column(default=None)
    """Error level of the interval after correction for the number of remedies tried."""
    quality: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    """Verdict and numbers of the equivalence test; null when quality was not tested."""


class ArtefactRow(Base, kw_only=True):
    """A file that belongs to a run."""

    __tablename__ = "artefacts"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created: Mapped[datetime] = mapped_column(default_factory=now)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    kind: Mapped[str]
    path: Mapped[str]
    """Relative to the ledger's folder where the file lies inside it, else absolute."""
    rows: Mapped[int | None] = mapped_column(default=None)
    sha256: Mapped[str]
