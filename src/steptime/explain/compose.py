"""Puts an Explanation together: from a session (untraced and traced steps of every rank) or from traces alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from steptime.attach import RankRecord, SessionRecord
from steptime.errors import SteptimeError
from steptime.explain.account import IDLE, Account, account
from steptime.explain.breakdown import tabulate
from steptime.explain.cells import PHASES, RESOURCES, Breakdown
from steptime.explain.correct import Corrected, bootstrap_medians, correct, most_per_event_ns
from steptime.explain.explanation import CorrectedCell, Explanation, Facts, Gap, RankRow, StepTime
from steptime.explain.findings import find
from steptime.explain.gaps import gap_sources
from steptime.explain.operations import Work, op_rows
from steptime.explain.stacks import hottest_lines
from steptime.explain.sweep import Segments
from steptime.explain.utilisation import Ceilings, utilisation
from steptime.explain.verdict import verdict
from steptime.timeline import Timeline, read_trace

UNTRACED, TRACED = 1, 2
"""Window codes of a session's steps (ARCHITECTURE.md)."""

GAPS_KEPT = 40


def explain_session(record: SessionRecord, calibration: Ceilings | None = None) -> Explanation:
    """One explanation over all ranks that a session measured; the lowest rank with a trace is the reference.

    Raises:
        SteptimeError: no rank found a training step, or a trace that cannot be read.
    """
    ranks = _ranks(record)
    notes, dropped = [], list(record.dropped)
    if record.unattached:
        notes.append(f"{len(record.unattached)} processes with torch were not measured: " + _listed(record.unattached))
    reference = next((rank for rank in ranks if rank.trace is not None), ranks[0])
    untraced = _untraced(reference)
    if not len(untraced):
        raise SteptimeError(
            f"the script ended after {len(reference.steps)} training steps, before one could be timed",
            mend="give it more steps",
        )
    facts = _facts(record, reference)
    accounts = {rank.rank: account(read_trace(rank.trace)) for rank in ranks if rank.trace is not None}
    if reference.rank not in accounts:
        return _untraced_only(untraced, facts, tuple(dropped), tuple(notes), reference)
    main = accounts[reference.rank]
    rows = tuple(_rank_row(rank.rank, rank.pid, _untraced(rank), accounts.get(rank.rank)) for rank in ranks)
    return _compose(
        main,
        untraced,
        "untraced",
        calibration,
        facts,
        rows,
        reference.stacks,
        tuple(dropped),
        tuple(notes),
    )


def explain_trace(timeline: Timeline, calibration: Ceilings | None = None) -> Explanation:
    """The explanation of traces alone: the step time is the traced one, and nothing is corrected.

    Raises:
        SteptimeError: the trace holds no time to explain.
    """
    accounts = {rank: account(timeline.of_rank(rank)) for rank in timeline.ranks}
    if not accounts or not any(len(each.windows) for each in accounts.values()):
        raise SteptimeError("the trace holds no step and no op")
    reference = next(rank for rank, each in accounts.items() if len(each.windows))
    steps = {
        rank: np.array([window.end_ns - window.start_ns for window in each.windows], np.int64)
        for rank, each in accounts.items()
    }
    rows = tuple(_rank_row(rank, 0, steps[rank], accounts[rank]) for rank in accounts)
    notes = ("only a trace: its times include what tracing cost; run the script under steptime explain to know it",)
    facts = Facts(device=timeline.device or "cpu", world_size=timeline.world_size)
    return _compose(accounts[reference], steps[reference], "traced", calibration, facts, rows, None, (), notes)


def _compose(
    main: Account,
    steps_ns: np.ndarray,
    measured: str,
    calibration: Ceilings | None,
    facts: Facts,
    ranks: tuple[RankRow, ...],
    samples: Path | None,
    dropped: tuple[str, ...],
    notes: tuple[str, ...],
) -> Explanation:
    breakdown = tabulate(main)
    if not breakdown.total_ns:
        raise SteptimeError("the traced steps have no time in them")
    per_step = np.array([cell.ns for cell in breakdown.cells], np.float64) / breakdown.steps
    events = np.array([cell.events for cell in breakdown.cells], np.float64) / breakdown.steps
    paid = events if measured == "untraced" else np.zeros_like(events)
    correction = correct(per_step, paid, steps_ns, most_ns=most_per_event_ns(facts.process.get("event_ns")))
    numbers = {(cell.resource, cell.group, cell.phase): row for row, cell in enumerate(breakdown.cells)}
    work = Work(main.host)
    ops = op_rows(main, work, numbers, correction)
    share = correction.ns / np.maximum(per_step, 1.0)
    use, ideal_ns = utilisation(main, work, ops, share[_cell_of_pieces(main, numbers)], calibration)
    cells = _corrected_cells(breakdown, correction, events)
    quality = main.timeline.quality
    notes += quality.notes
    inflation = breakdown.step_ns / correction.median_ns if measured == "untraced" and correction.median_ns else None
    explanation = Explanation(
        step=StepTime(
            median_ns=correction.median_ns,
            low_ns=correction.step_low_ns,
            high_ns=correction.step_high_ns,
            n=len(steps_ns),
            measured=measured,
        ),
        traced_step_ns=breakdown.step_ns,
        inflation=inflation,
        breakdown=breakdown,
        corrected=cells,
        ops=ops,
        gaps=_gaps(main, breakdown, numbers, correction, samples),
        utilisation=use,
        mfu=ideal_ns / correction.median_ns if ideal_ns and correction.median_ns else None,
        ranks=ranks,
        facts=facts,
        verdict=verdict(correction.median_ns, cells, ranks, has_steps=breakdown.window != "trace"),
        stacks=hottest_lines(samples),
        quality={name: value for name, value in asdict(quality).items() if name != "notes"},
        dropped=dropped,
        notes=notes,
    )
    return replace(explanation, findings=find(explanation))


