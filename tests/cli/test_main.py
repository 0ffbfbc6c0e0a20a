import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import steptime
from steptime import cli
from steptime.errors import SteptimeError

HEAVY = {"torch", "numpy", "scipy", "sqlalchemy", "alembic", "pyarrow", "pydantic", "polars", "jinja2", "msgspec"}


@pytest.mark.spawned
def test_help_loads_nothing_heavy_and_lists_every_command():
    code = (
        "import sys, json, runpy; sys.argv = ['steptime', '--help']\n"
        "try: runpy.run_module('steptime.cli', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    page, _, modules = done.stdout.strip().rpartition("\n")
    loaded = {name.partition(".")[0] for name in json.loads(modules)}
    assert loaded & HEAVY == set()
    assert "runs" in page
    assert "probe" in page


@pytest.mark.spawned
def test_importing_the_package_loads_nothing():
    code = "import sys; before = set(sys.modules); import steptime; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) <= {"steptime", "__future__"}


def test_the_version():
    result = CliRunner().invoke(cli.make_app(), ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"steptime {steptime.__version__}\n")


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (SteptimeError("no such file", where="train.py", mend="give its path"),
         2, "steptime: train.py: no such file; give its path\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_its_exit_code(monkeypatch, capsys, raised, code, line):
    def failing_app():
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fail():
            raise raised

        return app

    monkeypatch.setattr(cli, "make_app", failing_app)
    monkeypatch.setattr(sys, "argv", ["steptime"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    assert capsys.readouterr().err == line


def test_an_unknown_command_is_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["steptime", "nonsense"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "nonsense" in capsys.readouterr().err
