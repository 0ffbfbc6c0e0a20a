"""One self-contained HTML file from records: `write_report(path, explanation, tuning, provenance)`."""

from __future__ import annotations

from steptime.report.page import render_report
from steptime.report.sources import Records, read_records
from steptime.report.write import write_report

__all__ = ["Records", "read_records", "render_report", "write_report"]
