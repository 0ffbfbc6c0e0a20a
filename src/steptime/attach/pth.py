"""The installed fallback: a `.pth` in an environment, for jobs whose PYTHONPATH is dropped on the way to them.

It arms only where STEPTIME_SESSION is set; otherwise it costs one look into the environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from steptime.agent.journal import write_whole
from steptime.attach.launch import INJECT
from steptime.errors import SteptimeError

NAME = "steptime_agent.pth"


def install_pth(python: str) -> Path:
    """Writes the `.pth` into the site-packages of `python`; returns its path. Raises SteptimeError."""
    path = _site_packages(python) / NAME
    boot = str(INJECT / "boot.py")
    line = (
        f"import os; _b = {boot!r}; "
        "os.environ.get('STEPTIME_SESSION') and os.path.exists(_b) and "
        "exec(compile(open(_b).read(), _b, 'exec'), {'__name__': 'steptime_boot', '__file__': _b})\n"
    )
    try:
        write_whole(os.fspath(path), line.encode())
    except OSError as problem:
        raise SteptimeError(f"cannot be written: {problem.strerror}", where=str(path)) from problem
    return path


def remove_pth(python: str) -> bool:
    """Removes it again; False when it was not there. Raises SteptimeError."""
    path = _site_packages(python) / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise SteptimeError(f"cannot be removed: {problem.strerror}", where=str(path)) from problem
    return True


def _site_packages(python: str) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    try:
        found = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        raise SteptimeError("is not a Python interpreter", where=python) from problem
    return Path(found.stdout.strip())
