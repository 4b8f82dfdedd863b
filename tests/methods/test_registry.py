"""The registry: memloc's own methods, and those that other packages bring."""

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pandas as pd
import pytest

import memloc
from fixtures.runs import make_run
from memloc.errors import ModelError, SettingsError, UnknownName
from memloc.methods import Method, Sizes, protocol
from memloc.methods import registry as base
from memloc.methods.apply import analyse, localise
from memloc.methods.protocol import preset, preset_rows
from memloc.methods.registry import find_method, method_names, methods
from memloc.methods.result import Result
from memloc.run.records import WEIGHTS

LOCALISERS = ("swapping", "retraining", "gradients", "probing", "shares")
ANALYSES = ("centroids", "label_probes", "generalisation")
SIZES = Sizes(
    examples=100,
    noisy=15,
    depth=12,
    update=1e-2,
    predict=1e-3,
    layer=0.1,
    last_layer=0.05,
    probe=1e-5,
)


def test_memloc_s_own_methods_are_registered():
    assert tuple(methods())[:8] == (*LOCALISERS, *ANALYSES)
    assert method_names("localiser") == LOCALISERS
    assert method_names("analysis") == ANALYSES


@pytest.mark.parametrize("name", [*LOCALISERS, *ANALYSES])
def test_every_method_says_all_about_itself(name):
    kind = find_method(name)
    assert kind.name == name
    assert kind.kind == ("localiser" if name in LOCALISERS else "analysis")
    assert kind().needs
    assert {*kind().needs, *kind.uses} <= {"pretrained", *WEIGHTS}
    assert not set(kind().needs) & set(kind.uses)
    assert isinstance(kind().cost(SIZES), float)
    assert kind().cost(SIZES) > 0
    # Localisers that change weights or their labels are public; those that only read what layers
    # show run by name: `memloc.localise(run, ["probing"])`, `memloc.analyse(run, ["centroids"])`.
    public = name in LOCALISERS and name != "probing"
    assert (getattr(memloc, kind.__name__, None) is kind) == public


def test_the_weights_that_methods_need():
    ours = {name: kind for name, kind in base._ours().items() if kind.by_default}
    needed = {name: (kind().needs, kind.uses) for name, kind in ours.items()}
    assert needed == {
        "swapping": (("final", "reference"), ()),
        "retraining": (("final", "pretrained"), ()),
        "gradients": (("memorised", "frozen"), ()),
        "probing": (("final", "frozen"), ()),
        "shares": (("final", "reference"), ()),
        "centroids": (("final",), ("reference",)),
        "label_probes": (("final",), ()),
        "generalisation": (("final", "pretrained"), ()),
    }


@pytest.mark.parametrize("name", ["paper", "reference", "demo"])
def test_a_preset_holds_every_method_with_its_settings(name):
    for method, kind in methods().items():
        found = preset(name).method(method)
        assert type(found) is kind
        assert getattr(preset(name), method) is found
    assert preset("paper").method("gradients") == memloc.Gradients()
    assert preset("reference").method("gradients").objective == "logit"


def test_a_method_s_settings_are_checked_and_not_edited():
    with pytest.raises(ValueError, match="frozen"):
        memloc.Gradients().norm = "L2"
    with pytest.raises(SettingsError, match="L1"):
        memloc.Gradients(norm="L3")
    with pytest.raises(SettingsError, match="epochs is 0"):
        memloc.Retraining().replace({"epochs": 0})
    assert memloc.Gradients().replace({"norm": "L2"}) == memloc.Gradients(norm="L2")


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(UnknownName, match=r"called 'swaping'\. Did you mean 'swapping'"):
        find_method("swaping")
    with pytest.raises(UnknownName, match="No analysis is called 'label-probes'"):
        find_method("label-probes", "analysis")
    with pytest.raises(UnknownName, match="Did you mean 'gradients'"):
        preset("paper").method("gradient")


