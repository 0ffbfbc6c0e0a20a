"""The overlay's names: what is moved, what is exempt. (That whole scripts obey it: tests/attach.)"""

from pathlib import Path

import pytest

from steptime.agent.redirect import Overlay


@pytest.fixture
def overlay(tmp_path) -> Overlay:
    (tmp_path / "work").mkdir()
    return Overlay(
        str(tmp_path / "over"),
        exempt=(str(tmp_path / "cache"), "/dev"),
        work=(str(tmp_path / "cache" / "job"),),
        session=str(tmp_path / "session"),
    )


def test_writes_are_moved_and_read_back(overlay, tmp_path):
    target = tmp_path / "work" / "model.pt"
    assert overlay.for_reading(target) == target
    moved = Path(overlay.for_writing(target, keep=False))
    assert moved == Path(f"{tmp_path}/over{target}")
    moved.write_text("new")
    assert Path(overlay.for_reading(target)) == moved
    assert not target.exists()


def test_appending_keeps_what_was_there(overlay, tmp_path):
    log = tmp_path / "work" / "log.txt"
    log.write_text("before")
    moved = Path(overlay.for_writing(log, keep=True))
    with moved.open("a") as file:
        file.write(" after")
    assert moved.read_text() == "before after"
    assert log.read_text() == "before"


@pytest.mark.parametrize("path", ["cache/x", "session/steps.bin", "over/y"])
def test_exempt_paths_stay(overlay, tmp_path, path):
    assert overlay.moved(tmp_path / path) is None


def test_a_job_inside_an_exempt_folder_is_moved(overlay, tmp_path):
    assert overlay.moved(tmp_path / "cache" / "job" / "model.pt") is not None


@pytest.mark.parametrize("thing", [3, True, None, "/dev/null"])
def test_descriptors_and_devices_are_no_files_of_a_run(overlay, thing):
    assert overlay.moved(thing) is None


def test_a_missing_folder_is_still_missing(overlay, tmp_path):
    """The script would have got FileNotFoundError, and gets it."""
    moved = overlay.for_writing(tmp_path / "nowhere" / "deep" / "x", keep=False)
    with pytest.raises(FileNotFoundError):
        Path(moved).write_text("")
