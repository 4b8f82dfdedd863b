"""The page in a real browser, opened from disk."""

import shutil

import pytest

from fixtures.studies import NASTY, Study, write_plant
from memloc.reporting.page import render, write_report
from memloc.reporting.sentences import summarise
from memloc.seeds import generator
from memloc.stats.calibration import weakness

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
def path(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(render(results, summarise(results)), encoding="utf-8")
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
        spoken = watched.figure(name).locator(".chart").get_attribute("aria-label")
        assert spoken == watched.page.locator(f"#title-{name}").text_content()
    assert watched.said == []
    assert [url for url in watched.asked if not url.startswith(("data:", "blob:"))] == [
        path.as_uri()
    ]


def test_a_tooltip_shows_the_value_of_the_table(watched, results):
    figure = watched.figure("windows")
    watched.settled("windows", "tiny-acceptability")
    cell = figure.locator("svg path[aria-label]").first
    label = cell.get_attribute("aria-label")
    cell.hover()
    tooltip = watched.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    windows = results.windows
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


def test_a_click_in_the_legend_leaves_one_task(watched):
    figure = watched.figure("layers")
    lines = figure.locator(".mark-line path")
    assert {line.get_attribute("opacity") for line in lines.all()} == {"1"}
    figure.get_by_text("tiny-acceptability", exact=True).first.click()
    figure.locator(".mark-line path[opacity='0.08']").first.wait_for()
    shown = [line for line in lines.all() if line.get_attribute("opacity") == "1"]
    assert len(shown) == 1


def test_choosing_a_task_and_a_method_draws_their_rows(watched, results):
    watched.figure("layers")
    watched.figure("training")
    watched.choose("task", "tiny-topic")
    watched.settled("training", "tiny-topic")
    watched.choose("method", "probing")
    watched.choose("model", "tiny-opt")
    watched.settled("layers", "probing")
    watched.settled("layers", "tiny-opt")
    layers = results.layers
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
    assert watched.page.inner_text("#figure-layers .against") == weakness("probing")
    assert watched.said == []


def test_instead_of_a_method_without_windows_the_surest_one_is_drawn(watched):
    watched.figure("windows")
    watched.choose("method", "gradients")
    said = watched.page.locator("#figure-windows .against", has_text="gradients")
    said.wait_for()
    assert "By swapping, because gradients does not give this." in said.inner_text()
    watched.settled("windows", "swapping")
    assert watched.page.locator("#figure-windows .missing").count() == 0


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
    button = rows.first.locator("button")
    button.focus()
    watched.page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
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
    assert "…" not in found.figure("strip").locator("svg").first.text_content()  # no name is cut
    for name in ("strip", "control-methods", "layers", "mcog-models", "examples"):
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
    assert "There is no run yet" in found.page.locator("#answer").inner_text()
    assert found.said == []
    found.context.close()


def test_a_half_finished_study_opens_too(browser, tmp_path):
    study = Study(methods=(), analyses=(), control=0)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    found = Watched(browser, write_report(tmp_path).path)
    found.figure("training")
    assert found.page.locator("#figure-layers").count() == 0
    assert "memloc localise" in found.page.locator("#absent").inner_text()
    assert found.said == []
    found.context.close()


def test_a_page_of_plants_alone_chooses_methods_in_each_figure(browser, tmp_path):
    place = ("tiny-topic", "tiny-opt", range(2), False)
    write_plant(tmp_path, Study(depth=4), place, generator(1, "plants"))
    found = Watched(browser, write_report(tmp_path).path)
    figure = found.figure("control-layers")
    assert figure.locator("[data-choose=method]").count() == 1
    assert "because" not in figure.inner_text()
    assert found.said == []
    found.context.close()


def test_the_first_screen_has_the_answer_and_its_picture(watched):
    answer = watched.page.locator(".answer").bounding_box()
    picture = watched.page.locator("#figure-strip svg")
    picture.wait_for()
    assert answer["y"] < picture.bounding_box()["y"] < 500
    trust = watched.page.get_by_text("How far to trust it").bounding_box()
    assert trust["y"] < 900


def test_numbers_of_a_figure_are_a_table_for_those_who_do_not_hover(watched, results):
    figure = watched.figure("strip")
    figure.locator("summary").focus()
    watched.page.keyboard.press("Enter")
    cells = figure.locator(".numbers td")
    cells.first.wait_for()
    assert figure.locator(".numbers th").first.inner_text() == "task"
    assert cells.count() == 9 * len(results.strip)


CONTRAST = """() => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return parts(getComputedStyle(document.body).backgroundColor);
  };
  const low = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg, script, .strip, .grid") || !e.checkVisibility()) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const both = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const [less, more] = both.sort((x, y) => x - y);
    if ((more + 0.05) / (less + 0.05) < 4.5) low.add(`${e.tagName}: ${e.textContent.slice(0, 40)}`);
  }
  return [...low];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser, path, scheme):
    found = Watched(browser, path, color_scheme=scheme)
    found.figure("strip")
    assert found.page.evaluate(CONTRAST) == []
    found.context.close()
