"""`steptime run`: run a script under a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `run`."""

    @app.command(context_settings={"allow_interspersed_args": False})
    def run(
        command: Annotated[
            list[str], typer.Argument(metavar="-- COMMAND...", help="What to run: python train.py args")
        ],
        plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="The plan file, e.g. from steptime tune.")],
        remedies: Annotated[
            list[Path] | None,
            typer.Option(help="A remedy of your own, as given to tune: FILE.py with apply(report); may be repeated."),
        ] = None,
        session: Annotated[
            Path | None,
            typer.Option("--session", metavar="FOLDER", help="Keep the agent's records in this new folder."),
        ] = None,
    ) -> None:
        """Run an unmodified training script under a plan. The exit code is the script's."""
        import tempfile

        from steptime.attach import SessionSpec, launch, read_session
        from steptime.explain.remedies import read_remedy
        from steptime.plan import Plan, process_environment, unmet

        settings = Plan.from_toml(plan)
        own = [read_remedy(path)[0] for path in remedies or ()]
        extra = tuple(remedy.extra for remedy in own if remedy.extra is not None)
        spec = SessionSpec(mode="run", plan=settings.agent_json(), extra=extra, losses=False)
        with tempfile.TemporaryDirectory(prefix="steptime-run-", ignore_cleanup_errors=True) as temporary:
            folder = session or Path(temporary) / "session"
            started = launch(command, spec, folder=folder, environment=process_environment(settings))
            code = started.wait()
            applied = [rank.applied for rank in read_session(folder).ranks]
        # a remedy reports under its name, the agent under the file's when it fails
        names = {name for remedy in own if remedy.extra for name in (remedy.name, remedy.extra.name)}
        for line in unmet(settings, applied, own=sorted(names)):
            typer.echo(f"steptime: {line}", err=True)
        raise typer.Exit(code)
