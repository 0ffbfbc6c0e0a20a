"""`steptime explain`: where a step's time goes, of a script that is run or of traces that were written before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from steptime.explain import Explanation


class _ScriptBehindDashes(TyperCommand):
    """What stands behind `--` is the script's, untouched; click alone would mix it with the traces before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta["script"] = args[split + 1 :]
            args = args[:split]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add `explain`."""

    @app.command(cls=_ScriptBehindDashes, short_help="Show where a training step's time goes.")
    def explain(
        context: typer.Context,
        traces: Annotated[
            list[Path] | None,
            typer.Argument(
                metavar="TRACE... | -- COMMAND",
                help="torch.profiler's traces, one a rank; or a script as you run it: -- python train.py args",
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout; a script's stdout to stderr.")] = False,
        steps: Annotated[int, typer.Option(metavar="N", min=2, help="Untraced steps to time, at least.")] = 20,
        traced: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to trace.")] = 5,
        stop: Annotated[bool, typer.Option("--stop", help="End the script once everything is measured.")] = False,
        out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the session in this new folder.")] = None,
        report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the HTML report too.")] = None,
    ) -> None:
        """Show where a training step's time goes: of a script that is run unmodified, or of traces."""
        from steptime.errors import SteptimeError
        from steptime.explain import explain_script, explain_trace
        from steptime.hardware import load_calibration

        script = context.meta.get("script")
        if bool(script) == bool(traces):
            raise SteptimeError("give either traces or a script", mend="e.g. steptime explain -- python train.py")
        if report is not None:
            from steptime.ledger import check_writable

            check_writable(report)
        calibration = load_calibration()
        if traces:
            from steptime.timeline import read_trace

            _show(explain_trace(read_trace(traces, python=True), calibration), as_json, report, err=False)
            return
        from steptime.attach import WindowSpec

        result = explain_script(
            script or (),
            windows=WindowSpec(untraced_steps=steps, traced_steps=traced),
            stop=stop,
            folder=out,
            stdout_to_stderr=as_json,
            calibration=calibration,
            warn=lambda line: typer.echo(f"steptime: {line}", err=True),
        )
        if result.explanation is not None:
            _show(result.explanation, as_json, report, err=True)
        elif result.problem is not None:
            typer.echo(f"steptime: {result.problem}", err=True)
        raise typer.Exit(result.exit_code or (2 if result.explanation is None else 0))


def _show(explanation: Explanation, as_json: bool, report: Path | None, *, err: bool) -> None:
    """Beside a running script the words go to stderr: stdout is the script's."""
    import json

    from rich.console import Console

    from steptime.explain import render

    if report is not None:
        from steptime.report import write_report

        write_report(report, explanation.to_json())
    if as_json:
        typer.echo(json.dumps(explanation.to_json()))
    else:
        render(explanation, Console(stderr=err))
