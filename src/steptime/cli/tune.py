"""`steptime tune`: makes an unmodified script faster, and proves that it is and still learns the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `tune`."""

    @app.command()
    def tune(
        command: Annotated[
            list[str] | None, typer.Argument(metavar="-- COMMAND...", help="As you run it: python train.py")
        ] = None,
        budget: Annotated[str, typer.Option(help="Time for everything: 90s, 10m, 1h.")] = "10m",
        plan_out: Annotated[Path, typer.Option("--plan-out", help="Where the plan goes.")] = Path("plan.toml"),
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
        accept_untested: Annotated[
            bool, typer.Option("--accept-untested", help="Keep remedies though the script cannot be seeded.")
        ] = False,
        only: Annotated[list[str] | None, typer.Option(help="Try only this remedy (may be repeated).")] = None,
        skip: Annotated[list[str] | None, typer.Option(help="Do not try this remedy (may be repeated).")] = None,
        seeds: Annotated[int, typer.Option(help="Paired seeds of the quality test, at least.")] = 5,
        margin: Annotated[float, typer.Option(help="Margin of the quality test, in spreads over seeds.")] = 0.5,
        quality_steps: Annotated[int, typer.Option("--quality-steps", help="Steps of its runs, at most.")] = 60,
        remedies: Annotated[
            list[Path] | None, typer.Option(help="A remedy of your own: FILE.py with apply(report); may be repeated.")
        ] = None,
    ) -> None:
        """Make a training script faster, with proof; the script stays as it is."""
        import json

        from rich.console import Console

        from steptime.tune import TuneSettings, seconds_of
        from steptime.tune.command import tune_script
        from steptime.tune.render import print_result

        settings = TuneSettings(
            budget_s=seconds_of(budget),
            seeds=seeds,
            margin=margin,
            quality_steps=quality_steps,
            accept_untested=accept_untested,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            own=tuple(remedies or ()),
        )
        console = Console(stderr=True)
        with console.status("starting") as status:

            def say(line: str) -> None:
                console.print(f"[dim]{line}[/dim]", highlight=False)
                status.update(line)

            result = tune_script(command or (), settings, plan_out=plan_out, say=say)
        if as_json:
            print(json.dumps(result.to_json(), indent=1))
        else:
            print_result(result, Console(), plan_path=str(plan_out))
