"""Opens the ledger's database: the right SQLite mode for the file system, the right schema, errors in one line."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from steptime.errors import SteptimeError
from steptime.ledger.filesystem import is_network
from steptime.ledger.home import make_folder

SCHEMA_VERSION = "0001"
"""The newest migration this version knows (a test holds it against the migrations folder)."""

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for others before it gives up; a transaction here takes milliseconds."""

_MENDS = (
    ("full", "free space there"),
    ("disk i/o", "the disk is full or failing: free space there"),
    ("readonly", "the file or its folder is read-only: name another with STEPTIME_HOME"),
    ("unable to open", "the folder is read-only or missing: name another with STEPTIME_HOME"),
    ("locked", f"another process has held it for {BUSY_TIMEOUT_S:.0f} s: end that one, or try again"),
    ("not a database", "it is no ledger: move it away, or name another"),
    ("malformed", "it is damaged: move it away, or restore it from a backup"),
)


@contextlib.contextmanager
def told_in_one_line(where: str) -> Iterator[None]:
    """Turn what the database says into a `SteptimeError` that names the ledger and a mend."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        what = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        mend = next((mend for sign, mend in _MENDS if sign in what.lower()), "")
        raise SteptimeError(f"the ledger cannot be used ({what})", where=where, mend=mend) from error


def open_file(path: Path) -> Engine:
    """The engine of the SQLite ledger at `path`, made and upgraded when needed.

    Raises:
        SteptimeError: the file is no ledger, was written by a newer steptime (then it is left untouched), or cannot be
            written.
    """
    shared = is_network(path)
    # Looked at read-only before anything else: the pragmas below would already write into a newer ledger.
    if path.exists():
        with told_in_one_line(str(path)):
            _refuse_strange(path)
    make_folder(path.parent)
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"timeout": BUSY_TIMEOUT_S},
        # A connection in EXCLUSIVE mode keeps its lock until it is closed: over a network none may linger in a pool.
        poolclass=NullPool if shared else None,
    )
    event.listen(engine, "connect", _connect_network if shared else _connect_local)
    event.listen(engine, "begin", _begin)
    try:
        with told_in_one_line(str(path)):
            upgrade(engine, where=str(path))
    except BaseException:
        engine.dispose()
        raise
    return engine


def open_url(url: str) -> Engine:
    """The engine of a team's ledger, e.g. `postgresql+psycopg://user@host/steptime` (its driver must be installed).

    Not covered by this project's tests: they have no server.
    """
    try:
        engine = create_engine(url, pool_pre_ping=True)
        shown = engine.url.render_as_string(hide_password=True)
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        raise SteptimeError(
            f"no ledger can be opened by this URL ({error})",
            where=url.partition("://")[0] + "://...",
            mend="write it as postgresql+psycopg://user@host/database and install that driver",
        ) from error
    with told_in_one_line(shown):
        upgrade(engine, where=shown)
    return engine


def reading(engine: Engine) -> Engine:
    """The same engine for transactions that only read: they do not queue behind a writer."""
    return engine.execution_options(steptime_begin="BEGIN")


def upgrade(engine: Engine, *, where: str) -> None:
    """Bring the schema to `SCHEMA_VERSION`, in one transaction; processes that open at once wait for the first."""
    with reading(engine).begin() as connection:
        if _version(connection) == SCHEMA_VERSION:
            return
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(7355608)"))
        found = _version(connection)
        if found == SCHEMA_VERSION:
            return
        if found is not None and found > SCHEMA_VERSION:
            raise _newer(found, where)
        _migrate(connection)


def _migrate(connection: Connection) -> None:
    # Imported here: alembic costs more than everything else this room loads, and is needed once a ledger.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _version(connection: Connection) -> str | None:
    """The schema version of the database; None for one without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _newer(found: str, where: str) -> SteptimeError:
    return SteptimeError(
        f"this ledger was written by a newer steptime (schema {found}; this one knows {SCHEMA_VERSION})",
        where=where,
        mend="upgrade steptime, or name another ledger with STEPTIME_HOME",
    )


def _refuse_strange(path: Path) -> None:
    """Raise when the file is not a ledger of this or an older version. Reads only."""
    if not path.is_file():
        raise SteptimeError("is not a file", where=str(path), mend="name another ledger with STEPTIME_HOME")
    if path.stat().st_size == 0:
        return
    uri = path.absolute().as_uri() + "?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return
        row = None
        if "alembic_version" in tables:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None or not str(row[0]).isdigit():
        raise SteptimeError(
            "is a database, but not a steptime ledger", where=str(path), mend="name another with STEPTIME_HOME"
        )
    if row[0] > SCHEMA_VERSION:
        raise _newer(row[0], str(path))


def _connect_local(connection: sqlite3.Connection, record: Any) -> None:
    """WAL: readers and a writer do not wait for each other. FULL: a prediction is on disk before its trial starts."""
    _connect(connection)
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    # The change of mode does not honour the busy timeout (sqlite.org/pragma.html#pragma_journal_mode), so wait here.
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = FULL")


def _connect_network(connection: sqlite3.Connection, record: Any) -> None:
    """A rollback journal and one user at a time: needs no memory shared between hosts."""
    _connect(connection)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = FULL")


def _connect(connection: sqlite3.Connection) -> None:
    # sqlite3's own transactions leave DDL outside and start late; SQLAlchemy's documented cure is to begin by hand.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    # IMMEDIATE: a transaction that reads and then writes would otherwise fail at once, not wait, when another wrote.
    connection.exec_driver_sql(connection.get_execution_options().get("steptime_begin", "BEGIN IMMEDIATE"))
