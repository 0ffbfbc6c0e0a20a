"""Where a report's records come from: JSON files that commands printed, or a run of the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.errors import SteptimeError

_PROVENANCE = (
    "created",
    "kind",
    "command",
    "cwd",
    "git",
    "python",
    "torch",
    "host",
    "hardware",
    "seeds",
    "packages",
    "environment",
)
_TUNE_ARTEFACT = "tune"


@dataclass(frozen=True, kw_only=True)
class Records:
    """What `write_report` takes; None: not given."""

    explanation: Mapping[str, Any] | None = None
    tuning: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


def read_records(names: Sequence[str]) -> Records:
    """The records of JSON files, or of one run.

    Args:
        names: files that `steptime explain --json` or `steptime tune --json` printed (a second explanation is the step
            after), or the id of one run, or its beginning.

    Raises:
        SteptimeError: a file that is missing, is no JSON or is neither record; more records than a report has room
            for; no such run.
    """
    if (
        len(names) == 1
        and not Path(names[0]).exists()
        and Path(names[0]).name == names[0]
        and not names[0].endswith(".json")
    ):
        return _from_ledger(names[0])
    explanations: list[Mapping[str, Any]] = []
    tunings: list[Mapping[str, Any]] = []
    for name in names:
        record = _read(Path(name))
        (tunings if "remedies" in record else explanations).append(record)
    if len(tunings) > 1 or len(explanations) > 2:
        raise SteptimeError(
            "one report shows at most one tune result and two explanations (before, after)",
            mend="write a report for each",
        )
    return Records(
        explanation=explanations[0] if explanations else None,
        after=explanations[1] if len(explanations) > 1 else None,
        tuning=tunings[0] if tunings else None,
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise SteptimeError(f"cannot be read ({error.strerror})", where=str(path)) from None
    except ValueError as error:
        raise SteptimeError(f"is not JSON ({error})", where=str(path), mend="pass what --json printed") from None
    if not isinstance(record, dict) or not ({"remedies", "corrected"} & record.keys()):
        raise SteptimeError(
            "is neither an explanation nor a tune result",
            where=str(path),
            mend="pass what explain --json or tune --json printed",
        )
    return record


def _from_ledger(run_id: str) -> Records:
    from steptime.ledger import Ledger

    with Ledger.open() as ledger:
        run = ledger.run(run_id)
        row = run.to_json()
        files = [artefact for artefact in ledger.artefacts(run.id) if artefact.kind == _TUNE_ARTEFACT]
        # the run's own result where it was kept; else what the ledger's rows say of its remedies
        tuning = _read(ledger.folder / files[-1].path) if files else None
        if tuning is None and run.kind == "tune":
            tuning = tuning_of_rows(
                [prediction.to_json() for prediction in ledger.predictions(run.id)],
                [verdict.to_json() for verdict in ledger.verdicts(run.id)],
                row["plan"],
            )
        explanation = ledger.explanation(run.id)
    if explanation is None and tuning is None:
        raise SteptimeError(
            f"holds neither an explanation nor a tune result (it is a {run.kind} that {run.status})",
            where=f"run {run.id}",
        )
    return Records(
        explanation=explanation, tuning=tuning, provenance={"run": run.id} | {key: row.get(key) for key in _PROVENANCE}
    )


def tuning_of_rows(
    predictions: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], plan: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A tune result from the ledger's rows, for a run that ended before it could write its own: no overall ratio."""
    decided = {verdict["remedy"]: verdict for verdict in verdicts}
    told = {prediction["remedy"]: prediction for prediction in predictions}
    remedies = []
    for name in dict.fromkeys([*told, *decided]):
        prediction, verdict = told.get(name, {}), decided.get(name, {})
        measured = ("predicted_s", "low_s", "high_s", "measured_s", "measured_low_s", "measured_high_s", "basis")
        remedies.append(
            {
                "name": name,
                "verdict": verdict.get("decision", "no verdict"),
                "why": verdict.get("why", ""),
                **{key: prediction.get(key) for key in measured},
            }
        )
    return {"remedies": remedies, "plan": plan}
