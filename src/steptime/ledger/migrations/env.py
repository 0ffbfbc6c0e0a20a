"""What alembic runs to upgrade a ledger: always inside the connection and transaction of `steptime.ledger.engine`.

Run through the alembic command (a developer's `alembic revision`), there is no connection; see docs of the ledger room.
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
