"""Where the training thread's Python stands: the agent's folded stack samples."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

LINES_KEPT = 12

_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_NOT_THE_USERS = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/steptime/(agent|kernels)/")


def hottest_lines(path: Path | None) -> tuple[tuple[str, float], ...]:
    """(line, share of the samples) of the innermost frame of the user's own code, most samples first.

    A frame is "file.py:12 function"; samples without a frame of the user's own count for the innermost frame of all.
    An unreadable or empty file gives an empty tuple: stacks are an extra, never the reason for a failure.
    """
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        frames = [match for frame in stack.split(";") if (match := _FRAME.match(frame))]
        own = [frame for frame in frames if not _NOT_THE_USERS.search(frame["file"])]
        if frames:
            frame = (own or frames)[-1]
            counts[f"{Path(frame['file']).name}:{frame['line']} {frame['function']}"] += int(count)
    total = sum(counts.values())
    return tuple((line, round(count / total, 4)) for line, count in counts.most_common(LINES_KEPT))
