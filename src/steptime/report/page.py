"""The page: verdict first, then the sections, into one HTML text that loads nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from steptime import __version__
from steptime.errors import SteptimeError
from steptime.explain import Explanation
from steptime.report import numbers, palette
from steptime.report.blocks import Section
from steptime.report.sections_findings import findings_section
from steptime.report.sections_machine import roofline_section, utilisation_section
from steptime.report.sections_ops import ops_section
from steptime.report.sections_provenance import provenance_section
from steptime.report.sections_step import step_section
from steptime.report.sections_tuning import quality_section, remedies_section
from steptime.report.tuning import Tuning, read_tuning


def render_report(
    explanation: Mapping[str, Any] | None,
    tuning: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> str:
    """The report as HTML.

    Args:
        explanation: what `steptime explain --json` printed, of the unchanged script.
        tuning: what `steptime tune --json` printed; an explanation it carries (`explanation`, `explanation_after`) is
            used where none is passed.
        provenance: what the ledger knows of the run.
        after: an explanation of the script under the plan.

    Raises:
        SteptimeError: neither an explanation nor a tune result, or one that cannot be read.
    """
    if explanation is None and tuning is None:
        raise SteptimeError(
            "nothing to report", mend="pass the JSON of steptime explain or steptime tune, or a run of the ledger"
        )
    if tuning:
        explanation = explanation or tuning.get("explanation")
        after = after or tuning.get("explanation_after")
        told = {key: tuning[key] for key in ("run", "command", "spent_s") if tuning.get(key)}
        provenance = provenance or tuning.get("provenance") or told
        if explanation and not explanation.get("findings"):
            explanation = {**explanation, "findings": tuning.get("findings") or []}
    before = Explanation.from_json(explanation) if explanation else None
    later = Explanation.from_json(after) if after else None
    tuned = read_tuning(tuning) if tuning else None
    found = (
        step_section(before, later, tuned),
        remedies_section(tuned),
        roofline_section(before),
        findings_section(before),
        ops_section(before),
        quality_section(tuned),
        utilisation_section(before),
        provenance_section(before, tuned, provenance),
    )
    return _fill(before, tuned, provenance or {}, [section for section in found if section])


def _fill(
    before: Explanation | None, tuned: Tuning | None, provenance: Mapping[str, Any], sections: list[Section]
) -> str:
    headline, lead = _verdict(before, tuned)
    command = _command(provenance) or (_command({"command": before.facts.process.get("argv")}) if before else "")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=f"steptime: {command or headline}",
            version=__version__,
            written=str(provenance.get("created") or ""),
            kicker=_machine(before),
            command=command,
            headline=headline,
            lead=lead,
            facts=_facts(before, tuned),
            sections=sections,
            css=_css(),
            js=Markup(_source("report.js")),  # ours, and a script element is not parsed for entities
        )
    )


def _verdict(before: Explanation | None, tuned: Tuning | None) -> tuple[str, list[str]]:
    """The sentence the page opens with, and what else a reader must know at once."""
    if tuned is None:
        return (before.verdict if before else ""), []
    lead = [before.verdict] if before and before.verdict else []
    if tuned.ratio is None:
        if tuned.kept:
            said = f"{tuned.kept} of {len(tuned.remedies)} remedies kept; no run has confirmed them together."
        else:
            return "No change was proven to speed this step up.", lead
        return f"{said} {_quality(tuned)}", lead
    times = ""
    if tuned.before_s is not None and tuned.after_s is not None:
        times = f"{numbers.duration(1e9 * tuned.after_s)} a step instead of {numbers.duration(1e9 * tuned.before_s)}: "
    ratio = numbers.ratio_interval(tuned.ratio, tuned.ratio_low, tuned.ratio_high)
    if tuned.ratio_low is not None and tuned.ratio_low <= 1:
        return f"{times}{ratio} the speed, so no speed-up is proven. {_quality(tuned)}", lead
    return f"{times}{ratio} as fast. {_quality(tuned)}", lead


def _quality(tuned: Tuning) -> str:
    seeds = max((len(loss.baseline) for loss in tuned.losses), default=0)
    return f"Quality: {tuned.quality} ({seeds} paired seeds)." if seeds else f"Quality: {tuned.quality}."


def _facts(before: Explanation | None, tuned: Tuning | None) -> list[dict[str, str]]:
    """The figures under the headline."""
    facts = []
    if tuned and tuned.before_s is not None:
        facts.append({"name": "step before", "value": numbers.duration(1e9 * tuned.before_s), "small": ""})
    if tuned and tuned.after_s is not None:
        facts.append({"name": "step after", "value": numbers.duration(1e9 * tuned.after_s), "small": ""})
    if before and not tuned:
        step = before.step
        ends = numbers.duration_interval(step.median_ns, step.low_ns, step.high_ns).partition("[")[2]
        facts.append(
            {
                "name": f"step, {step.measured}",
                "value": numbers.duration(step.median_ns),
                "small": f"[{ends}, median of {step.n}" if ends else f"median of {step.n}",
            }
        )
    if tuned and tuned.ratio is not None:
        interval = ""
        if tuned.ratio_low is not None and tuned.ratio_high is not None:
            interval = f"[{tuned.ratio_low:.2f}, {tuned.ratio_high:.2f}]"
        facts.append({"name": "before / after", "value": numbers.ratio(tuned.ratio), "small": interval})
    if tuned and tuned.kept:
        facts.append({"name": "quality", "value": tuned.quality, "small": ""})
    if before and before.mfu is not None:
        facts.append({"name": "MFU before" if tuned else "MFU", "value": numbers.percent(before.mfu), "small": ""})
    if before and before.inflation is not None and not tuned:
        facts.append(
            {
                "name": "tracing inflation",
                "value": numbers.ratio(before.inflation),
                "small": "taken out below" if before.inflation > 1 else "within the noise",
            }
        )
    return facts


def _machine(before: Explanation | None) -> str:
    if before is None:
        return ""
    facts = before.facts
    ranks = f"{facts.world_size} ranks" if facts.world_size > 1 else ""
    threads = f"{facts.threads} threads" if facts.threads else ""
    torch = f"torch {facts.torch}" if facts.torch else ""
    return ", ".join(part for part in (facts.device, threads, ranks, torch) if part)


def _command(provenance: Mapping[str, Any]) -> str:
    command = provenance.get("command") or ""
    return shlex.join(map(str, command)) if isinstance(command, list | tuple) else str(command)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("steptime.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]


@cache
def _css() -> Markup:
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{palette.variables(palette.DARK)}}}}}"
    return Markup(f":root{{{palette.variables(palette.LIGHT)}}}{dark}{palette.classes()}{_source('report.css')}")
