"""`steptime runs`: what the ledger holds."""

from __future__ import annotations

import json

import typer


def register(app: typer.Typer) -> None:
    """Add `runs`, `runs show` and `runs compare`."""
    runs = typer.Typer(help="List, show and compare the runs in the ledger.", invoke_without_command=True)
    as_json = typer.Option(False, "--json", help="Print JSON on stdout.")

    @runs.callback()
    def list_runs(
        context: typer.Context,
        limit: int = typer.Option(20, "--limit", "-n", metavar="N", min=1, help="How many, the newest first."),
        kind: str | None = typer.Option(None, metavar="KIND", help="Only runs of explain, tune, run or probe."),
        json_: bool = as_json,
    ) -> None:
        """List, show and compare the runs in the ledger."""
        if context.invoked_subcommand:
            return
        from rich.console import Console

        from steptime.cli._runs_tables import print_runs
        from steptime.ledger import Ledger

        with Ledger.open() as ledger:
            found = ledger.runs(limit=limit, kind=kind)
        if json_:
            print(json.dumps([run.to_json() for run in found], indent=1))
        else:
            print_runs(Console(), found)

    @runs.command()
    def show(run: str = typer.Argument(metavar="RUN_ID", help="Id, or its beginning."), json_: bool = as_json) -> None:
        """Show one run: what ran, where, its predictions and verdicts."""
        from rich.console import Console

        from steptime.cli._runs_tables import print_run
        from steptime.ledger import Ledger

        with Ledger.open() as ledger:
            row = ledger.run(run)
            parts = {
                "predictions": ledger.predictions(row.id),
                "verdicts": ledger.verdicts(row.id),
                "artefacts": ledger.artefacts(row.id),
            }
        if json_:
            lists = {name: [part.to_json() for part in rows] for name, rows in parts.items()}
            print(json.dumps({**row.to_json(), **lists}, indent=1))
        else:
            print_run(Console(), row, **parts)

    @runs.command(short_help="Compare two runs.")
    def compare(
        a: str = typer.Argument(metavar="RUN_ID", help="The first run: its id, or its beginning."),
        b: str = typer.Argument(metavar="RUN_ID", help="The second run, likewise."),
        json_: bool = as_json,
    ) -> None:
        """Compare two runs: step times, and everything that differed between them."""
        from rich.console import Console

        from steptime.cli._runs_tables import print_comparison
        from steptime.ledger import Ledger, compare

        with Ledger.open() as ledger:
            found = compare(ledger, a, b)
        if json_:
            print(json.dumps(found.to_json(), indent=1))
        else:
            print_comparison(Console(), found)

    app.add_typer(runs, name="runs")