def _corrected_cells(breakdown: Breakdown, correction: Corrected, events: np.ndarray) -> tuple[CorrectedCell, ...]:
    cells = [
        CorrectedCell(
            resource=cell.resource,
            group=cell.group,
            phase=cell.phase,
            ns=int(correction.ns[row]),
            low_ns=int(correction.low_ns[row]),
            high_ns=int(correction.high_ns[row]),
            events=round(float(events[row]), 3),
        )
        for row, cell in enumerate(breakdown.cells)
    ]
    return tuple(sorted(cells, key=lambda cell: -cell.ns))


def _cell_of_pieces(main: Account, numbers: Mapping[tuple[str, str, str], int]) -> np.ndarray:
    table = np.zeros((len(RESOURCES), len(main.labels), len(PHASES)), np.int64)
    for (resource, label, phase), row in numbers.items():
        table[RESOURCES.index(resource), main.labels.index(label), PHASES.index(phase)] = row
    return table[main.resource, main.label, main.phase]


def _gaps(
    main: Account,
    breakdown: Breakdown,
    numbers: Mapping[tuple[str, str, str], int],
    correction: Corrected,
    samples: Path | None,
) -> tuple[Gap, ...]:
    """Idle pieces by cause, phase and source, most time first; each cell's corrected time shared by traced time.

    A trace without Python functions names the ops around a gap; the loader's line is known from the stack samples.
    """
    loader = hottest_lines(samples, below="torch/utils/data")
    segments = main.segments
    idle = np.flatnonzero(main.resource == IDLE)
    before, after = _busy_neighbours(segments.owner)
    pieces = Segments(
        start_ns=segments.start_ns[idle], end_ns=segments.end_ns[idle], owner=np.full(len(idle), -1, np.int64)
    )
    sources = gap_sources(main.host, pieces, before[idle], after[idle])
    sums: dict[tuple[int, str], list[int]] = {}
    cells = _cell_of_pieces(main, numbers)[idle]
    for cell, source, ns in zip(cells.tolist(), sources, pieces.duration_ns.tolist(), strict=True):
        if loader and breakdown.cells[cell].group == "data":
            source = loader[0][0]
        total = sums.setdefault((cell, source), [0, 0])
        total[0] += ns
        total[1] += 1
    gaps = []
    for (row, source), (ns, calls) in sums.items():
        cell = breakdown.cells[row]
        share = ns / cell.ns if cell.ns else 0.0
        gaps.append(
            Gap(
                cause=cell.group,
                phase=cell.phase,
                ns=round(share * int(correction.ns[row])),
                low_ns=int(share * int(correction.low_ns[row])),
                high_ns=int(np.ceil(share * int(correction.high_ns[row]))),
                calls_per_step=round(calls / breakdown.steps, 3),
                source=source,
            )
        )
    return tuple(sorted(gaps, key=lambda gap: -gap.ns)[:GAPS_KEPT])


