import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

import steptime.ledger
from steptime.errors import SteptimeError
from steptime.ledger import Ledger, RunRow
from steptime.ledger import engine as engine_module
from steptime.ledger.engine import SCHEMA_VERSION, open_file, open_url
from steptime.ledger.schema import Base


def a_run(**known):
    return RunRow(**{"kind": "run", "command": ["python", "train.py"], "cwd": "/home/anna", **known})


def test_the_tables_that_the_migrations_make_are_those_of_the_models(tmp_path):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = open_file(tmp_path / "ledger.db")
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_the_version_known_is_the_newest_migration_and_migrations_are_numbered():
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(Path(steptime.ledger.__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [SCHEMA_VERSION]
    revisions = [revision.revision for revision in script.walk_revisions()]
    assert revisions == [f"{number:04d}" for number in range(len(revisions), 0, -1)]


def test_a_local_ledger_is_in_wal_mode(tmp_path):
    with Ledger.open(tmp_path / "ledger.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_ledger_on_a_network_file_system_is_in_rollback_mode_and_free_between_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "is_network", lambda path: True)
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger, Ledger.open(path) as other:
        ledger.add_run(a_run())
        other.add_run(a_run())
        assert len(ledger.runs()) == 2
        with ledger._engine.connect() as connection:
            assert connection.execute(text("PRAGMA locking_mode")).scalar() == "exclusive"
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "delete"
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db"]


def test_a_newer_ledger_is_refused_in_one_line_and_left_untouched(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.add_run(a_run())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    before = path.read_bytes()
    with pytest.raises(SteptimeError) as caught:
        Ledger.open(path)
    line = str(caught.value)
    assert "\n" not in line
    assert all(part in line for part in (str(path), "newer steptime", "0099", "upgrade steptime"))
    assert path.read_bytes() == before


def test_the_tables_can_be_made_in_postgresql_too():
    # No server here: this holds the types and constraints against the dialect, nothing more.
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    made = " ".join(
        str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in Base.metadata.sorted_tables
    )
    assert all(word in made for word in ("DOUBLE PRECISION", "JSON", "TIMESTAMP WITHOUT TIME ZONE", "CHECK (kind IN"))


def test_a_sqlite_url_is_a_file(tmp_path):
    with Ledger.open(f"sqlite:///{tmp_path}/team.db") as ledger:
        ledger.add_run(a_run())
    with Ledger.open(tmp_path / "team.db") as ledger:
        assert len(ledger.runs()) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"a text, not a database, and longer than a header " * 9, "not a database"), (None, "not a file")],
)
def test_what_is_no_ledger_is_refused(tmp_path, content, complaint):
    path = tmp_path / "ledger.db"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(SteptimeError, match=complaint):
        Ledger.open(path)
    assert content is None or path.read_bytes() == content


def test_a_database_of_someone_else_is_refused_and_left_untouched(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE runs (id)")
    before = path.read_bytes()
    with pytest.raises(SteptimeError, match="not a steptime ledger"):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_a_damaged_ledger_is_one_line(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        for _ in range(50):
            ledger.add_run(a_run())
    shutil.copy(path, tmp_path / "copy.db")
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(SteptimeError) as caught, Ledger.open(path) as ledger:
        ledger.runs()
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("/proc/steptime/ledger.db", tmp_path / "file" / "ledger.db"):
        with pytest.raises(SteptimeError, match="cannot be written"):
            Ledger.open(path)
    with pytest.raises(SteptimeError, match="the ledger cannot be used"):
        Ledger.open("/proc/ledger.db")


def test_a_full_disk_while_the_ledger_is_made_leaves_one_that_can_be_opened_later(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))
    try:
        with pytest.raises(SteptimeError, match="the ledger cannot be used"):
            Ledger.open(tmp_path / "ledger.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.runs() == []


def test_a_full_database_keeps_what_it_has_and_says_so(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        kept = ledger.add_run(a_run())
        with ledger._engine.connect() as connection:  # the pool hands this one connection on
            pages = connection.execute(text("PRAGMA page_count")).scalar()
            connection.execute(text(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(SteptimeError, match=r"full.*free space"):
            ledger.add_run(a_run(environment={"A": "x" * 100_000}))
        assert [run.id for run in ledger.runs()] == [kept]


def test_a_url_that_cannot_be_opened_is_one_line_without_its_password():
    with pytest.raises(SteptimeError) as caught:
        open_url("nosuchdatabase://anna:hunter2@host/x")
    assert "hunter2" not in str(caught.value)
