from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import steptime.report
from steptime.explain import CAUSES, GROUPS, RESOURCES
from steptime.report import palette

CSS = (Path(steptime.report.__file__).parent / "templates" / "report.css").read_text()
READABLE = 4.5  # WCAG 2.2, 1.4.3


def test_contrast_is_that_of_wcag():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21.0)
    # the grey that WCAG's own documents name as the lightest that passes on white
    assert palette.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
    assert palette.contrast("#ffffff", "#767676") == palette.contrast("#767676", "#ffffff")


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_labels_can_be_read_on_every_colour(colours):
    poor = {name: palette.contrast(fill, palette.ink(fill)) for name, fill in colours.items()}
    assert {name: ratio for name, ratio in poor.items() if ratio < READABLE} == {}


@pytest.mark.parametrize("block", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_the_page(block):
    variables = dict(re.findall(r"--([a-z]+):(#[0-9a-f]{6})", re.findall(r":root\{(.*?)\}", CSS, re.DOTALL)[block]))
    texts, grounds = ("ink", "soft", "accent", "good", "bad", "open"), ("paper", "panel")
    ratios = {(a, b): palette.contrast(variables[a], variables[b]) for a, b in product(texts, grounds)}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < READABLE} == {}


def test_every_cell_has_a_colour_in_both_schemes():
    assert palette.LIGHT.keys() == palette.DARK.keys()
    for resource in RESOURCES:
        for group in (*GROUPS, *CAUSES, "all_reduce", "never heard of"):
            assert palette.swatch(resource, group) in palette.LIGHT


def test_what_is_not_compute_is_told_apart_without_colour():
    patterns = [palette.pattern(palette.swatch(resource, "x")) for resource in RESOURCES]
    assert patterns[0] is None
    assert len(set(patterns)) == len(RESOURCES)
