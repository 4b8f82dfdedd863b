"""The documentation is true: its Python runs and type-checks, its commands exist."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.main import get_command

import memloc
import memloc.protocol
from fixtures.tasks import QUICK
from memloc.cli import app
from memloc.display import Plotted
from memloc.model import known
from memloc.model.load import LoadOptions, load_model
from memloc.study.config import parse_study
from studies.tutorial import STEP, hand_over, play

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
README, METHOD_PAGE = ROOT / "README.md", DOCS / "guides" / "add_a_method.md"
OWN_DATA = DOCS / "guides" / "own_data.md"
TEXTS = DOCS / "guides" / "texts.md"
TUTORIAL = DOCS / "tutorial.md"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.md"))
TOGETHER = [TUTORIAL, *NOTEBOOKS]
"""Pages whose blocks of Python continue each other."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]


LITTLE = {
    "finetune.epochs": 8,
    "finetune.near_ceiling": 0.3,
    "control.epochs": 8,
    "control.accuracy_above": 0.3,
}
"""The trainings of the documents, which end before they have memorised much."""


@pytest.fixture(scope="module")
def quick():
    """The presets on less work: what is tested is that the documents run."""
    kept = {name: dict(values) for name, values in memloc.protocol.PRESETS.items()}
    memloc.protocol.PRESETS["demo"].update(LITTLE)
    for values in memloc.protocol.PRESETS.values():
        values.update({"verdict.noisy_at_least": 0.01, **QUICK})
    memloc.methods.protocol.preset.cache_clear()
    memloc.protocol.common_preset.cache_clear()
    yield
    for name, values in memloc.protocol.PRESETS.items():
        values.clear()
        values.update(kept[name])
    memloc.methods.protocol.preset.cache_clear()
    memloc.protocol.common_preset.cache_clear()


@pytest.fixture(scope="module")
def shorter(tmp_path_factory):
    """Replaces the embedded OPT by its first eight layers, which have a 16th of the subsets."""
    home = tmp_path_factory.mktemp("short") / "tiny-opt"
    shutil.copytree(known.tiny_folder("tiny-opt"), home)
    short = load_model("tiny-opt", [], options=LoadOptions(depth=8))
    for saved in (short.model.base_model, short.tokenizer):
        saved.save_pretrained(home)
    real = known.tiny_folder

    def shorten(patch):
        patch.setattr(known, "tiny_folder", lambda n: home if n == "tiny-opt" else real(n))

    return shorten


@pytest.fixture
def at_desk(desk, shorter, monkeypatch):
    """Works in that folder, with the shorter model."""
    monkeypatch.chdir(desk)
    shorter(monkeypatch)


