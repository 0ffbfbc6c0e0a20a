"""The first schema: runs, probes, predictions, verdicts, artefacts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("ended", sa.DateTime),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("parent", sa.String(32), sa.ForeignKey("runs.id")),
        sa.Column("command", sa.JSON, nullable=False),
        sa.Column("cwd", sa.String, nullable=False),
        sa.Column("git", sa.JSON),
        sa.Column("python", sa.String),
        sa.Column("torch", sa.String),
        sa.Column("packages", sa.JSON),
        sa.Column("host", sa.JSON),
        sa.Column("hardware", sa.String),
        sa.Column("environment", sa.JSON),
        sa.Column("seeds", sa.JSON),
        sa.Column("plan", sa.JSON),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("step_s", sa.Double),
        sa.Column("step_low_s", sa.Double),
        sa.Column("step_high_s", sa.Double),
        sa.Column("explanation", sa.String),
        sa.CheckConstraint("kind IN ('explain', 'tune', 'run', 'probe', 'trial')", name="kind_known"),
        sa.CheckConstraint("status IN ('running', 'finished', 'failed', 'interrupted')", name="status_known"),
    )
    op.create_index("ix_runs_created", "runs", ["created"])
    op.create_index("ix_runs_parent", "runs", ["parent"])
    op.create_table(
        "probes",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id")),
        sa.Column("fingerprint", sa.String, nullable=False),
        sa.Column("device", sa.String),
        sa.Column("quiet", sa.Boolean),
        sa.Column("calibration", sa.JSON, nullable=False),
    )
    op.create_index("ix_probes_fingerprint", "probes", ["fingerprint"])
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("remedy", sa.String, nullable=False),
        sa.Column("predicted_s", sa.Double, nullable=False),
        sa.Column("low_s", sa.Double, nullable=False),
        sa.Column("high_s", sa.Double, nullable=False),
        sa.Column("basis", sa.String, nullable=False),
        sa.Column("settled", sa.DateTime),
        sa.Column("measured_s", sa.Double),
        sa.Column("measured_low_s", sa.Double),
        sa.Column("measured_high_s", sa.Double),
    )
    op.create_index("ix_predictions_run", "predictions", ["run"])
    op.create_table(
        "verdicts",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("prediction", sa.String(32), sa.ForeignKey("predictions.id")),
        sa.Column("remedy", sa.String, nullable=False),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("speed_ratio", sa.Double),
        sa.Column("speed_low", sa.Double),
        sa.Column("speed_high", sa.Double),
        sa.Column("blocks", sa.Integer),
        sa.Column("alpha", sa.Double),
        sa.Column("quality", sa.JSON),
        sa.CheckConstraint(
            "decision IN ('kept', 'rejected', 'undecided', 'not tried', 'refused')", name="decision_known"
        ),
    )
    op.create_index("ix_verdicts_run", "verdicts", ["run"])
    op.create_table(
        "artefacts",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("rows", sa.Integer),
        sa.Column("sha256", sa.String, nullable=False),
    )
    op.create_index("ix_artefacts_run", "artefacts", ["run"])


def downgrade() -> None:
    """Never: a ledger is not taken back to an older schema; the older steptime refuses it instead."""
    raise NotImplementedError("a ledger is never downgraded")
