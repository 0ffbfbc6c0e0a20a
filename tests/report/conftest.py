"""The example records: a step of the ticks example, the step after, and a tune result, as the commands print them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
Record = dict[str, Any]


@pytest.fixture
def record() -> Callable[[str], Record]:
    """A fresh copy of a record that a test may change: explanation, after or tune."""
    return lambda name: json.loads((DATA / f"{name}.json").read_text())


@pytest.fixture
def explanation(record: Callable[[str], Record]) -> Record:
    return record("explanation")


@pytest.fixture
def tuning(record: Callable[[str], Record]) -> Record:
    return record("tune")


@pytest.fixture
def after(record: Callable[[str], Record]) -> Record:
    return record("after")
