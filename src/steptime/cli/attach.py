"""`steptime attach PID`: where a running job is now."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `attach`."""

    @app.command(short_help="Show where a running job is now.")
    def attach(
        pid: Annotated[
            int | None, typer.Argument(metavar="PID", help="Any process of the job: its launcher or one of its ranks.")
        ] = None,
        trace: Annotated[
            int,
            typer.Option(metavar="STEPS", help="Trace so many steps instead, of a job that steptime started; 0: none."),
        ] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
        install_pth: Annotated[
            str,
            typer.Option(
                metavar="PYTHON",
                help="Put a .pth into this interpreter's site-packages, for jobs that lose PYTHONPATH on their way; "
                "it acts only under steptime.",
            ),
        ] = "",
        remove_pth: Annotated[str, typer.Option(metavar="PYTHON", help="Take that .pth away again.")] = "",
    ) -> None:
        """Show where a running job is now, without stopping it: stacks, memory, threads of its ranks on this node."""
        from steptime.errors import SteptimeError

        if install_pth or remove_pth:
            from steptime.attach import pth

            if install_pth:
                typer.echo(f"installed {pth.install_pth(install_pth)}")
            else:
                typer.echo("removed" if pth.remove_pth(remove_pth) else "it was not there")
            return
        if pid is None:
            raise SteptimeError("no process was named", mend="give a process id: steptime attach PID")
        if trace:
            from steptime.attach.demand import trace_on_demand

            path = trace_on_demand(pid, trace)
            typer.echo(json.dumps({"trace": str(path)}) if as_json else str(path))
            return
        from steptime.attach.running import look_at
        from steptime.attach.telling import tell

        job = look_at(pid)
        typer.echo(json.dumps(job.to_json(), indent=1) if as_json else tell(job))