def _busy_neighbours(owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last owner before and the first after each piece, -1 at the ends; idle pieces in between are skipped."""
    rows = np.arange(len(owner))
    last = np.maximum.accumulate(np.where(owner >= 0, rows, -1))
    following = np.minimum.accumulate(np.where(owner >= 0, rows, len(owner))[::-1])[::-1]
    padded = np.append(owner, -1)
    return padded[last], padded[following]


def _ranks(record: SessionRecord) -> list[RankRecord]:
    """One process a rank: after a restart the one with more steps.

    Raises:
        SteptimeError: none has a step; says what was seen instead.
    """
    best: dict[int, RankRecord] = {}
    for rank in record.ranks:
        if rank.rank not in best or len(rank.steps) > len(best[rank.rank].steps):
            best[rank.rank] = rank
    found = [best[rank] for rank in sorted(best) if len(best[rank].steps)]
    if found:
        return found
    if record.unattached:
        raise SteptimeError(
            "the agent did not get into the training process "
            f"({_listed(record.unattached)}: {record.unattached[0].why}: {record.unattached[0].command})",
            mend="add `import steptime.agent.here` as the script's first line, "
            "or install a .pth: steptime attach --install-pth PYTHON",
        )
    if record.dropped:
        raise SteptimeError(f"no step could be recorded: {'; '.join(record.dropped)}")
    seen = f"{record.torch_processes} processes used torch, none made an optimizer step"
    raise SteptimeError(
        f"no training step was found: {seen if record.torch_processes else 'no process used torch'}",
        mend="steptime sees a step where a torch optimizer steps",
    )


def _untraced(rank: RankRecord) -> np.ndarray:
    measured = rank.steps.durations_of(UNTRACED)
    # a script that ended in the warm-up has no untraced window yet: its own steps are the best that is known
    return measured if len(measured) else rank.steps.durations_of(0)[1:]


def _listed(items: Any) -> str:
    return ", ".join(f"pid {item.pid}" for item in items[:4]) + (", ..." if len(items) > 4 else "")


def _rank_row(rank: int, pid: int, steps_ns: np.ndarray, accounts: Account | None) -> RankRow:
    broken = tabulate(accounts) if accounts is not None and len(accounts.windows) else None
    each = broken.steps if broken else 1
    return RankRow(
        rank=rank,
        pid=pid,
        step_ns=round(float(np.median(steps_ns))) if len(steps_ns) else 0,
        traced_step_ns=broken.step_ns if broken else 0,
        exposed_communication_ns=round(broken.ns(resource="exposed_communication") / each) if broken else 0,
        exposed_copy_ns=round(broken.ns(resource="exposed_copy") / each) if broken else 0,
        idle_ns=round(broken.ns(resource="idle") / each) if broken else 0,
    )


def _facts(record: SessionRecord, rank: RankRecord) -> Facts:
    process = rank.process
    return Facts(
        device="cuda" if process.get("cuda") else "cpu",
        world_size=rank.world_size,
        torch=str(process.get("torch", "")),
        framework=str(process.get("framework", "")),
        threads=process.get("threads"),
        optimizers=tuple(_without_envelope(event) for event in rank.events_named("optimizer")),
        loader=_training_loader(rank),
        process={**process, **_measured_in(rank)},
        losses=tuple(rank.losses),
    )


def _training_loader(rank: RankRecord) -> dict[str, Any]:
    """The last loader that was iterated with gradients on; one that shuffles, if any does."""
    found = [_without_envelope(event) for event in rank.events_named("loader")]
    shuffling = [loader for loader in found if loader.get("shuffles")]
    return (shuffling or found or [{}])[-1]


def _measured_in(rank: RankRecord) -> dict[str, float]:
    """What the agent counted in the process: page faults of an untraced step, the profiler's cost of an event (ns)."""
    found: dict[str, float] = {}
    edges = rank.events_named("window")
    for begin, end in pairwise(edges):
        steps = end.get("step", 0) - begin.get("step", 0)
        counted = "minor_faults" in begin and "minor_faults" in end
        if begin.get("window") == UNTRACED and steps > 0 and counted:
            found["minor_faults_per_step"] = (end["minor_faults"] - begin["minor_faults"]) / steps
    for event in rank.events_named("overhead"):
        found["event_ns"] = float(event["event_ns"])
    return found


def _without_envelope(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("event", "time_ns")}


def _untraced_only(
    untraced: np.ndarray, facts: Facts, dropped: tuple[str, ...], notes: tuple[str, ...], rank: RankRecord
) -> Explanation:
    """What can be said when the script ended before a step was traced: the step time."""
    median = round(float(np.median(untraced)))
    spread = np.percentile(bootstrap_medians(untraced), [2.5, 97.5])
    note = (
        f"the script ended after {len(rank.steps)} training steps, before one was traced: only the step time is known"
    )
    return Explanation(
        step=StepTime(
            median_ns=median,
            low_ns=min(median, int(spread[0])),
            high_ns=max(median, int(np.ceil(spread[1]))),
            n=len(untraced),
            measured="untraced",
        ),
        traced_step_ns=0,
        inflation=None,
        breakdown=Breakdown(total_ns=0, steps=0, cells=()),
        corrected=(),
        ops=(),
        gaps=(),
        utilisation=(),
        mfu=None,
        ranks=(_rank_row(rank.rank, rank.pid, untraced, None),),
        facts=facts,
        verdict=verdict(median, (), ()),
        stacks=hottest_lines(rank.stacks),
        dropped=dropped,
        notes=(*notes, note),
    )
