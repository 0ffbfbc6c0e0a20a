"""`steptime report`: one HTML file from a run of the ledger or from JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `report`."""

    @app.command(short_help="Write an HTML report of a run.")
    def report(
        records: Annotated[
            list[str],
            typer.Argument(
                metavar="RUN_ID | FILE.json...",
                help="The id of a run (`steptime runs` lists them), or its beginning; or files that explain --json "
                "and tune --json printed (a second explanation is the step after).",
            ),
        ],
        out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path(
            "report.html"
        ),
    ) -> None:
        """Write one self-contained HTML report: the step, what was predicted and measured, the evidence."""
        from steptime.report import read_records, write_report

        found = read_records(records)
        path = write_report(out, found.explanation, found.tuning, found.provenance, found.after)
        typer.echo(f"wrote {path}", err=True)
