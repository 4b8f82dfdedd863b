import html
import json
import re

import torch

from fixtures.commands import COLUMNS, FAST, NAMED, printed, refused, rows_of, write_csv


def test_train_makes_everything_from_a_file_with_string_labels(run, model, mine, tmp_path):
    command = ("train", model, "--data", mine, *COLUMNS, *FAST)
    shown = run(*command)
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    assert "unseen examples" in printed(shown)
    assert "NOT MEMORISED" in shown.stdout
    assert "The reference weights, trained without noise, predict only" in printed(shown)
    assert "noisy" in shown.stderr  # progress
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoints",
        "labels.parquet",
        "run.json",
        "status.json",
        "training.parquet",
        "training.png",
    ]
    about = json.loads((folder / "run.json").read_text())
    assert about["task"]["label_names"] == ["bad", "good"]
    assert about["command"].startswith(f"memloc train {model} --data {mine} --text=review")
    assert about["spec"]["settings"]["finetune"]["learning_rate"] == 0.01
    config = json.loads((folder / "checkpoints" / "final" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}

    before = {p: p.stat().st_mtime_ns for p in (folder / "checkpoints").rglob("*") if p.is_file()}
    again = json.loads(printed(run(*command, "--json")))
    assert again["checkpoints"] == ["final", "reference", "frozen"]
    assert again["verdict"]["memorised"] is False
    assert "memorised" in again["without"]
    assert {p: p.stat().st_mtime_ns for p in before} == before  # nothing is made again


def test_train_makes_only_the_weights_asked_for(run, model, mine):
    command = ("train", model, "--data", mine, *COLUMNS, *FAST, "--json")
    first = json.loads(printed(run(*command, "--checkpoints", "frozen")))
    assert first["checkpoints"] == ["frozen"]
    assert first["verdict"] is None
    second = json.loads(
        printed(run(*command, "--checkpoints", "reference", "--checkpoints", "frozen"))
    )
    assert second["checkpoints"] == ["reference", "frozen"]


def test_train_says_what_there_is_when_nothing_was_memorised_yet(run, model, mine):
    shown = printed(run("train", model, "--data", mine, *COLUMNS, *FAST, "--checkpoints", "frozen"))
    assert "seed-1: frozen" in shown


def test_train_goes_on_where_it_was(run, model, mine, monkeypatch):
    from memloc.engine import fit as training

    plain, count = training.save_state, []

    def interrupted(*args):
        plain(*args)
        count.append(1)
        if len(count) == 1:
            raise KeyboardInterrupt

    command = ("train", model, "--data", mine, *COLUMNS, *FAST)
    monkeypatch.setattr(training, "save_state", interrupted)
    stopped = run(*command)
    assert stopped.exit_code == 130
    assert "memloc: interrupted" in stopped.stderr
    assert json.loads(printed(run(*command, "--json")))["checkpoints"][0] == "final"
    assert len(count) == 4  # two epochs of two trainings as one and of a third, none twice


def test_train_keeps_the_noise_that_a_file_brings(run, model, tmp_path):
    rows = rows_of(60)
    wrong = {"good": "bad", "bad": "good"}
    noisy = [(text, wrong[y] if i % 10 == 0 else y, y) for i, (text, y) in enumerate(rows)]
    path = write_csv(tmp_path / "real.csv", noisy, ("review", "stars", "true"))
    words = ("--data", path, *NAMED, "--original=true", *FAST, "--checkpoints=frozen", "--json")
    shown = run("train", model, *words)
    folder = tmp_path / json.loads(printed(shown))["folder"]
    about = json.loads((folder / "run.json").read_text())
    n_noisy = about["task"]["noisy"]
    assert 0 < n_noisy <= 6
    assert (
        f"{n_noisy} noisy of 48 examples, column 'true' read as original labels."
        in shown.stderr.splitlines()
    )
    assert json.loads(shown.stdout)["noise"] in shown.stderr
    fewer = run("train", model, *words, "--examples=20", "--out", tmp_path / "fewer")
    assert "2 noisy of 20 examples, column 'true' read as original labels." in fewer.stderr


def test_train_reads_flags_beside_integer_labels_as_flags(run, model, tmp_path):
    rows = [(text, i % 2, int(i % 10 < 3)) for i, (text, _) in enumerate(rows_of(60))]
    path = write_csv(tmp_path / "real.csv", rows, ("review", "stars", "wrong"))
    unseen = write_csv(tmp_path / "unseen.csv", rows[:8], ("review", "stars", "wrong"))
    words = ("--data", path, *NAMED, *FAST, "--checkpoints=frozen", "--held-out", unseen)
    shown = run("train", model, *words, "--flag=wrong")
    assert "18 noisy of 60 examples, column 'wrong' read as flags." in shown.stderr.splitlines()
    assert "seed-1: frozen" in printed(shown)


def test_train_says_that_it_flipped_labels_and_that_the_file_s_errors_are_not_known(
    run, model, mine
):
    command = ("train", model, "--data", mine, *COLUMNS, *FAST)
    shown = run(*command, "--checkpoints=final")
    (line,) = [text for text in shown.stderr.splitlines() if "6 noisy of 48 examples" in text]
    assert "flipped by memloc (a share of 0.15" in line
    assert line.endswith("not known.")
    assert line in printed(shown).splitlines()


def test_train_keeps_the_labels_of_small_classes_and_says_so_once(run, model, tmp_path):
    rows = [*rows_of(60), *[("the fox", "odd")] * 6]
    shown = run(
        "train", model, "--data", write_csv(tmp_path / "m.csv", rows), *COLUMNS, *FAST, "--json"
    )
    assert json.loads(printed(shown))["checkpoints"]
    assert shown.stderr.count("1 class keeps its labels") == 1
    line = next(line for line in shown.stderr.splitlines() if "keeps its" in line)
    assert line.startswith("1 class keeps its labels, because a share of 0.15 is less than one")
    assert "odd (" in line


def test_train_can_take_fewer_examples_layers_and_another_seed(run, model, mine, tmp_path):
    words = ("--data", mine, *COLUMNS, *FAST, "--checkpoints=frozen", "--json")
    found = json.loads(
        printed(run("train", model, *words, "--examples=20", "--depth=1", "--seed=7"))
    )
    assert found["folder"].endswith(f"{model.name}-depth-1/seed-7")
    about = json.loads((tmp_path / found["folder"] / "run.json").read_text())
    assert (about["task"]["train"], about["depth"], about["spec"]["seed"]) == (20, 1, 7)


def test_out_of_memory_suggests_pieces_and_loses_nothing(run, model, mine, monkeypatch):
    from memloc.model.stack import Stack

    def fail(stack, batch):
        if stack.model.training:  # a few tokens fit, when a model is tried before its training
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(stack, batch)

    plain = Stack.logits
    words = ("train", model, "--data", mine, *COLUMNS, *FAST, "--checkpoints=final")
    with monkeypatch.context() as patch:
        patch.setattr(Stack, "logits", fail)
        result = run(*words)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("memloc: Out of memory with batches of 8")
    assert "finetune.accumulate=2" in last
    assert "Traceback" not in result.stderr
    printed(run(*words, "--set=finetune.accumulate=2"))


def test_own_noise_is_said_by_every_command_and_its_columns_are_in_the_report(run, model, tmp_path):
    other = {"good": "bad", "bad": "good"}
    rows = [
        (text, other[label] if i % 4 == 0 else label, label)
        for i, (text, label) in enumerate(rows_of(60))
    ]
    header = ("review", "stars", "right one")
    data = write_csv(tmp_path / "mine.csv", rows, header)
    unseen = write_csv(tmp_path / "unseen.csv", rows[:20], header)
    words = ("train", model, "--data", data, *NAMED, *FAST)
    words += ("--checkpoints=final", "--checkpoints=reference")
    shown = run(*words, "--original", "right one", "--held-out", unseen)
    line = "15 noisy of 60 examples, column 'right one' read as original labels."
    assert shown.stderr.splitlines().count(line) == 1
    assert line in printed(shown).splitlines()
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    plain = "--set=swapping.normalise=false"
    for command in (("localise", folder, "swapping", plain), ("analyse", folder, "centroids")):
        looked = run(*command, "--device=cpu", "--force")
        assert looked.stderr.splitlines().count(line) == 1
        assert printed(looked)
    printed(run("report", "runs"))
    page = (tmp_path / "runs" / "report" / "index.html").read_text(encoding="utf-8")
    made = next(text for text in re.findall(r"memloc train [^<\n]*", page) if str(data) in text)
    assert f"--original 'right one' --held-out {unseen}" in html.unescape(made)


def test_train_refuses_settings_that_a_run_does_not_keep(run, model, mine, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for change in ("verdict.noisy_at_least=0.5", "gradients.norm=L2"):
        line = refused(run("train", model, "--data", mine, *COLUMNS, *FAST, f"--set={change}"))
        assert f"{change.partition('=')[0]} does not decide the weights of a run" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_find_shows_the_examples_to_look_at_first_and_what_to_correct(run, model, mine, tmp_path):
    quick = ("--set=generalisation.epochs=1", "--set=finetune.batch_size=4", "--models=3")
    command = ("find", model, "--data", mine, *COLUMNS[:2], "--out=found", *quick, "--device=cpu")
    shown = run(*command)
    said = printed(shown)
    assert "of 3 models on halves are left" in shown.stderr
    assert "With 3 models, each example is judged by about 2" in shown.stderr
    assert "are likely wrong" in said or "is likely wrong" in said
    assert "wrong as if drawn at random" in said
    assert "correct found/suspects.csv" in said
    again = run(*command, "--json")
    assert "are left" not in again.stderr
    record = json.loads(printed(again))
    assert record["models"] == 3
    assert {"row", "label", "suggested", "held_out", "group"} <= set(record["examples"][0])
    assert sorted(p.name for p in (tmp_path / "found").iterdir()) == [
        "index.html",
        "suspects.csv",
        "suspects.parquet",
        "work",
    ]


def test_find_refuses_early(bad, model, mine):
    assert "--data FILE" in bad("find", model)
    assert "no column 'revue'" in bad("find", model, "--data", mine, "--text=revue")
    idle = bad("find", model, "--data", mine, *NAMED, "--set=finetune.epochs=1")
    assert "finetune.epochs decides nothing for find: set generalisation.epochs" in idle


def test_repair_says_its_cost_and_prints_the_verdict_in_sentences(run, memorised_run):
    settings = ("epochs=1", "relearn_epochs=3", "orders=2", "yardsticks=2")
    quick = (*(f"--set={setting}" for setting in settings), "--device=cpu")
    command = ("repair", memorised_run.folder, "--out=repaired", *quick)
    found = run(*command)
    said = printed(found)
    assert "10 models are compared, of which 2 are trained" in " ".join(found.stderr.split())
    assert "of the noisy labels are predicted" in said
    assert "Accuracy on clean training examples went from" in said
    record = json.loads(printed(run(*command, "--json")))
    verdicts = {row["way"]: row["verdict"] for row in record["repairs"]}
    assert verdicts["reference's layers"] == record["verdict"]
    assert verdicts["before"] == "still there"
    assert {"reference", "head alone"} <= set(verdicts)


def test_repair_refuses_what_it_does_not_know(bad, memorised_run):
    command = ("repair", memorised_run.folder, "--out=repaired", "--device=cpu")
    assert "Setting way is 'magic'" in bad(*command, "--way=magic")
    assert "Setting layers is '1'" in bad(*command, "--set=layers='1'")
