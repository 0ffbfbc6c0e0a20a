"""Writing the report: under a temporary name, fsynced, renamed, so that a reader never meets half a page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from steptime.errors import SteptimeError
from steptime.report.page import render_report


def write_report(
    path: Path | str,
    explanation: Mapping[str, Any] | None,
    tuning: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the report that `render_report` makes of these records to `path`, and returns the path.

    Raises:
        SteptimeError: a record that cannot be read, or a path that cannot be written; nothing is left half-written.
    """
    target = Path(path)
    page = render_report(explanation, tuning, provenance, after)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files that only their owner may read
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        raise SteptimeError(
            f"the report cannot be written: {error.strerror or error}",
            where=str(target),
            mend="pass --out with a file in a folder that can be written and has room",
        ) from None
    return target
