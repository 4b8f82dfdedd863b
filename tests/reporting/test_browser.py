"""The page in a real browser, opened from disk."""

import shutil

import pytest

from memloc.reporting.page import render, write_report
from memloc.reporting.sentences import summarise
from study_support import NASTY, Study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def path(findings, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(render(findings, summarise(findings)), encoding="utf-8")
    return path


class Watched:
    """A page, and what it said and asked for."""

    def __init__(self, browser, path, **options):
        wide = {"viewport": {"width": 1280, "height": 900}}
        self.context = browser.new_context(**{**wide, **options})
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def figure(self, name):
        """The figure of that name, drawn."""
        figure = self.page.locator(f"#figure-{name}")
        figure.scroll_into_view_if_needed()
        figure.locator("svg").first.wait_for()
        return figure

    def choose(self, what, value):
        self.page.locator(f"#chooser [data-choose={what}]").select_option(value)

    def settled(self, name, text):
        """Wait until the figure is drawn with a choice that has that text."""
        found = f"#figure-{name} .chart[data-drawn*='{text}']"
        self.page.locator(found).wait_for()


@pytest.fixture
def watched(browser, path):
    found = Watched(browser, path)
    yield found
    found.context.close()


def test_every_figure_is_drawn_without_a_word_or_a_request(watched, path):
    names = watched.page.eval_on_selector_all(
        "[data-figure]", "all => all.map(one => one.dataset.figure)"
    )
    assert len(names) > 15
    for name in names:
        watched.figure(name)
    assert watched.said == []
    assert [url for url in watched.asked if not url.startswith(("data:", "blob:"))] == [
        path.as_uri()
    ]


def test_a_tooltip_shows_the_value_of_the_table(watched, findings):
    figure = watched.figure("windows")
    watched.settled("windows", "tiny-acceptability")
    cell = figure.locator("svg path[aria-label]").first
    label = cell.get_attribute("aria-label")
    cell.hover()
    tooltip = watched.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    windows = findings.results.windows
    mine = windows[
        (windows["task"] == "tiny-acceptability")
        & (windows["model"] == "tiny-bert")
        & (windows["method"] == "swapping")
    ]
    assert "layer: 1" in label
    words = " ".join(tooltip.inner_text().split())
    width = int(words.split("layers changed ")[1].split()[0])
    inside = mine[(mine["first"] <= 1) & (mine["last"] - mine["first"] + 1 == width)]
    assert f"{inside['normalised'].mean():.1%}" in words


def test_choosing_a_task_and_a_method_draws_their_rows(watched, findings):
    watched.figure("layers")
    watched.figure("training")
    watched.choose("task", "tiny-topic")
    watched.settled("training", "tiny-topic")
    watched.choose("method", "probing")
    watched.choose("model", "tiny-opt")
    watched.settled("layers", "probing")
    watched.settled("layers", "tiny-opt")
    layers = findings.results.layers
    mine = layers[
        (layers["task"] == "tiny-topic")
        & (layers["model"] == "tiny-opt")
        & (layers["method"] == "probing")
        & (layers["layer"] == 2)
    ]
    labels = watched.page.eval_on_selector_all(
        "#figure-layers svg path[aria-label]", "all => all.map(p => p.getAttribute('aria-label'))"
    )
    found = [text for text in labels if "task: tiny-topic" in text and "layer: 2;" in text]
    assert any(f"weight: {mine['weight'].mean():.4f}"[:-2] in text for text in found), found
    assert watched.said == []


def test_a_method_without_windows_says_what_would_make_them(watched):
    watched.figure("windows")
    watched.choose("method", "gradients")
    missing = watched.page.locator("#figure-windows .missing")
    missing.wait_for()
    assert "memloc localise" in missing.inner_text()
    assert "gradients" in missing.inner_text()


def test_a_figures_own_choice_changes_that_figure(watched):
    figure = watched.figure("centroids")
    figure.locator("[data-choose=variant]").select_option("top")
    watched.settled("centroids", "top")


def test_examples_can_be_searched_and_show_every_window(watched):
    table = watched.page.locator("#example-table")
    table.scroll_into_view_if_needed()
    rows = table.locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 7
    assert NASTY in rows.first.inner_text()
    watched.page.locator("#search").fill("</STYLE>")
    assert rows.count() == 1
    assert "1 of 7 noisy examples" in watched.page.locator("#found").inner_text()
    rows.first.click()
    grid = table.locator(".grid i.window")
    assert grid.count() == 10
    assert table.locator(".grid i.reverts").count() >= 1
    watched.page.locator("#search").fill("no such words")
    assert rows.count() == 0
    assert watched.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser, path, tmp_path, scheme, width):
    size = {"width": width, "height": 900}
    found = Watched(browser, path, color_scheme=scheme, viewport=size)
    for name in ("control-methods", "layers", "mcog-models", "examples"):
        found.figure(name)
        chart = found.page.locator(f"#figure-{name} .chart")
        assert chart.evaluate("box => box.scrollWidth - box.clientWidth") <= 1, name
    assert found.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    background = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
    picture = tmp_path / "page.png"
    found.page.screenshot(path=picture)
    assert picture.stat().st_size > 10_000
    found.context.close()


def test_an_empty_study_opens_too(browser, tmp_path):
    (tmp_path / "empty").mkdir()
    found = Watched(browser, write_report(tmp_path / "empty").path)
    assert "There is no run yet" in found.page.locator("#summary").inner_text()
    assert found.said == []
    found.context.close()


def test_a_half_finished_study_opens_too(browser, tmp_path):
    study = Study(methods=(), analyses=(), control=0)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    found = Watched(browser, write_report(tmp_path).path)
    found.figure("training")
    assert found.page.locator("#figure-layers .missing").is_visible()
    assert found.said == []
    found.context.close()
