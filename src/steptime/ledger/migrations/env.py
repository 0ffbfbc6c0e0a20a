"""What alembic runs to upgrade a ledger: always inside the connection and transaction of `steptime.ledger.engine`.

The alembic command line brings no connection, so it does not work here: a new migration is written by hand beside the
others, and `engine.SCHEMA_VERSION` names it.
"""

from alembic import context

from steptime.ledger.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
