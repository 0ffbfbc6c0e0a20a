"""`steptime tune` without its command line: ledger, folders, plan file, diff by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from steptime.attach.launch import check_command
from steptime.tune.books import LedgerBooks
from steptime.tune.loop import tune
from steptime.tune.result import TuneResult
from steptime.tune.scripts import ScriptTrials, usable_cores
from steptime.tune.settings import TuneSettings


def tune_script(
    command: Sequence[str], settings: TuneSettings, *, plan_out: Path, say: Callable[[str], None]
) -> TuneResult:
    """Tunes the script behind `command`, keeps everything in the ledger, and writes the plan when something was kept.

    Raises:
        SteptimeError: as `tune`; the command, the place of the plan and the ledger are looked at before anything runs.
    """
    from steptime.ledger import Ledger, check_writable

    check_command(command)
    check_writable(plan_out)
    with Ledger.open() as ledger:
        books = LedgerBooks(ledger, list(command), Path.cwd())
        result: TuneResult | None = None
        try:
            with (
                # a Unix socket lies in it, whose path may have 100 characters
                tempfile.TemporaryDirectory(prefix="steptime-", ignore_cleanup_errors=True) as folder,
                ScriptTrials(command=command, folder=Path(folder), cores=usable_cores(), warn=say) as trials,
            ):
                result = tune(trials, settings, books, command=tuple(command), say=say)
        except KeyboardInterrupt:
            books.finished(None, status="interrupted", exit_code=130)
            raise
        except BaseException:
            books.finished(None, status="failed", exit_code=2)
            raise
        result = replace(result, run_id=books.run_id, diff=_by_hand(command, result))
        if result.kept:
            result.setup.plan.to_toml(plan_out)
        books.finished(result, status="finished", exit_code=0)
        return result


def _by_hand(command: Sequence[str], result: TuneResult) -> str | None:
    """The change as a unified diff of the script; None where none can be made with confidence."""
    from steptime.plan.by_hand import unified_diff

    script = next((Path(part) for part in command if part.endswith(".py") and Path(part).is_file()), None)
    return unified_diff(script, result.setup.plan) if script is not None and result.kept else None
