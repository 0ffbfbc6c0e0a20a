"""`steptime probe`: measure this machine."""

from __future__ import annotations

import sys

import typer


def register(app: typer.Typer) -> None:
    """Add `probe`."""

    @app.command(short_help="Measure what this machine can do.")
    def probe(
        quick: bool = typer.Option(False, "--quick", help="A few seconds, with fewer samples."),
        json_: bool = typer.Option(False, "--json", help="Print the calibration as JSON on stdout."),
    ) -> None:
        """Measure this machine's ceilings in under a minute, and keep them for explain and tune.

        FLOP/s of matmuls by dtype, bytes/s of memory and caches, the cost of a dispatched op.
        """
        from steptime.hardware import probe as measure
        from steptime.hardware import save_calibration
        from steptime.ledger import Ledger, RunRow, collect

        with Ledger.open() as ledger:
            run = ledger.add_run(RunRow(kind="probe", **collect(["steptime", *sys.argv[1:]], ".")))
            try:
                found = measure(quick, progress=lambda line: print(f"steptime: {line}", file=sys.stderr))
                path = save_calibration(found, ledger=ledger, run_id=run)
            except BaseException as error:
                stopped = isinstance(error, KeyboardInterrupt)
                ledger.finish_run(run, status="interrupted" if stopped else "failed")
                raise
            ledger.finish_run(run, status="finished", exit_code=0, hardware=found.fingerprint)
        if json_:
            print(found.model_dump_json(indent=1))
        else:
            from rich.console import Console

            from steptime.cli._probe_tables import print_calibration

            print_calibration(Console(), found)
        print(f"steptime: kept in {path}", file=sys.stderr)
