"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real traces and market data; required in CI, elsewhere its tests are skipped."""
    folder = Path(os.environ.get("STEPTIME_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI needs the shared data folder; STEPTIME_SHARED={folder} is not there")
        pytest.skip("the shared data folder is not here (STEPTIME_SHARED)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands that tests run note themselves in a ledger of the tests', never in the developer's."""
    os.environ["STEPTIME_HOME"] = str(tmp_path_factory.mktemp("home"))
