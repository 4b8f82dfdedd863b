"""A run through all methods: what is checked first, what is kept, what is used again."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fixtures.models import PAPER_FAMILIES
from fixtures.runs import altered
from fixtures.tasks import fast_protocol, make_recipe, make_task, quick, train_run
from memloc.data.task import Examples
from memloc.errors import (
    MemlocError,
    SettingsError,
    StoreError,
    TrainingError,
    UnknownName,
)
from memloc.methods import Method
from memloc.methods.apply import (
    analyse,
    apply,
    kept_as,
    localise,
    result_key,
    runnable,
)
from memloc.methods.centroids import Centroids
from memloc.methods.gradients import Gradients
from memloc.methods.registry import find_method, method_names
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.methods.swapping import Swapping
from memloc.progress import announcing, requested, telling
from memloc.protocol import VerdictSettings
from memloc.reporting.results import load_results
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.store import paths
from memloc.store.memo import recall
from memloc.store.records import write_table

LOCALISERS = ("swapping", "retraining", "gradients", "probing", "shares")
ANALYSES = ("centroids", "label_probes", "generalisation")


def stored(run, method):
    folder = paths.result(run.folder, method.name)
    return recall(folder, result_key(run, method), kept_as(run, method))


@pytest.fixture(scope="module")
def localised(memorised_folder, tmp_path_factory):
    folder = shutil.copytree(memorised_folder, tmp_path_factory.mktemp("localised") / "run")
    return localise(folder, settings=quick("probing", "retraining"), device="cpu")


@pytest.fixture(scope="module")
def analysed(trained, tmp_path_factory):
    folder = shutil.copytree(trained(), tmp_path_factory.mktemp("analysed") / "run")
    return analyse(folder, settings=quick("label_probes", "generalisation"), device="cpu")


@pytest.fixture
def computed(monkeypatch):
    """The names of the methods that are run, not read."""
    from memloc.methods import apply as module

    seen, real = [], module._made

    def watched(run, method, verdict):
        seen.append(method.name)
        return real(run, method, verdict)

    monkeypatch.setattr(module, "_made", watched)
    return seen


def test_a_run_keeps_its_device_unless_another_is_given(memorised_run):
    seen = []

    class Looking(Swapping):
        def run(self, run):
            seen.append(run.device)
            return super().run(run)

    looking = {"swapping": Looking}
    with pytest.MonkeyPatch.context() as patch:
        from memloc.methods import protocol
        from memloc.methods import registry as base

        patch.setattr(base, "_ours", lambda: looking)
        for kept in (base.methods, protocol.preset, protocol._with_methods):
            kept.cache_clear()
        localise(memorised_run, ["swapping"])
        shutil.rmtree(memorised_run.folder / paths.RESULTS)
        localise(replace(memorised_run, device="auto"), ["swapping"], device="cpu")
        shutil.rmtree(memorised_run.folder / paths.RESULTS)
        localise(memorised_run.folder, ["swapping"])
    for kept in (base.methods, protocol.preset, protocol._with_methods):
        kept.cache_clear()
    assert seen == ["cpu", "cpu", "auto"]


def test_batches_of_shares_go_once_the_result_is_there(memorised_run):
    localise(memorised_run, ["shares"])
    assert stored(memorised_run, Shares()) is not None
    assert not memorised_run.work("shares").exists()


def test_all_localisers_score_every_layer_of_a_run(localised):
    assert tuple(localised.results) == LOCALISERS
    assert localised.skipped == {}
    assert localised.reused == ()
    for method, scores in localised.results.items():
        assert scores.method == method
        assert scores.weights.shape == (3,)
        assert np.isfinite(scores.weights).all()
        read = Result.read(localised.folder / method)
        assert read.about == scores.about
        assert scores.about["final_noisy_accuracy"] >= 0.95
        assert scores.about["forced"] is False


def test_all_analyses_are_made_and_kept(analysed):
    assert tuple(analysed.results) == ANALYSES
    for name in ANALYSES:
        read = Result.read(analysed.folder / name)
        assert read.method == name
        assert read.about == analysed[name].about
        assert read.about["forced"] is False
        assert list(read.tables) == list(analysed[name].tables)
        for table, frame in analysed[name].tables.items():
            pd.testing.assert_frame_equal(read[table], frame)


def test_a_result_says_what_it_was_made_of(localised, memorised_folder):
    about = localised["gradients"].about
    run = Run.open(memorised_folder)
    assert about["run"] == run.name
    assert about["settings"] == Gradients().model_dump(mode="json")
    assert about["inputs"] == run.identity(["memorised", "frozen"])
    assert about["key"] == result_key(run, Gradients())
    assert about["command"] == ""


def test_a_result_says_which_command_asked_for_it(memorised_run):
    with requested(["localise", "a run"]):
        found = localise(memorised_run, ["swapping"])
    assert found["swapping"].about["command"] == "memloc localise 'a run'"


@pytest.mark.parametrize(("family", "depth"), [("bert", 6), ("gpt_neox", 12), ("opt", 24)])
def test_models_of_any_depth_can_be_analysed(trained, tmp_path, family, depth):
    folder = shutil.copytree(trained(family, depth=depth, epochs=1), tmp_path / "run")
    names = ["centroids", "label_probes"]
    found = analyse(folder, names, settings=quick(*names), force=True, device="cpu")
    layers = found["centroids"]["layers"]
    assert sorted(layers["layer"].unique()) == list(range(depth + 1))
    # BERT's first token is the same in every text.
    assert layers.loc[layers["layer"] == 0, "mean"].isna().all() == (family == "bert")
    assert layers.loc[layers["layer"] > 0, "mean"].notna().all()
    assert found["label_probes"]["layers"]["layer"].max() == depth
    for name in names:
        event = found[name]["events"]["layer"].dropna()
        assert event.between(1, depth).all()


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_swapping_all_layers_and_the_rest_gives_the_reference(family, tiny_model, tmp_path):
    from memloc.model.predict import predict

    model = str(tiny_model(family, depth=2))
    recipe = make_recipe(model, make_task(), 1, fast_protocol())
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    final, reference = run.load("final"), run.load("reference")
    final.model.load_state_dict(reference.model.state_dict())
    encoded = run.encode(final)
    assert np.array_equal(predict(final.stack, encoded), predict(reference.stack, encoded))


def test_what_is_there_is_not_computed_again(memorised_run, computed):
    first = localise(memorised_run, ["swapping"])
    again = localise(memorised_run.folder, ["swapping"], device="cpu")
    assert computed == ["swapping"]
    assert (first.reused, again.reused) == ((), ("swapping",))
    assert again["swapping"].about == first["swapping"].about
    for name, table in first["swapping"].tables.items():
        pd.testing.assert_frame_equal(again["swapping"][name], table)


def test_quick_methods_run_first_and_what_is_left_is_announced(memorised_run, computed):
    announced = []

    def note(run, methods):
        announced.append((run.name, [method.name for method in methods], list(computed)))

    names = ["retraining", "swapping", "gradients"]
    with announcing("methods", note):
        found = localise(memorised_run, names)
    assert list(found.results) == names
    assert computed == ["swapping", "gradients", "retraining"]
    with announcing("methods", note):
        localise(memorised_run, [*names, "probing"])
    assert announced == [
        (memorised_run.name, names, []),
        (memorised_run.name, ["probing"], computed[:3]),
    ]


def test_whoever_listens_is_told_what_is_used_again(memorised_run):
    localise(memorised_run, ["swapping"])
    told = []
    with telling(told.append):
        localise(memorised_run, ["swapping"])
    assert told[0].startswith("6 noisy of 48 examples")
    assert told[1] == f"{memorised_run.name}: swapping was stored before and is used again."


def test_another_setting_of_the_method_makes_it_anew_and_replaces_it(memorised_run, computed):
    localise(memorised_run, ["swapping"])
    other = localise(memorised_run, ["swapping"], settings={"swapping.clean_examples": 3})
    assert computed == ["swapping", "swapping"]
    assert other["swapping"].about["settings"]["clean_examples"] == 3
    kept = Result.read(paths.result(memorised_run.folder, "swapping"))
    assert (~kept.outcomes.is_noisy).sum() == 3
    told = []
    with telling(told.append):
        localise(memorised_run, ["swapping"])
    assert computed == ["swapping"] * 3
    assert told[1] == (
        f"{memorised_run.name}: swapping is computed again. The stored result was made with "
        "swapping.clean_examples=3 and not None."
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"verdict.noisy_at_least": 0.5},
        {"swapping.normalise": True},
    ],
    ids=["verdict", "the-default"],
)
def test_settings_that_decide_nothing_of_a_result_disturb_it_not(memorised_run, computed, settings):
    localise(memorised_run, ["swapping"])
    assert localise(memorised_run, ["swapping"], settings=settings).reused == ("swapping",)
    assert computed == ["swapping"]


def test_weights_that_a_method_takes_where_they_are_make_a_difference(run, computed):
    """Centroids use the reference, but do not need it."""
    hidden = run.folder / "elsewhere"
    run.path("reference").rename(hidden)
    apply(run, [Centroids()], VerdictSettings())
    hidden.rename(run.path("reference"))
    found = apply(run, [Centroids()], VerdictSettings())
    assert computed == ["centroids"] * 2
    assert set(found["centroids"]["events"]["variant"]) == {"plain", "bottom", "top"}


def with_other_data(run):
    """One text of the run is another one from now on."""
    from memloc.run.records import TaskRecord, labels_table

    parts = (("the sea",), *run.task.train.parts[1:])
    task = replace(run.task, train=Examples(parts, run.task.train.labels))
    write_table(run.folder / paths.LABELS, labels_table(task), {})
    return TaskRecord.of(task)


@pytest.mark.parametrize("what", ["data", "seed", "epochs"])
def test_a_result_of_another_run_is_not_used(memorised_run, computed, what):
    localise(memorised_run, ["swapping"])
    changed = {
        "data": lambda: {"task": with_other_data(memorised_run)},
        "seed": lambda: {"seed": 7},
        "epochs": lambda: {"settings": memorised_run.settings.replace({"finetune.epochs": 99})},
    }[what]
    localise(altered(memorised_run, **changed()), ["swapping"])
    assert computed == ["swapping"] * 2


@pytest.mark.parametrize(
    ("method", "again"), [("swapping", ["swapping"]), ("gradients", ["gradients"] * 2)]
)
def test_when_memorised_weights_are_kept_decides_for_those_who_look_at_them(
    memorised_run, computed, method, again
):
    localise(memorised_run, [method])
    settings = memorised_run.settings.replace({"finetune.near_ceiling": 0.91})
    localise(altered(memorised_run, settings=settings), [method])
    assert computed == again


def test_weights_that_were_replaced_are_refused(memorised_run, computed):
    localise(memorised_run, ["swapping"])
    path = memorised_run.path("final") / "model.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-2] ^= 1  # one bit of the last weight
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="final are not those"):
        localise(memorised_run, ["swapping"])
    (path.parent / paths.PROVENANCE).unlink()  # nobody knows whose weights these are
    with pytest.raises(StoreError, match=f"{paths.PROVENANCE} does not exist"):
        localise(memorised_run, ["swapping"])
    assert computed == ["swapping"]


def test_nothing_stored_is_none(memorised_run):
    assert stored(memorised_run, Swapping()) is None
    made = localise(memorised_run, ["swapping"])
    assert stored(memorised_run, Swapping()).about == made["swapping"].about
    assert stored(memorised_run, Swapping(normalise=False)) is None


def test_results_do_not_depend_on_what_was_computed_before(analysed, run):
    alone = analyse(run, ["label_probes"], settings=quick("label_probes"))
    one, other = (a["label_probes"]["layers"] for a in (alone, analysed))
    np.testing.assert_array_equal(one["f1"], other["f1"])


def test_a_run_that_did_not_memorise_is_refused_and_marked_when_forced(tiny_model, tmp_path):
    model = str(tiny_model("bert", depth=2))
    recipe = make_recipe(model, make_task(), 1, fast_protocol(finetune__epochs=1))
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    for look, name in ((localise, "swapping"), (analyse, "centroids")):
        with pytest.raises(TrainingError, match="not memorised"):
            look(run, [name])
        found = look(run, [name], force=True)[name]
        assert found.about["forced"] is True
        assert found.about["final_noisy_accuracy"] < 0.95


def test_how_much_must_be_memorised_is_a_setting(memorised_run):
    final = memorised_run.status.final.replace({"noisy": 0.9})
    run = memorised_run.note(final=final)
    with pytest.raises(TrainingError, match=r"90\.0% of the noisy labels, and 95% are needed"):
        localise(run, ["swapping"])
    found = localise(run, ["swapping"], settings={"verdict.noisy_at_least": 0.9})
    assert found["swapping"].about["forced"] is False


def test_a_run_that_is_not_finished_is_refused(memorised_run):
    with pytest.raises(StoreError, match="has no final weights yet: finish `memloc train`"):
        localise(memorised_run.note(final=None), ["swapping"])


def test_missing_weights_are_named_before_anything_is_computed(run, computed):
    shutil.rmtree(run.path("reference"))
    with pytest.raises(StoreError, match="no reference weights: `memloc train`"):
        apply(run, [Centroids(), Swapping()], VerdictSettings())
    assert computed == []
    assert not (run.folder / paths.RESULTS).exists()


def test_missing_memorised_weights_say_why(tiny_model, tmp_path):
    model = str(tiny_model("bert", depth=2))
    recipe = make_recipe(model, make_task(), 1, fast_protocol(finetune__epochs=1))
    run = train_run(recipe, tmp_path / "run", ["final", "frozen"])
    with pytest.raises(StoreError, match=r"no memorised weights.*no epoch had a training accuracy"):
        localise(run, ["gradients"], force=True)


def test_methods_without_their_weights_are_skipped_and_say_which(run, computed):
    found = localise(run)
    assert list(found.results) == ["swapping", "retraining", "shares"]
    assert sorted(computed) == sorted(found.results)
    assert found.skipped == {
        "gradients": "needs memorised and frozen weights",
        "probing": "needs frozen weights",
    }


def test_where_no_method_can_run_the_reasons_are_told(run):
    for weights in ("final", "reference"):
        shutil.rmtree(run.path(weights))
    with pytest.raises(StoreError, match=r"No method can run on .*: swapping needs final and ref"):
        runnable(run, [find_method(name)() for name in method_names("localiser")])


def test_unknown_methods_and_methods_of_the_other_kind_are_refused(memorised_run):
    with pytest.raises(UnknownName, match="Did you mean 'swapping'"):
        localise(memorised_run, ["swaping"])
    with pytest.raises(UnknownName, match="Did you mean 'centroids'"):
        analyse(memorised_run, ["centroid"])
    with pytest.raises(UnknownName, match="centroids is not a localiser: use `memloc analyse`"):
        localise(memorised_run, ["centroids"])
    with pytest.raises(UnknownName, match="swapping is not an analysis: use `memloc localise`"):
        analyse(memorised_run, ["swapping"])


@pytest.mark.parametrize("look", [localise, analyse])
def test_settings_that_made_the_weights_cannot_be_changed(memorised_run, look):
    with pytest.raises(SettingsError, match=r"finetune\.epochs cannot be changed"):
        look(memorised_run, settings={"finetune.epochs": 3})
    with pytest.raises(UnknownName, match=r"Did you mean 'swapping\.normalise'"):
        look(memorised_run, settings={"swapping.normalize": True})


def test_a_folder_that_is_no_run_is_named(tmp_path):
    for look in (localise, analyse):
        with pytest.raises(StoreError, match="is not a run"):
            look(tmp_path)


@pytest.mark.parametrize("name", [paths.ABOUT, "layers.parquet"])
@pytest.mark.parametrize("damage", [b"", None], ids=["empty", "gone"])
def test_a_damaged_result_is_computed_again(memorised_run, computed, name, damage):
    first = localise(memorised_run, ["swapping"])
    path = paths.result(memorised_run.folder, "swapping") / name
    path.unlink() if damage is None else path.write_bytes(damage)
    again = localise(memorised_run, ["swapping"])
    assert computed == ["swapping", "swapping"]
    pd.testing.assert_frame_equal(first["swapping"]["layers"], again["swapping"]["layers"])


@pytest.fixture
def adopted(memorised_run, write_data, tmp_path):
    """A run of checkpoints that are elsewhere."""
    places = {
        name: shutil.copytree(memorised_run.path(name), tmp_path / f"my-{name}")
        for name in ("final", "reference")
    }
    return adopt(
        tmp_path / "adopted", data=write_data(memorised_run), original="original", **places
    )


def test_adopted_weights_whose_files_changed_are_refused(adopted, memorised_run, computed):
    weights = adopted.path("reference") / "model.safetensors"
    shutil.copy(memorised_run.path("frozen") / "model.safetensors", weights)
    with pytest.raises(StoreError, match=r"The reference weights at .* have changed since"):
        localise(adopted, ["swapping"])


def test_nor_is_a_result_of_changed_files_used_again(adopted, memorised_run):
    localise(adopted, ["swapping"])
    weights = adopted.path("reference") / "model.safetensors"
    shutil.copy(memorised_run.path("frozen") / "model.safetensors", weights)
    with pytest.raises(StoreError, match=r"have changed since .* adopt them into another folder"):
        localise(adopted, ["swapping"])


def test_adopted_weights_that_are_gone_are_missing_weights(adopted, computed):
    apply(adopted, [Centroids()], VerdictSettings())
    shutil.rmtree(adopted.path("reference"))
    found = apply(adopted, [Centroids()], VerdictSettings())
    assert set(found["centroids"]["events"]["variant"]) == {"plain"}
    assert computed == ["centroids"] * 2
    with pytest.raises(StoreError, match=r"no reference weights: .*--reference"):
        localise(adopted, ["swapping"])


def test_a_method_that_was_corrected_is_run_again(memorised_run, computed, monkeypatch):
    localise(memorised_run, ["swapping"], device="cpu")
    monkeypatch.setattr(Swapping, "version", Swapping.version + 1)
    localise(memorised_run, ["swapping"], device="cpu")
    assert computed == ["swapping", "swapping"]


def test_whether_it_is_forced_is_said_by_the_bar_of_today(tiny_model, tmp_path):
    model = str(tiny_model("opt", depth=3, dropout=0.1))
    recipe = make_recipe(model, make_task(48), 1, fast_protocol(finetune__epochs=1))
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    low = {"verdict.noisy_at_least": 1e-9, "swapping.normalise": False}
    first = localise(run, ["swapping"], settings=low, force=True, device="cpu")["swapping"]
    high = {"swapping.normalise": False}
    again = localise(run, ["swapping"], settings=high, force=True, device="cpu")
    assert again.reused == ("swapping",)
    assert first.about["forced"] == (run.status.final.noisy < 1e-9)
    assert again["swapping"].about["forced"]


def test_analyses_that_cannot_look_at_these_labels_are_skipped(run):
    labels = replace(run.noisy, original=np.where(run.noisy.is_noisy, -1, run.noisy.original))
    object.__setattr__(run, "task", replace(run.task, noise=labels))
    both = [find_method(name)() for name in ("centroids", "generalisation")]
    chosen, skipped = runnable(run, both)
    assert chosen == both[1:]
    assert "are not known" in skipped["centroids"]


class Even(Method):
    """Gives every layer the same weight; registered nowhere."""

    name = "even"
    needs = ("final",)

    def run(self, run):
        return [1.0] * run.depth


class Rival(Even):
    name = "shares"


class Other(Even):
    name = "other"
    kind = "analysis"


class Nameless(Even):
    name = "../x"


@pytest.mark.parametrize("given", [Even, Even(), [Even()]])
def test_a_method_that_nobody_registered_may_be_given(memorised_folder, tmp_path, given):
    folder = shutil.copytree(memorised_folder, tmp_path / "run")
    found = localise(folder, given, device="cpu")
    assert list(found["even"].weights) == [1.0] * Run.open(folder).depth
    assert "even" in set(load_results(folder).layers["method"])


def test_one_name_is_a_name_and_classes_have_the_settings_of_the_preset(memorised_folder, tmp_path):
    folder = shutil.copytree(memorised_folder, tmp_path / "run")
    by_name = localise(folder, "gradients", device="cpu")
    assert list(by_name.results) == ["gradients"]
    assert localise(folder, Gradients, device="cpu").reused == ("gradients",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "The list of methods is empty"),
        ("sharse", "No method is called 'sharse'. Did you mean 'shares'"),
        ([3], "No method is called 3"),
        (3, "not as int"),
        (Rival, "memloc has another method called 'shares'"),
        (Other(), "other is not a localiser"),
        (Nameless, "Nameless needs a `name`"),
        (int, "No method is called <class 'int'>"),
    ],
)
def test_methods_that_cannot_be_are_refused_in_a_sentence(memorised_run, given, said):
    with pytest.raises(MemlocError, match=said):
        localise(memorised_run, given)


def test_settings_of_an_object_are_its_own(memorised_run):
    with pytest.raises(SettingsError, match="gradients was given as an object"):
        localise(memorised_run, Gradients(), settings={"gradients.norm": "L2"})


@pytest.mark.parametrize("run", [None, 3, ""])
def test_what_is_no_run_is_refused(run):
    with pytest.raises(SettingsError, match="Give the folder of a run as a string or path"):
        localise(run)


def test_a_result_that_is_not_there_says_what_is(localised):
    with pytest.raises(KeyError, match="Did you mean 'shares'"):
        localised["sharse"]
    with pytest.raises(UnknownName, match="probing was not run on this model: it needs frozen"):
        replace(localised, skipped={"probing": "needs frozen weights"})["probing"]
