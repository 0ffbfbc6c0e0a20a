"""What happened when: the columnar Timeline and its readers.

timeline = read_trace("trace.json.gz")
timeline.names[timeline.name[0]], timeline.start_ns[0], timeline.duration_ns[0]
"""

from __future__ import annotations

from steptime.timeline.kineto import read_trace
from steptime.timeline.timeline import EventKind, Inputs, Lane, Timeline, TraceQuality, build, merge

__all__ = ["EventKind", "Inputs", "Lane", "Timeline", "TraceQuality", "build", "merge", "read_trace"]
