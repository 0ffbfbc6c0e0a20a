"""Small Timelines for tests: events as tuples instead of columns."""

from steptime.timeline import EventKind, Inputs, Lane, Timeline, build

HOST, OTHER_THREAD, STREAM = 0, 1, 2
LANES = (
    Lane(rank=0, pid=1, tid=1, label="main", is_device=False),
    Lane(rank=0, pid=1, tid=2, label="worker", is_device=False),
    Lane(rank=0, pid=0, tid=7, label="stream 7", is_device=True),
)


def timeline(*events: tuple, table: tuple[Inputs, ...] = ()) -> Timeline:
    """Events are (name, start, end, kind, lane=HOST, links={}) with times in ns."""
    names: dict[str, int] = {}
    columns: dict[str, list] = {
        key: []
        for key in ("start_ns", "duration_ns", "rank", "lane", "kind", "name", "correlation", "sequence", "inputs")
    }
    for name, start, end, kind, *rest in events:
        lane = rest[0] if rest else HOST
        links = rest[1] if len(rest) > 1 else {}
        columns["start_ns"].append(start)
        columns["duration_ns"].append(end - start)
        columns["rank"].append(0)
        columns["lane"].append(lane)
        columns["kind"].append(kind)
        columns["name"].append(names.setdefault(name, len(names)))
        for key in ("correlation", "sequence", "inputs"):
            columns[key].append(links.get(key, -1))
    return build(columns=columns, names=tuple(names), lanes=LANES, input_table=table)


OP, MARK, PYTHON, CALL = EventKind.CPU_OP, EventKind.ANNOTATION, EventKind.PYTHON, EventKind.RUNTIME
KERNEL, COPY, COLLECTIVE = EventKind.KERNEL, EventKind.MEMCPY, EventKind.COMMUNICATION
