"""`steptime tune`: makes an unmodified script faster, and proves that it is and still learns the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `tune`."""

    @app.command(short_help="Make a training script faster, with proof.")
    def tune(
        command: Annotated[
            list[str] | None,
            typer.Argument(metavar="-- COMMAND", help="The script as you run it: python train.py args"),
        ] = None,
        budget: Annotated[str, typer.Option(metavar="TIME", help="For everything together: 90s, 10m, 1h.")] = "10m",
        plan_out: Annotated[
            Path, typer.Option("--plan-out", metavar="FILE", help="Where the plan goes, for steptime run.")
        ] = Path("plan.toml"),
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
        accept_untested: Annotated[
            bool, typer.Option("--accept-untested", help="Keep what is faster though its quality cannot be tested.")
        ] = False,
        only: Annotated[
            list[str] | None,
            typer.Option(metavar="REMEDY", help="Try only this remedy, e.g. parallel_dropout. May be repeated."),
        ] = None,
        skip: Annotated[
            list[str] | None, typer.Option(metavar="REMEDY", help="Do not try this remedy. May be repeated.")
        ] = None,
        seeds: Annotated[
            int, typer.Option(metavar="N", help="Pairs of seeded runs in the quality test, at least.")
        ] = 5,
        margin: Annotated[
            float,
            typer.Option(
                metavar="X", help="Difference of losses that counts as equal, in units of the baseline's seed spread."
            ),
        ] = 0.5,
        quality_steps: Annotated[
            int, typer.Option("--quality-steps", metavar="N", help="Steps of each run of the quality test, at most.")
        ] = 60,
        remedies: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE.py", help="A remedy of your own: a file that defines apply(report). May be repeated."
            ),
        ] = None,
    ) -> None:
        """Make an unmodified training script faster, and prove that it is and that it still learns the same.

        Each remedy's gain is predicted, then measured; what is kept is written as a plan for `steptime run`.
        """
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
