"""The page in a real browser: headless Chromium, when it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steptime.report import write_report

pytestmark = [pytest.mark.slow, pytest.mark.spawned]
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page_file(tmp_path, explanation, tuning, after) -> Path:
    explanation["ops"][0]["name"] = "void at::native::" + "vectorized_elementwise_kernel" * 12
    explanation["ops"][1]["source"] = "/home/someone/" + "a_very_long_folder_name/" * 12 + "train.py:12"
    tuning["remedies"][0]["name"] = "a_remedy_of_the_user_whose_name_does_not_end_" * 3
    provenance = {"command": ["python", "train.py", "--" + "x" * 300], "environment": {"PATH": "/a:" * 200}}
    return write_report(tmp_path / "report.html", explanation, tuning, provenance, after)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_the_page_fits_its_window_and_complains_of_nothing(browser, page_file, width, scheme):
    said: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    context.close()


def test_pointing_at_a_part_tells_its_nanoseconds(browser, page_file, explanation):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.as_uri())
    page.hover(".wide svg .seg.f-random >> nth=0", position={"x": 5, "y": 5})
    largest = max(cell["ns"] for cell in explanation["corrected"] if cell["group"] == "random")
    assert f"{largest:,} ns" in page.inner_text("#tip")
    page.close()


def test_labels_of_a_chart_do_not_lie_on_each_other(browser, page_file):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.as_uri())
    clashes = page.evaluate(
        """() => {
          const found = [];
          for (const chart of document.querySelectorAll(".wide svg")) {
            const texts = [...chart.querySelectorAll("text")];
            const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]);
            boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
              const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
              const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
              if (across > 1 && down > 4) found.push([a, b]);
            }));
          }
          return found;
        }"""
    )
    assert clashes == []
    page.close()
