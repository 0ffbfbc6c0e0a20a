"""The command line. One file a command, each with `register(app)`; they load what they need only when they run."""

from __future__ import annotations

import errno
import importlib
import sys
from importlib.util import find_spec

import typer

from steptime import __version__
from steptime.errors import SteptimeError

UNUSABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO})
"""What a disk says of itself: no defect of ours, so no traceback."""
COMMANDS = ("explain", "tune", "run", "report", "attach", "probe", "runs")
"""In the order in which `steptime --help` lists them: typer puts `runs`, a group, last in any case."""


def make_app() -> typer.Typer:
    """The application with every command that this build has."""
    app = typer.Typer(
        name="steptime",
        help="Explains where a training step's time goes, makes it faster, and proves that it still learns the same.",
        epilog="Start with: steptime explain -- python train.py",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # pages drawn by rich cost 0.2 s of import
        # A traceback with all local values, typer's default, would print the user's data and secrets.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def steptime(
        version: bool = typer.Option(
            False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ) -> None:
        pass

    for name in COMMANDS:
        if find_spec(f"{__name__}.{name}") is not None:
            importlib.import_module(f"{__name__}.{name}").register(app)
    return app


def main() -> None:
    """Run the command line of this process. A `SteptimeError` is one line on stderr and exit code 2; Ctrl-C is 130."""
    try:
        make_app()(prog_name="steptime")
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        print(f"steptime: {error.filename or 'a file'}: cannot be written ({error.strerror})", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"steptime {__version__}")
        raise typer.Exit
