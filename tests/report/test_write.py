from __future__ import annotations

import resource
import signal

import pytest

from steptime.errors import SteptimeError
from steptime.report import write_report


def test_the_whole_page_is_written_and_nothing_else(tmp_path, explanation, tuning):
    path = write_report(tmp_path / "report.html", explanation, tuning, None)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert path.stat().st_mode & 0o400


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path, explanation):
    with pytest.raises(SteptimeError, match=r"missing/report\.html: the report cannot be written"):
        write_report(tmp_path / "missing" / "report.html", explanation)


def test_a_full_disk_leaves_the_old_report_and_no_half(tmp_path, explanation):
    path = tmp_path / "report.html"
    path.write_text("the old one")
    before, old = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # stands in for a disk that fills after 1000 bytes
    try:
        with pytest.raises(SteptimeError, match="cannot be written"):
            write_report(path, explanation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert path.read_text() == "the old one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_bad_record_leaves_no_file(tmp_path):
    with pytest.raises(SteptimeError):
        write_report(tmp_path / "report.html", {"version": 1})
    assert list(tmp_path.iterdir()) == []