GOOD = '''
import numpy as np
from memloc import Method
from memloc.settings import ours


class Distance(Method):
    """How far a layer is from the reference."""

    name = "distance"
    needs = ("final", "reference")
    power: float = ours(1.0, gt=0)
    """Of the differences."""
    plain: int = 3

    def run(self, run):
        pairs = zip(*(run.load(w).stack.blocks for w in self.needs), strict=True)
        return np.array([self.distance(a, b) for a, b in pairs])

    def distance(self, a, b):
        both = zip(a.parameters(), b.parameters(), strict=True)
        return sum((p - q).abs().pow(self.power).sum().item() for p, q in both)


class Counts(Method):
    """How many examples there are."""

    name = "counts"
    kind = "analysis"
    needs = ("final",)

    def run(self, run):
        import pandas as pd

        rows = [{"noisy": len(run.noisy_rows), "clean": len(run.clean_rows)}]
        return {"examples": pd.DataFrame(rows)}
'''
BROKEN = """
from memloc import Method

class NotOne:
    name = "not_one"

class Nameless(Method):
    needs = ("final",)
    def run(self, run): ...

class Demanding(Method):
    name = "demanding"
    needs = ("final",)
    must: int
    def run(self, run): ...

class Idle(Method):
    name = "idle"
    needs = ("final",)

class Needless(Method):
    name = "needless"
    def run(self, run): ...

class Noise(Method):
    name = "noise"
    needs = ("final",)
    def run(self, run): ...

class Swapping(Noise):
    name = "swapping"

class Replace(Noise):
    name = "replace"
"""
POINTS = {
    "distance": "theirs:Distance",
    "counts": "theirs:Counts",
    "gone": "theirs:Nowhere",
    "no_module": "nowhere_at_all:X",
    "not_one": "broken:NotOne",
    "other_name": "theirs:Counts",
    "nameless": "broken:Nameless",
    "demanding": "broken:Demanding",
    "idle": "broken:Idle",
    "needless": "broken:Needless",
    "noise": "broken:Noise",
    "swapping": "broken:Swapping",
    "replace": "broken:Replace",
}
FAILING = [name for name in POINTS if name not in {"distance", "counts"}]


def install(folder, points=POINTS):
    """As pip would: modules, and what says which methods they bring."""
    (folder / "theirs.py").write_text(textwrap.dedent(GOOD), encoding="utf-8")
    (folder / "broken.py").write_text(textwrap.dedent(BROKEN), encoding="utf-8")
    info = folder / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{base.ENTRY_POINTS}]\n{lines}\n")
    return folder


@pytest.fixture
def forgotten():
    """What is found out once is found out anew, before and after."""
    caches = (base.methods, base._theirs, protocol.preset, protocol._with_methods)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    for name in ("theirs", "broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def installed(forgotten, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(install(tmp_path / "site"))


def test_an_installed_method_is_found_by_its_name(installed):
    assert [*methods()][:8] == [*LOCALISERS, *ANALYSES]
    assert [*methods()][-2:] == ["distance", "counts"]
    assert find_method("distance").kind == "localiser"
    assert find_method("counts", "analysis").needs == ("final",)
    # Where none is named, memloc's own run.
    assert method_names("localiser") == LOCALISERS


def test_its_settings_are_in_the_presets_and_can_be_changed(installed):
    found = preset("paper")
    assert found.method("distance").power == 1
    assert found.flat()["distance.plain"] == 3
    changed = found.replace({"distance.power": 2})
    assert changed.method("distance").power == 2
    with pytest.raises(SettingsError, match=r"distance\.power is 0"):
        found.replace({"distance.power": 0})
    with pytest.raises(UnknownName, match=r"Did you mean 'distance\.power'"):
        found.replace({"distance.powr": 2})


def test_its_settings_are_described(installed):
    rows = {row["setting"]: row for row in preset_rows("paper")}
    assert rows["distance.power"]["value"] == "1"
    assert rows["distance.power"]["source"] == "our choice"
    assert rows["distance.power"]["meaning"] == "Of the differences."
    assert rows["distance.plain"]["value"] == "3"
    assert rows["distance.plain"]["source"] == "its package"


@pytest.mark.parametrize("name", [n for n in FAILING if n != "swapping"])
def test_a_method_that_cannot_be_loaded_says_why_and_stops_no_other(installed, name):
    assert name not in methods()
    with pytest.raises(ModelError, match=f"Method '{name}' could not be loaded: .") as error:
        find_method(name)
    assert "\n" not in str(error.value)
    assert not str(error.value).endswith("..")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "Nowhere"),
        ("no_module", "nowhere_at_all"),
        ("not_one", r"broken:NotOne is not a memloc\.Method called 'not_one'"),
        ("other_name", r"theirs:Counts is not a memloc\.Method called 'other_name'"),
        ("nameless", r"broken:Nameless is not a memloc\.Method called 'nameless'"),
        ("demanding", "must"),
        ("idle", "run"),
        ("needless", "broken:Needless does not say which weights it `needs`"),
        ("noise", "memloc has something else called"),
        ("replace", "memloc has something else called"),
    ],
)
def test_why_a_method_cannot_be_loaded(installed, name, why):
    with pytest.raises(ModelError, match=why):
        find_method(name)


