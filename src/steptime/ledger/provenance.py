"""What must be known of a run to understand or repeat it: code, interpreter, packages, host, environment, command.

Nothing here may fail a run: what cannot be found out is null. Nothing here may leak: secrets are withheld by name, by
shape, and where they stand in URLs or on the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from steptime.ledger.liveness import this_process

WITHHELD = "<withheld>"

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|BEARER|PRIVATE|(^|_)(PAT|PWD|DSN|PASS)$", re.IGNORECASE
)
_PUBLIC_NAMES = frozenset({"PWD", "OLDPWD", "TOKENIZERS_PARALLELISM"})  # what the pattern above would take
# Of a command line less is withheld: `--max-tokens 512`, `--tokenizer x` and `--key-dim 64` are needed to repeat a run.
_SECRET_OPTION = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|(^|[-_.+])(API)?(KEY|TOKEN|AUTH|PAT|PWD|PASS|DSN|BEARER|COOKIE)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|hf_\w{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(api_?key|token|secret|password)[\"']?\s*:\s*[\"'\w]",
    re.IGNORECASE,
)
# A number up to the next slash is a port, not a password. A password may hold a raw slash: SQLAlchemy takes that.
_URL_PASSWORD = re.compile(r"(?P<before>[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*):(?!\d+(?:/|$))(?:[^\s/]+|[^\s@]+)@")
_URL_QUERY = re.compile(
    r"(?P<before>[?&;][^=&\s]*(?:key|token|secret|passw|auth|sig|credential)[^=&\s]*=)[^&\s]+", re.I
)
_OPTION = re.compile(r"--?[\w.-]+(=.*)?", re.DOTALL)
_ASSIGNED = re.compile(r"[\w.+-]+")

_GIT_TIMEOUT_S = 5.0
_LARGEST_UNTRACKED_BYTES = 1_000_000
_MOST_UNTRACKED = 500


def collect(
    command: Sequence[str], cwd: Path | str, *, python: str | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything about a run that is known before it starts, as JSON values.

    Args:
        command: the command line, program first.
        cwd: where it runs.
        python: the interpreter whose packages are listed; None for this one.
        environment: what the command will get; None for this process's.

    Returns:
        `command`, `cwd`, `git` (null outside a repository), `python`, `torch`, `packages`, `host`, `environment`: the
        fields of a `RunRow` of these names.
    """
    packages, version = _packages(python)
    return {
        "command": public_command(command),
        "cwd": str(cwd),
        "git": git_state(_code_folder(command, Path(cwd))),
        "python": version,
        "torch": packages.get("torch"),
        "packages": packages,
        "host": {
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            **this_process(),
        },
        "environment": public_environment(os.environ if environment is None else environment),
    }


def public_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with each secret's value replaced, its name kept."""
    return {name: _public_value(name, value) for name, value in sorted(environment.items())}


def public_command(command: Sequence[str]) -> list[str]:
    """The command line with the values of secret options (`--api-key x`, `--token=x`, `NAME_TOKEN=x`) replaced."""
    shown: list[str] = []
    after_secret = False
    for word in command:
        option = _OPTION.fullmatch(word)
        if after_secret and option is None:
            shown.append(WITHHELD)
            after_secret = False
            continue
        name, equals, _ = word.partition("=")
        secret = _SECRET_OPTION.search(name) is not None
        # A path or a plain word may end in "key" too; only an option or an assignment (Hydra's too) carries a value.
        if secret and equals and _ASSIGNED.fullmatch(name):
            shown.append(f"{name}={WITHHELD}")
        else:
            shown.append(_public_value("", word))
        after_secret = secret and option is not None and not equals
    return shown


def _public_value(name: str, value: str) -> str:
    if (_SECRET_NAME.search(name) and name not in _PUBLIC_NAMES) or _SECRET_VALUE.search(value):
        return WITHHELD
    return _URL_QUERY.sub(rf"\g<before>{WITHHELD}", _URL_PASSWORD.sub(rf"\g<before>:{WITHHELD}@", value))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and uncommitted changes of the repository around `folder`; None when there is none or git does not answer.

    Returns:
        `root`, `commit` (null before the first), `branch` (null when detached), `dirty`, and `diff_sha256`: a digest of
        the tracked changes and of the untracked files, null when clean. Runs with equal commit and digest ran equal
        code.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    top = Path(os.fsdecode(root.rstrip(b"\n")))
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    branch = _git(top, "symbolic-ref", "--short", "--quiet", "HEAD")
    # External diff programs and textconv are code of the repository's owner: a look must not run them.
    against = ["HEAD"] if commit else ["--cached"]
    diff = _git(top, "diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", *against)
    untracked = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    unknown = diff is None or untracked is None
    dirty = bool(diff) or bool(untracked)
    return {
        "root": str(top),
        "commit": commit.decode().strip() if commit else None,
        "branch": branch.decode(errors="replace").strip() if branch else None,
        "dirty": None if unknown else dirty,
        "diff_sha256": None if unknown or not dirty else _digest(top, diff or b"", untracked or b""),
    }


def _digest(top: Path, diff: bytes, untracked: bytes) -> str:
    digest = hashlib.sha256(diff)
    for name in sorted(filter(None, untracked.split(b"\0")))[:_MOST_UNTRACKED]:
        digest.update(b"\0" + name + b"\0")
        path = top / os.fsdecode(name)
        try:
            # Data and checkpoints lie untracked beside code; only the size of large ones is looked at.
            size = path.lstat().st_size
            small = path.is_file() and size <= _LARGEST_UNTRACKED_BYTES
            digest.update(path.read_bytes() if small else str(size).encode())
        except OSError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """The output of git; None when it fails, is missing or takes too long (a network file system, a huge tree)."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _code_folder(command: Sequence[str], cwd: Path) -> Path:
    """Where the user's code lies: the folder of the first Python file of the command, else where it runs."""
    for word in command:
        script = cwd / word
        if word.endswith(".py") and script.is_file():
            return script.resolve().parent
    return cwd


_LISTING = (
    "import json, platform, importlib.metadata as m;"
    "print(json.dumps([platform.python_version(), {d.metadata['Name']: d.version for d in m.distributions()}]))"
)


def _packages(python: str | None) -> tuple[dict[str, str], str | None]:
    """Names and versions installed for an interpreter, and its own version; nothing when it does not answer."""
    if python is None or os.path.realpath(python) == os.path.realpath(sys.executable) == python:
        found = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
        version: str | None = platform.python_version()
    else:
        try:
            done = subprocess.run(
                [python, "-c", _LISTING], capture_output=True, timeout=20, stdin=subprocess.DEVNULL, check=True
            )
            version, found = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}, None
    # A half-removed distribution has neither name nor version.
    return {name: value for name, value in sorted(found.items(), key=str) if name and value}, version
