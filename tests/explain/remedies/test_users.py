"""Files of the user's own remedies: read, never executed."""

import pytest

from steptime.errors import SteptimeError
from steptime.explain.remedies import read_remedy


def written(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


def test_the_constants_and_the_docstring_are_the_remedy(tmp_path):
    text = '"""Sleeps no longer."""\nNAME = "no_sleep"\nCHANGES_NUMERICS = "rounding"\nSAVES = (0.1, 0.2, 0.3)\n'
    remedy, saves = read_remedy(written(tmp_path, text + "def apply(report): ...\n"))
    assert (remedy.name, remedy.why, remedy.changes_numerics) == ("no_sleep", "Sleeps no longer.", "rounding")
    assert saves == (0.1, 0.2, 0.3)
    assert remedy.extra == tmp_path / "mine.py"


def test_it_is_not_executed(tmp_path):
    read_remedy(written(tmp_path, "raise SystemExit\ndef apply(report): ...\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("X = 1\n", "no function apply"),
        ("def apply(report: ...\n", "not valid Python"),
        ('CHANGES_NUMERICS = "all"\ndef apply(report): ...\n', "CHANGES_NUMERICS is 'all'"),
        ("SAVES = (3, 2, 1)\ndef apply(report): ...\n", "three growing shares"),
        ("NAME = some()\ndef apply(report): ...\n", "NAME is not a literal"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, text, says):
    with pytest.raises(SteptimeError, match=says):
        read_remedy(written(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(SteptimeError, match="cannot be read"):
        read_remedy(tmp_path / "none.py")