def test_nobody_takes_the_name_of_memloc_s_own_methods(installed):
    assert find_method("swapping") is memloc.Swapping
    assert type(preset("paper").method("swapping")) is memloc.Swapping


def test_an_installed_method_looks_at_a_run(installed, memorised_run):
    found = localise(memorised_run, ["distance"], settings={"distance.power": 2})
    assert (found["distance"].weights > 0).all()
    assert found["distance"].about["settings"] == {"power": 2.0, "plain": 3}
    read = Result.read(found.folder / "distance")
    np.testing.assert_array_equal(read.weights, found["distance"].weights)
    again = localise(memorised_run, ["distance"], settings={"distance.power": 2})
    assert again.reused == ("distance",)
    counted = analyse(memorised_run, ["counts"])["counts"]["examples"]
    assert counted.to_numpy().tolist() == [[6, 42]]
    with pytest.raises(UnknownName, match="counts is not a localiser"):
        localise(memorised_run, ["counts"])


def test_the_registry_loads_no_torch():
    code = (
        "import sys\n"
        "from memloc.methods.registry import methods\n"
        "from memloc.methods.protocol import preset\n"
        "methods(), preset('demo')\n"
        "assert not {'torch', 'transformers', 'pandas', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class Given(Method):
    """A localiser that says what it is told."""

    name = "given"
    needs = ("final",)
    says: Any = None

    def run(self, run):
        return self.says


def test_a_localiser_gives_weights_or_tables_with_the_weights_among_them(tmp_path):
    run = make_run(tmp_path)  # of three layers
    plain = Given(says=[1, 2, 1]).found(run)
    assert plain.weights.tolist() == [1, 2, 1]
    assert np.isnan([plain.low, plain.high]).all()
    assert plain.mcog.estimate == 2
    layers = pd.DataFrame({"weight": [0, 1, 1], "low": [0, 0.5, 0.6], "high": [1, 2, 3]})
    more = pd.DataFrame({"example": [1]})
    found = Given(says={"layers": layers, "examples": more}).found(run)
    assert found.low.tolist() == [0, 0.5, 0.6]
    assert found.high.tolist() == [1, 2, 3]
    assert list(found.tables) == ["layers", "mcog", "examples"]
    assert found["examples"] is more
    for wrong, count in (([1, 2], "2 weights"), ({"examples": more}, "0 weights")):
        with pytest.raises(ModelError, match=f"given gave {count} for 3 layers"):
            Given(says=wrong).found(run)


def test_a_method_without_its_verb_is_none():
    class Idle(Method):
        name = "idle"
        needs = ("final",)

    with pytest.raises(TypeError, match="run"):
        Idle()
