"""A running job in words: the line in which it stands first, then what it stands on."""

from __future__ import annotations

from steptime.attach.running import RunningJob, RunningProcess

FRAMES = 6


def tell(job: RunningJob) -> str:
    """The text that `steptime attach PID` prints."""
    lines: list[str] = []
    if job.late is not None:
        late = next(p for p in job.processes if p.rank == job.late and p.role == "trains")
        lines.append(f"rank {job.late} is late: the other ranks wait for it in a collective; it is at {late.line}")
    for process in job.processes:
        if process.role == "trains":
            lines += _one(process)
    others = [p for p in job.processes if p.role != "trains"]
    for role in ("launcher", "worker", "other"):
        group = [p for p in others if p.role == role]
        if group:
            pids = ", ".join(str(p.pid) for p in group)
            cpu = sum(p.cpu_percent for p in group)
            memory = sum(p.rss_bytes for p in group) / 1e9
            lines.append(
                f"{len(group)} {role}{'s' if len(group) > 1 else ''} ({pids}): {cpu:.0f}% CPU, {memory:.2f} GB"
            )
    return "\n".join(lines)


def _one(process: RunningProcess) -> list[str]:
    name = f"rank {process.rank}, PID {process.pid}" if process.rank is not None else f"PID {process.pid}"
    where = str(process.line or (process.stack[0] if process.stack else "no Python stack"))
    if process.problem:
        where = process.problem
    if process.waits_for_peers:
        manner = "waits for its peers at"
    elif process.still:
        manner = "stands still in" if process.cpu_percent < 50 else "has not left, and computes in,"
    else:
        manner = "moves; last seen in"
    told = [f"{name} {manner} {where}"]
    memory = f"{process.rss_bytes / 1e9:.2f} GB"
    told.append(f"    {process.cpu_percent:.0f}% CPU, {memory}, {process.threads} threads, {process.state}")
    told += [f"    {frame}" for frame in process.stack[:FRAMES]]
    return told
