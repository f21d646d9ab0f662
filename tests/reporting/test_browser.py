"""The page in a real browser: nothing complains, every plot is to be seen, and a phone need not scroll sideways."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oelm.reporting.report import report
from oelm.runfolder import RunFolder
from tests.conftest import needs

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    needs("chromium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=["en", "zh"])
def page(request: pytest.FixtureRequest, runs: list[RunFolder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(runs, tmp_path_factory.mktemp("page") / f"{request.param}.html", lang=request.param).paths[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("desk", 1200), ("phone", 390)])
def test_the_page_is_read_without_complaint(browser: Any, page: Path, scheme: str, device: str, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())

    assert browser.get_log("browser") == []
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 11
    assert all(box["width"] > 200 and box["height"] > 60 for box in boxes)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    paper, ink, axis = (browser.execute_script(f"return {value}") for value in COLOURS)
    assert axis == ink  # the figures' ink is that of the text
    assert (sum(rgb(paper)) > sum(rgb(ink))) == (scheme == "light")

    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "height": height})
    ARTIFACTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(ARTIFACTS / f"report-{page.stem}-{device}-{scheme}.png"))


COLOURS = (
    "getComputedStyle(document.documentElement).backgroundColor",
    "getComputedStyle(document.body).color",
    "getComputedStyle(document.querySelector('figure svg text')).fill",
)


def rgb(colour: str) -> list[int]:
    return [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