@pytest.fixture(scope="module")
def desk(tmp_path_factory, quick, shorter):
    """A folder with the files and the run that the documents speak of."""
    desk = tmp_path_factory.mktemp("desk")
    noisy = memloc.add_noise(memloc.load_task("tiny-topic", examples=200), rate=0.15, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        shorter(patch)
        run = memloc.train("tiny-opt", noisy, desk / "runs" / "first", seed=1)
    hand_over(run.folder, desk)
    (desk / "control").mkdir()
    texts = memloc.load_task("tiny-sentiment").train
    rows = enumerate(zip(texts.parts, texts.labels, strict=True))
    crowd = [f'"{parts[0]}",{y},{y if i % 7 else 1 - y}' for i, (parts, y) in rows]
    write_csv(desk / "crowd.csv", "text,expert,crowd", crowd)
    shutil.copy(ROOT / "tests" / "files" / "reviews.csv", desk)
    return desk


def write_csv(path: Path, header: str, lines: list[str]) -> None:
    path.write_text("\n".join([header, *lines]), encoding="utf-8")


def test_there_is_python_in_the_documents():
    assert len(PYTHON) >= 12
    assert {README, METHOD_PAGE} <= {page for page, _ in PYTHON}


@pytest.mark.slow
@pytest.mark.usefixtures("at_desk")
def test_the_python_of_the_documents_runs():
    for page, code in PYTHON:
        if page not in TOGETHER:
            exec(compile(code, f"<{page.stem}>", "exec"), {"__name__": page.stem})


@pytest.mark.slow
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
@pytest.mark.usefixtures("at_desk")
def test_a_notebook_runs_from_its_first_cell_to_its_last(page, monkeypatch):
    monkeypatch.setattr(Plotted, "plot", lambda _self: None)  # which has tests of its own
    space = {"__name__": page.stem}
    for code in blocks(page, "python"):
        # Not the name of a file: its lines are not those of the code.
        exec(compile(code, f"<{page.name}>", "exec"), space)


@pytest.mark.slow
def test_the_tutorial_can_be_played(quick, tmp_path, monkeypatch):
    """With less training, so that of what it shows only the first output is the same."""
    text = TUTORIAL.read_text(encoding="utf-8")
    said, shown = play(text, tmp_path), [block for *_, block in STEP.findall(text)]
    assert f"```text\n{said[0]}```" == shown[0].strip()
    assert all(output.strip() for output, block in zip(said, shown, strict=True) if block)
    assert list((tmp_path / "figures").glob("training*.svg"))
    assert (tmp_path / "runs" / "report" / "index.html").is_file()


@pytest.mark.usefixtures("quick")  # it lasts while this module is tested
def test_the_page_leads_from_a_file_and_a_checkpoint_to_a_repaired_model(tmp_path, monkeypatch):
    """All its commands in turn, with less work, on the embedded model's first layers."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "files" / "reviews.csv", tmp_path)
    names = ("negative", "positive")
    whole = load_model("tiny-opt", names, options=LoadOptions(depth=4))
    for saved in (whole.model.base_model, whole.tokenizer):
        saved.save_pretrained("tiny-opt")
    lines = "".join(blocks(OWN_DATA, "sh")).splitlines()
    assert [line.split()[1] for line in lines] == list(LESS)
    for less, line in zip(LESS.values(), lines, strict=True):
        app([*shlex.split(line)[1:], *less.split()], standalone_mode=False)
    found = memloc.Run.open("corrected/suspects/tiny-opt/seed-1")
    assert found.noisy.is_noisy.sum() > 5  # what find would correct, without a hand's help
    assert len(pd.read_parquet(found.folder / "results" / "shares" / "layers.parquet")) == 4
    said = json.loads(Path("repaired/repair.json").read_text())
    assert "of the noisy labels are predicted" in said["sentences"][0]
    assert len(load_model("repaired", names).stack.blocks) == 4


@pytest.mark.usefixtures("quick")
def test_the_page_leads_from_a_file_of_texts_to_a_picture(tmp_path, monkeypatch):
    """All its commands in turn, on some of the texts and the embedded model's first layers."""
    monkeypatch.chdir(tmp_path)
    texts = pd.read_csv(ROOT / "src/memloc/study/examples/sequences.csv")
    texts.groupby("memorised").head(8).to_csv("texts.csv", index=False)
    whole = load_model("tiny-opt", [], options=LoadOptions(depth=3))
    for saved in (whole.model, whole.tokenizer):
        saved.save_pretrained("tiny-opt")
    lines = "".join(blocks(TEXTS, "sh")).replace("\\\n", "").splitlines()
    # repair: tests/labels/test_repair.py
    train, localise, report, figures, adopt, _, *streamed = lines
    faster = "--preset demo --set finetune.epochs=60 --set finetune.batch_size=4"
    train = f"{train} {faster} --set finetune.learning_rate=0.003"
    for line in (train, localise, report, figures, adopt, *streamed):
        app(shlex.split(line)[1:], standalone_mode=False)
        for name in ("final", "reference"):
            trained = Path("runs/texts/tiny-opt/seed-1/checkpoints", name)
            place = "my-model" if name == "final" else "my-reference"
            shutil.copytree(trained, place, dirs_exist_ok=True)
    found = memloc.Run.open("runs/texts/tiny-opt/seed-1")
    assert found.status.final.noisy == 1
    shares = pd.read_parquet(found.folder / "results" / "shares" / "shares.parquet")
    assert set(shares["value"]) == {"tokens", "log-probability"}
    assert "memorised its texts" in Path("runs/report/index.html").read_text(encoding="utf-8")
    assert Path("runs/report/figures/shares-log-probability-of-the-text.svg").is_file()
    assert memloc.Run.open("runs/mine").task.train.parts == found.task.train.parts


LESS = {
    "find": "--models 8 --set generalisation.epochs=4",
    "train": "--set finetune.learning_rate=0.004 --set finetune.epochs=10",
    "localise": "--set verdict.noisy_at_least=0.01",
    "repair": "--set orders=2 --set relearn_epochs=2 --set epochs=1 --set yardsticks=2",
}
"""What is added to each command of the page."""


def test_the_python_of_the_documents_uses_public_names_only():
    for page, code in PYTHON:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                assert not str(node.module).startswith("memloc"), f"{page.name}: {node.module}"
            if isinstance(node, ast.Import):
                assert not [n.name for n in node.names if n.name.startswith("memloc.")], page.name
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "memloc":
                assert node.attr in memloc.__all__, f"{page.name}: memloc.{node.attr}"


def test_the_python_of_the_documents_type_checks(tmp_path):
    """By the rules of our own code; its cache, which `make check` fills first, makes it quick."""
    mypy = pytest.importorskip("mypy.api")
    scripts = [script for script in PYTHON if script[0] not in TOGETHER]
    scripts += [(page, "\n".join(blocks(page, "python"))) for page in TOGETHER]
    for number, (page, code) in enumerate(scripts):
        (tmp_path / f"{page.stem.lower()}_{number}.py").write_text(code, encoding="utf-8")
    seen = 'import memloc\n\nreveal_type(memloc.localise("run")["shares"])\n'
    (tmp_path / "seen.py").write_text(seen, encoding="utf-8")
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    out, errors, _ = mypy.run([*settings, "--cache-dir", str(ROOT / ".mypy_cache"), *files])
    assert not errors
    assert not [line for line in out.splitlines() if tmp_path.name in line and "error" in line]
    assert 'Revealed type is "memloc.methods.result.Result"' in out


@pytest.mark.slow
def test_the_method_of_the_page_is_installed_and_used_by_name(desk, tmp_path):
    """It is one file: the class of the page, named in the package's pyproject.toml."""
    (code, _), (entry,) = blocks(METHOD_PAGE, "python"), blocks(METHOD_PAGE, "toml")
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    (package / "distance.py").write_text(code, encoding="utf-8")
    head = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    about = '[project]\nname = "distance"\nversion = "1"\n'
    modules = '[tool.setuptools]\npy-modules = ["distance"]\n'
    (package / "pyproject.toml").write_text(head + about + entry + modules, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    into = ["--no-build-isolation", "--target", str(site), str(package)]
    subprocess.run([*pip, *into], check=True, timeout=120)

    look = ("localise", "runs/first", "distance", "--set", "verdict.noisy_at_least=0.01")
    said = memloc_with(
        site, desk, [("protocol", "paper"), look, (*look, *SQUARED), (*look, *SQUARED)]
    )
    assert "distance.power" in said[0]
    assert "raised to this power" in said[0]
    assert said[1].startswith("Cannot tell: distance exchanges no layer")
    assert "nan" not in said[1]
    assert said[2] == said[3] != said[1]
    assert (desk / "runs" / "first" / "results" / "distance" / "layers.parquet").is_file()


SQUARED = ("--set", "distance.power=2")
IN_TURN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from memloc.cli import app
for words in json.loads(sys.argv[2]):
    app(words, standalone_mode=False)
    print(chr(30), end="")
"""


def memloc_with(site: Path, folder: Path, asked: list[tuple[str, ...]]) -> list[str]:
    """Return the output of commands, run one after the other while a package is installed."""
    start = [sys.executable, "-c", IN_TURN, str(site), json.dumps(asked)]
    done = subprocess.run(
        start, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(chr(30))[:-1]


def commands() -> list[list[str]]:
    found = set()
    for page in PAGES:
        shown = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
        lines = [line.split("#")[0].strip() for line in shown.splitlines()]
        found |= {line for line in lines if line.startswith("memloc ")}
        found |= set(re.findall(r"`(memloc [a-z][^`]*)`", page.read_text(encoding="utf-8")))
    return sorted(shlex.split(line) for line in found)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_in_the_documents_can_be_called_like_that(command):
    _, name, *words = command
    known = get_command(app).commands
    assert name in known
    if words:  # text also speaks of a command by its name alone
        known[name].make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, place in re.findall(r"\]\((?!http)([^)#]*)(#[^)]*)?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        titles = re.findall(r"^#+ (.*)", linked.read_text("utf-8"), re.MULTILINE) if place else []
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not place or place[1:] in anchors, f"{page.name} links to {target}{place}"


TERMS = {
    r"M-CoG": "results",
    r"\b[Nn]ulls?\b": "tests-of-the-methods",
    r"\b[Pp]lant(?:s|ed)?\b": "tests-of-the-methods",
    r"\b[Dd]onors?\b": "games",
    r"θ_[A-Z]\d?": "weights",
}
"""Words of the glossary, and the section that explains each."""
GUIDES = [README, TUTORIAL, *NOTEBOOKS]
GUIDES += [
    page for name in ("guides", "explanation") for page in sorted((DOCS / name).glob("*.md"))
]
NO_PROSE = re.compile(
    r"```.*?```|<!-- (\w+): begin.*?<!-- \1: end -->|<!-- generated.*?<!-- end -->"
    r"|^#[^\n]*|^\|[^\n]*|!?\[[^]]*\]\([^)]*\)|`[^`]*`",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_words_of_the_glossary_lead_there_where_a_page_first_uses_them(page):
    text = page.read_text(encoding="utf-8")
    prose = NO_PROSE.sub(lambda found: " " * len(found[0]), text)
    for term, section in TERMS.items():
        used = re.search(term, prose)
        linked = re.search(rf"\[{term}\]\([^)]*glossary\.md#{section}\)", text)
        assert used is None or (linked and linked.start() < used.start()), term


def test_the_architecture_names_tests_that_exist():
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 25
    lost = [n for n in named if f"def {n[1]}(" not in (ROOT / n[0]).read_text(encoding="utf-8")]
    assert not lost
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.\w+)`", text)
    assert not [name for name in named if not (ROOT / name).is_file()]
    rooms = {
        word
        for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for word in re.findall(r"`(\w+)/?`", cell)
    }
    there = {
        path.stem for path in (ROOT / "src" / "memloc").iterdir() if not path.stem.startswith("_")
    }
    assert there - {"py"} <= rooms


def test_the_guide_names_every_figure_that_can_be_drawn():
    from memloc.reporting.figures import FIGURES

    guide = (DOCS / "guides" / "gallery.md").read_text(encoding="utf-8")
    assert not [figure.name for figure in FIGURES if f"`{figure.name}`" not in guide]


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 110


def test_every_block_of_the_readme_is_true():
    """Its Python is run above; commands, output and citation are compared with where they are."""
    text = README.read_text(encoding="utf-8")
    kinds = re.findall(r"^```(\w*)\n.*?^```$", text, re.DOTALL | re.MULTILINE)
    assert sorted(kinds) == ["bibtex", "python", "sh", "sh", "text"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        shlex.split(line, comments=True) for line in "".join(blocks(README, "sh")).splitlines()
    ]
    extras = {line[2] for line in lines if line[:2] == ["pip", "install"]}
    assert extras == {".", ".[hub]", ".[ray]", ".[peft]"}
    assert {"hub", "ray", "peft"} <= set(project["optional-dependencies"])
    assert (ROOT / "constraints.txt").is_file()
    targets = {line[1] for line in lines if line[0] == "make"}
    assert targets == {"demo", "test"}
    assert targets <= set(
        re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )
    (output,), (cited,) = blocks(README, "text"), blocks(README, "bibtex")
    assert output in "".join(blocks(TUTORIAL, "text"))  # which `studies.tutorial` wrote
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    plain = " ".join(cited.split())
    assert about["title"] in plain
    assert " ".join(about["references"][0]["title"].split()) in plain
    assert project["urls"]["Paper"] in plain


def test_each_version_in_the_changelog_fits_a_page():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert not [text.splitlines()[0] for text in versions if len(text.splitlines()) > 60]


def test_every_page_is_in_the_contents():
    listed = re.findall(r"^[a-z_/]+$", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    pages = [page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")]
    assert sorted([*listed, "index"]) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_the_screen(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    limits = [150 if line.startswith(("|", "<!--")) else 120 for line in lines]
    numbered = enumerate(zip(lines, limits, strict=True), 1)
    assert not [number for number, (line, limit) in numbered if len(line) > limit]
    assert len(lines) <= 200


STUDIES = [DOCS / "guides" / "studies.md", DOCS / "guides" / "plant.md"]


@pytest.mark.parametrize("page", STUDIES, ids=lambda page: page.name)
def test_study_files_in_the_documents_are_read(page, tmp_path):
    files = [text for text in blocks(page, "yaml") if "tasks:" in text]
    assert files
    for text in files:
        assert parse_study(text, tmp_path).study.overrides
