"""The ledger: runs, probes, predictions and verdicts. Importing it loads SQLAlchemy: commands do that when they run.

with Ledger.open() as ledger:
    run = ledger.add_run(RunRow(kind="run", **collect(command, cwd)))
    ...
    ledger.finish_run(run, status="finished", exit_code=0, step_s=0.21, step_low_s=0.20, step_high_s=0.22)
"""

from steptime.ledger.columns import Columns, ProcessColumns
from steptime.ledger.compare import Difference, RunComparison, compare
from steptime.ledger.database import Ledger
from steptime.ledger.home import check_writable, steptime_home, write_whole
from steptime.ledger.liveness import is_lost
from steptime.ledger.provenance import collect
from steptime.ledger.schema import (
    DECISIONS,
    RUN_KINDS,
    RUN_STATUSES,
    ArtefactRow,
    PredictionRow,
    ProbeRow,
    RunRow,
    VerdictRow,
)

__all__ = [
    "DECISIONS",
    "RUN_KINDS",
    "RUN_STATUSES",
    "ArtefactRow",
    "Columns",
    "Difference",
    "Ledger",
    "PredictionRow",
    "ProbeRow",
    "ProcessColumns",
    "RunComparison",
    "RunRow",
    "VerdictRow",
    "check_writable",
    "collect",
    "compare",
    "is_lost",
    "steptime_home",
    "write_whole",
]
