"""The ledger: every run, prediction, probe and verdict, kept so that a claim can be held against what happened."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from steptime.errors import SteptimeError
from steptime.ledger.columns import Columns, read_columns, write_columns
from steptime.ledger.engine import open_file, open_url, reading, told_in_one_line
from steptime.ledger.home import steptime_home, write_whole
from steptime.ledger.schema import (
    DECISIONS,
    RUN_KINDS,
    ArtefactRow,
    Base,
    PredictionRow,
    ProbeRow,
    RunRow,
    VerdictRow,
    now,
)

Row = TypeVar("Row", bound=Base)


class Ledger:
    """An open ledger. Rows it returns are complete and free of the database.

        with Ledger.open() as ledger:
            run = ledger.add_run(RunRow(kind="tune", **provenance.collect(command, cwd)))
            guess = ledger.add_prediction(run, "dropout", predicted_s=0.2, low_s=0.1, high_s=0.3, basis="...")
            ledger.settle_prediction(guess, measured_s=0.21, low_s=0.20, high_s=0.22)

    Any number of processes of one host may hold it open and write. Every method raises `SteptimeError` when the
    database cannot be used (disk full, read-only, locked for long).
    """

    def __init__(self, engine: Engine, folder: Path, where: str) -> None:
        self._engine = engine
        self.folder = folder
        """Where columns, explanations and other files of runs lie."""
        self.where = where

    @classmethod
    def open(cls, path: Path | str | None = None) -> Self:
        """Open the ledger, made or upgraded when needed.

        Args:
            path: a SQLite file, or a database URL (`postgresql+psycopg://...`). None: `$STEPTIME_LEDGER`, else
                `ledger.db` in `steptime_home()`.

        Raises:
            SteptimeError: it was written by a newer steptime, is no ledger, or cannot be opened.
        """
        path = path if path is not None else os.environ.get("STEPTIME_LEDGER") or steptime_home() / "ledger.db"
        path = str(path).removeprefix("sqlite:///")
        if "://" in path:
            engine = open_url(path)
            return cls(engine, steptime_home(), engine.url.render_as_string(hide_password=True))
        file = Path(path).expanduser().absolute()
        return cls(open_file(file), file.parent, str(file))

    def close(self) -> None:
        """Give the database back; further calls open it anew."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_run(self, run: RunRow) -> str:
        """Write a run; its id."""
        return self._add(run)

    def finish_run(
        self,
        run_id: str,
        *,
        status: str,
        exit_code: int | None = None,
        step_s: float | None = None,
        step_low_s: float | None = None,
        step_high_s: float | None = None,
        seeds: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> None:
        """Write how a run ended, with what became known meanwhile; a None leaves what stands."""
        known = {"exit_code": exit_code, "step_s": step_s, "step_low_s": step_low_s, "step_high_s": step_high_s}
        known |= {"seeds": None if seeds is None else dict(seeds), "plan": None if plan is None else dict(plan)}
        known["hardware"] = hardware
        with self._writing() as session:
            row = self._get(session, RunRow, run_id)
            row.status = status
            row.ended = now()
            for name, value in known.items():
                if value is not None:
                    setattr(row, name, value)

    def runs(self, *, limit: int | None = None, kind: str | None = None) -> list[RunRow]:
        """All runs, or those of one kind, the newest first.

        Raises:
            SteptimeError: there is no such kind.
        """
        if kind is not None and kind not in RUN_KINDS:
            raise SteptimeError(f"there is no kind {kind!r}", where="runs", mend=f"one of {', '.join(RUN_KINDS)}")
        query = select(RunRow).order_by(RunRow.created.desc(), RunRow.id).limit(limit)
        return self._read(query if kind is None else query.where(RunRow.kind == kind))

    def run(self, run_id: str) -> RunRow:
        """The run whose id starts with `run_id`.

        Raises:
            SteptimeError: none or several do.
        """
        found = self._read(select(RunRow).where(RunRow.id.startswith(run_id, autoescape=True)).limit(3))
        exact = [row for row in found if row.id == run_id]
        if len(found) == 1 or exact:
            return (exact or found)[0]
        what = "no run has this id" if not found else f"several runs begin so: {', '.join(row.id for row in found)}"
        mend = "`steptime runs` lists them" if not found else "give more of the id"
        raise SteptimeError(what, where=f"run {run_id!r}", mend=mend)

    def add_prediction(
        self, run_id: str, remedy: str, predicted_s: float, low_s: float, high_s: float, basis: str
    ) -> str:
        """Write a prediction of seconds saved a step; it is on disk when this returns. Its id."""
        if not low_s <= predicted_s <= high_s:
            raise SteptimeError(
                f"the interval {low_s:g} .. {high_s:g} s does not hold the prediction {predicted_s:g} s",
                where=f"prediction of {remedy}",
            )
        return self._add(
            PredictionRow(run=run_id, remedy=remedy, predicted_s=predicted_s, low_s=low_s, high_s=high_s, basis=basis)
        )

    def settle_prediction(self, prediction_id: str, measured_s: float, low_s: float, high_s: float) -> None:
        """Write what was measured beside what was predicted; once only, so that no prediction is fitted afterwards.

        Raises:
            SteptimeError: it is settled already.
        """
        with self._writing() as session:
            row = self._get(session, PredictionRow, prediction_id)
            if row.settled is not None:
                raise SteptimeError("is settled already", where=f"prediction {prediction_id}")
            row.settled = now()
            row.measured_s, row.measured_low_s, row.measured_high_s = measured_s, low_s, high_s

    def predictions(self, run_id: str | None = None) -> list[PredictionRow]:
        """The predictions of a run, or of all runs, the oldest first."""
        query = select(PredictionRow).order_by(PredictionRow.created, PredictionRow.id)
        return self._read(query if run_id is None else query.where(PredictionRow.run == run_id))

    def add_verdict(
        self,
        run_id: str,
        remedy: str,
        *,
        decision: str,
        why: str,
        speed_ratio: float | None = None,
        speed_low: float | None = None,
        speed_high: float | None = None,
        blocks: int | None = None,
        alpha: float | None = None,
        quality: Mapping[str, Any] | None = None,
        prediction_id: str | None = None,
    ) -> str:
        """Write what was decided about a remedy, and the numbers behind it (units: see `VerdictRow`). Its id."""
        if decision not in DECISIONS:
            raise SteptimeError(f"{decision!r} is none of {', '.join(DECISIONS)}", where=f"verdict on {remedy}")
        return self._add(
            VerdictRow(
                run=run_id,
                prediction=prediction_id,
                remedy=remedy,
                decision=decision,
                why=why,
                speed_ratio=speed_ratio,
                speed_low=speed_low,
                speed_high=speed_high,
                blocks=blocks,
                alpha=alpha,
                quality=None if quality is None else dict(quality),
            )
        )

    def verdicts(self, run_id: str) -> list[VerdictRow]:
        """The verdicts of a run, the oldest first."""
        return self._read(
            select(VerdictRow).where(VerdictRow.run == run_id).order_by(VerdictRow.created, VerdictRow.id)
        )

    def add_probe(self, calibration: Mapping[str, Any], *, run_id: str | None = None) -> str:
        """Write a calibration as JSON values; its `fingerprint`, `device` and `quiet` become columns. Its id."""
        return self._add(
            ProbeRow(
                run=run_id,
                fingerprint=str(calibration["fingerprint"]),
                device=calibration.get("device"),
                quiet=calibration.get("quiet"),
                calibration=dict(calibration),
            )
        )

    def probes(self, fingerprint: str | None = None) -> list[ProbeRow]:
        """The calibrations of a machine, or of all, the newest first."""
        query = select(ProbeRow).order_by(ProbeRow.created.desc(), ProbeRow.id)
        return self._read(query if fingerprint is None else query.where(ProbeRow.fingerprint == fingerprint))

    def add_artefact(self, run_id: str, kind: str, path: Path, *, rows: int | None = None) -> str:
        """Note a file of a run with its digest; its id.

        Raises:
            SteptimeError: the file cannot be read.
        """
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SteptimeError(f"cannot be read ({error.strerror})", where=str(path)) from error
        path = path.absolute()
        inside = path.is_relative_to(self.folder)
        shown = str(path.relative_to(self.folder)) if inside else str(path)
        return self._add(ArtefactRow(run=run_id, kind=kind, path=shown, rows=rows, sha256=digest))

    def artefacts(self, run_id: str) -> list[ArtefactRow]:
        """The files of a run, the oldest first."""
        query = select(ArtefactRow).where(ArtefactRow.run == run_id)
        return self._read(query.order_by(ArtefactRow.created, ArtefactRow.id))

    def write_json(self, run_id: str, kind: str, value: Mapping[str, Any]) -> Path:
        """Keep JSON of a run (a tune's result, say) as `records/<run>/<kind>.json`, an artefact of that kind."""
        path = self.folder / "records" / run_id / f"{kind}.json"
        write_whole(path, json.dumps(value, indent=1).encode())
        self.add_artefact(run_id, kind, path)
        return path

    def write_explanation(self, run_id: str, explanation: Mapping[str, Any]) -> Path:
        """Keep the JSON of a run's explanation as a file, and note it in the run."""
        path = self.write_json(run_id, "explanation", explanation)
        with self._writing() as session:
            self._get(session, RunRow, run_id).explanation = str(path.relative_to(self.folder))
        return path

    def explanation(self, run_id: str) -> dict[str, Any] | None:
        """The JSON of a run's explanation; None when it has none.

        Raises:
            SteptimeError: the file is gone or broken.
        """
        run = self.run(run_id)
        if run.explanation is None:
            return None
        path = self.folder / run.explanation
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SteptimeError(f"the explanation of run {run.id} is unreadable ({error})", where=str(path)) from error

    def write_columns(
        self, run_id: str, *, rank: int, pid: int, series: Mapping[str, Sequence[float] | npt.NDArray[np.generic]]
    ) -> Path:
        """Keep the series of one process of a run (see `columns`)."""
        path = write_columns(self._columns(run_id), rank=rank, pid=pid, series=series)
        self.add_artefact(run_id, "columns", path, rows=sum(len(values) for values in series.values()))
        return path

    def columns(self, run_id: str) -> Columns:
        """The series of all processes of a run; a broken file is named in `dropped`."""
        return read_columns(self._columns(run_id))

    def _columns(self, run_id: str) -> Path:
        return self.folder / "columns" / run_id

    def _add(self, row: Base) -> str:
        with self._writing() as session:
            session.add(row)
        return row.id  # pyright: ignore[reportAttributeAccessIssue]  # every table has one

    def _read(self, query: Any) -> list[Any]:
        with told_in_one_line(self.where), Session(reading(self._engine), expire_on_commit=False) as session:
            return list(session.scalars(query))

    def _get(self, session: Session, table: type[Row], key: str) -> Row:
        row = session.get(table, key)
        if row is None:
            raise SteptimeError(f"no {table.__tablename__.rstrip('s')} has the id {key!r}", where=self.where)
        return row

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        with told_in_one_line(self.where), Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session
