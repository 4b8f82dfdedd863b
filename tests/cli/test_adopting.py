"""Checkpoints and a file of one's own, by the command line: adopted, then used like any run."""

import json
import shutil

import pytest

from fixtures.commands import printed, refused
from fixtures.tasks import QUICK
from memloc.methods.registry import find_method
from memloc.run.folder import Run
from memloc.store.records import read_json

FEW, ANALYSES = (
    [
        f"--set={name}={list(value) if isinstance(value, tuple) else value}"
        for name, value in QUICK.items()
        if find_method(name.split(".")[0]).kind == kind
    ]
    for kind in ("localiser", "analysis")
)


@pytest.fixture(scope="module")
def source(memorised_folder):
    """A run that memorised; what is adopted are its checkpoints and its data."""
    return Run.open(memorised_folder, "cpu")


@pytest.fixture
def data(source, write_data):
    return write_data(source)


@pytest.fixture
def given(source, data, tmp_path):
    """Options of somebody who has everything; the final weights are theirs to change."""
    final = shutil.copytree(source.path("final"), tmp_path / "final")
    places = {name: source.path(name) for name in ("reference", "memorised", "frozen")}
    places |= {"final": final, "pretrained": source.spec.model, "data": data}
    return [*(f"--{name}={place}" for name, place in places.items()), "--device=cpu"]


def test_adopted_checkpoints_are_localised_analysed_and_reported(run, given, tmp_path):
    made = run("adopt", "mine", *given, "--original=original")
    assert "memorised 100% of" in printed(made)
    assert "mine: memorised, final, reference, frozen" in made.stdout
    assert read_json(tmp_path / "mine" / "run.json")["command"].startswith(
        "memloc adopt mine --reference="
    )
    found = json.loads(printed(run("localise", "mine", *FEW, "--device=cpu", "--json")))
    assert list(found["methods"]) == [*("swapping", "retraining", "gradients", "probing", "shares")]
    assert (found["skipped"], found["reused"]) == ({}, [])
    assert all(len(scores["weights"]) == 3 for scores in found["methods"].values())
    analysed = json.loads(printed(run("analyse", "mine", *ANALYSES, "--device=cpu", "--json")))
    assert list(analysed["analyses"]) == ["centroids", "label_probes", "generalisation"]
    shown = printed(run("report", "mine"))
    assert "mine/report/index.html" in shown
    page = (tmp_path / "mine" / "report" / "index.html").read_text(encoding="utf-8")
    assert "memloc adopt mine --reference=" in page


def test_adopt_answers_in_json(run, given):
    shown = run("adopt", "mine", *given, "--original=original", "--json")
    found = json.loads(printed(shown))
    assert found["checkpoints"] == ["memorised", "final", "reference", "frozen"]
    assert found["verdict"]["memorised"] is True
    assert found["noise"].endswith("column 'original' read as original labels.")


def test_what_is_noisy_and_how_that_is_known_is_said_by_every_command(run, given):
    made = run("adopt", "mine", *given, "--flag=flag")
    line = next(line for line in printed(made).splitlines() if " noisy of 48 examples" in line)
    assert line.endswith("column 'flag' read as flags.")
    for command in (("localise", "mine", "swapping"), ("analyse", "mine", "centroids")):
        shown = run(*command, "--device=cpu")
        assert shown.stderr.splitlines().count(line) == 1
        assert printed(shown)


def test_a_setting_that_the_run_would_not_keep_is_refused(run, given, tmp_path):
    line = refused(run("adopt", "mine", *given, "--flag=flag", "--set=verdict.noisy_at_least=0.5"))
    assert "verdict.noisy_at_least" in line
    assert "`memloc localise`" in line
    assert not (tmp_path / "mine").exists()


def test_flags_do_instead_of_original_labels(run, given):
    ways = {}
    for way in ("original", "flag"):
        found = json.loads(printed(run("adopt", way, *given, f"--{way}={way}", "--json")))
        assert f"column '{way}' read as" in found["noise"]
        shown = run("localise", way, "swapping", "--device=cpu", "--json")
        ways[way] = json.loads(printed(shown))["methods"]["swapping"]["weights"]
    assert ways["original"] == ways["flag"]


def test_a_stored_result_that_is_used_again_says_so(run, given):
    printed(run("adopt", "mine", *given, "--flag=flag"))
    command = ("localise", "mine", "swapping", "--device=cpu")
    first = run(*command)
    assert "used again" not in printed(first) + first.stderr
    again = run(*command)
    assert printed(again) == first.stdout
    assert "swapping was stored before" in again.stderr
    assert json.loads(printed(run(*command, "--json")))["reused"] == ["swapping"]


def test_a_changed_file_is_refused_for_the_same_folder(run, given, data):
    command = ("adopt", "mine", *given, "--original=original")
    printed(run(*command))
    printed(run(*command))  # the same again is no other
    rows = data.read_text(encoding="utf-8").splitlines()
    data.write_text("\n".join([*rows[:-1], "the old fox,label 0,label 0,false"]), encoding="utf-8")
    line = refused(run(*command))
    assert "mine belongs to other data" in line
    assert line.endswith("Choose another folder, or delete that one.")


def test_changed_weights_are_refused(run, given, source, tmp_path):
    command = ("adopt", "mine", *given, "--original=original")
    printed(run(*command))
    printed(run("localise", "mine", "swapping", "--device=cpu"))
    other = source.path("reference") / "model.safetensors"
    shutil.copy(other, tmp_path / "final" / "model.safetensors")
    for again in (("localise", "mine", "swapping"), ("localise", "mine", "retraining"), command):
        line = refused_at_the_end(run(*again, "--device=cpu"))
        assert "final weights" in line
    assert "have changed since mine was made from them" in refused_at_the_end(
        run("localise", "mine", "swapping", "--device=cpu")
    )


def refused_at_the_end(result):
    """One sentence, after what was said about the data."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.count("memloc: ") == 1
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


def test_missing_weights_are_trained_on_demand(run, given, tmp_path):
    few = [word for word in given if not word.startswith(("--ref", "--fro", "--mem"))]
    fast = ("--set=finetune.epochs=2", "--set=finetune.learning_rate=0.01")
    shown = run("adopt", "mine", *few, "--original=original", "--train-missing", *fast)
    assert "mine: final, reference, frozen" in printed(shown)
    assert "updates" in shown.stderr  # what it will cost is said before
    assert (tmp_path / "mine" / "checkpoints" / "reference").is_dir()
    found = json.loads(printed(run("localise", "mine", *FEW, "--device=cpu", "--json")))
    assert found["skipped"] == {"gradients": "needs memorised weights"}
    bare = [word for word in few if not word.startswith("--pre")]
    line = refused(run("adopt", "other", *bare, "--original=original", "--train-missing"))
    assert "give --pretrained" in line
    assert not (tmp_path / "other").exists()


def test_checkpoints_that_did_not_memorise_are_refused_unless_forced(run, given, source):
    swapped = [word for word in given if not word.startswith(("--final", "--reference"))]
    swapped += [f"--final={source.path('reference')}"]
    assert "NOT MEMORISED" in printed(run("adopt", "mine", *swapped, "--flag=flag"))
    line = refused(run("localise", "mine", "gradients", "--device=cpu"))
    assert "marked `not memorised`" in line
    assert "--force" in line
    forced = run("localise", "mine", "gradients", "--device=cpu", "--force", "--json")
    assert json.loads(printed(forced))["methods"]["gradients"]["about"]["forced"] is True
