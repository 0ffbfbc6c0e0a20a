"""Where the training thread's Python stands: the agent's folded stack samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINES_KEPT = 12

_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_NOT_THE_USERS = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/steptime/(agent|kernels)/")


def hottest_lines(path: Path | None, below: str = "") -> tuple[tuple[str, float], ...]:
    """(line, share of the samples) of the innermost frame of the user's own code, most samples first.

    A frame is "file.py:12 function"; samples without a frame of the user's own count for the innermost frame of all.
    `below`: only the samples in whose stack a file of this path part stands, and of them the frames below it.
    An unreadable or empty file gives an empty tuple: stacks are an extra, never the reason for a failure.
    """
    counts: Counter[str] = Counter()
    total = 0
    for frames, count in _samples(path):
        total += count
        above = [number for number, frame in enumerate(frames) if below in frame["file"]]
        if not above:
            continue
        frames = frames[above[-1] if below else 0 :]
        own = [frame for frame in frames if not _NOT_THE_USERS.search(frame["file"])]
        frame = (own or frames)[-1]
        counts[f"{Path(frame['file']).name}:{frame['line']} {frame['function']}"] += count
    return tuple((line, round(count / total, 4)) for line, count in counts.most_common(LINES_KEPT))


def _samples(path: Path | None) -> Iterator[tuple[list[re.Match[str]], int]]:
    """Frames (outermost first) and count of each folded stack."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []
    except OSError:
        return
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [match for frame in stack.split(";") if (match := _FRAME.match(frame))]
        if frames and count.isdigit():
            yield frames, int(count)
