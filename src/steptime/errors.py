"""The one error a user sees: a line that says what is wrong, where, and how to mend it."""

from __future__ import annotations


class SteptimeError(Exception):
    """Bad input or an unusable machine, told in one line; the command line prints it and exits with 2.

    Args:
        what: what is wrong, as a statement ("no training step was found").
        where: the file, field or command it was found in; empty when `what` says it.
        mend: what the user can do about it; empty when nothing can be done.
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        self.what = what
        self.where = where
        self.mend = mend
        located = f"{where}: {what}" if where else what
        super().__init__(f"{located}; {mend}" if mend else located)


def missing_extra(extra: str, package: str) -> SteptimeError:
    """The error for a feature whose optional dependency is not installed."""
    return SteptimeError(f"{package} is not installed", mend=f"pip install 'steptime[{extra}]'")
