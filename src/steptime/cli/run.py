"""`steptime run`: run a script under a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `run`."""

    @app.command(context_settings={"allow_interspersed_args": False}, short_help="Run a script under a plan.")
    def run(
        plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="The plan file, e.g. from steptime tune.")],
        command: Annotated[
            list[str] | None,
            typer.Argument(metavar="-- COMMAND", help="The script as you run it: python train.py args"),
        ] = None,
        remedies: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE.py",
                help="A remedy of your own that tune was given: a file that defines apply(report). May be repeated.",
            ),
        ] = None,
        session: Annotated[
            Path | None,
            typer.Option("--session", metavar="FOLDER", help="Keep the agent's records in this new folder."),
        ] = None,
    ) -> None:
        """Run an unmodified training script under a plan. The exit code is the script's."""
        from steptime.explain.run import run_script
        from steptime.plan import Plan

        def warn(line: str) -> None:
            typer.echo(f"steptime: {line}", err=True)

        result = run_script(command or (), Plan.from_toml(plan), remedies=remedies or (), folder=session, warn=warn)
        for line in result.unmet:
            warn(line)
        raise typer.Exit(result.exit_code)
