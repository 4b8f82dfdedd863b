"""A run goes to the hub and comes back: a small server on this machine plays the hub."""

import base64
import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import memloc
from fixtures.commands import printed, refused
from memloc.errors import SettingsError, StoreError
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.store.records import read_json, write_json

NAME = "me/a-run"


class Hub:
    """The repositories of a hub that keeps files in memory, and what was asked of it."""

    def __init__(self):
        self.files, self.asked = {}, []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(*hub.file(self.path))

            def do_GET(self):
                self.answer(*hub.file(self.path))

            def do_POST(self):
                sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.answer(200, json.dumps(hub.posted(self.path, sent)).encode())

            def answer(self, status, body):
                self.send_response(status)
                tag = hashlib.sha1(body).hexdigest()
                about = {"Content-Length": len(body), "ETag": f'"{tag}"', "X-Repo-Commit": hub.sha}
                for name, value in about.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def sha(self):
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def posted(self, path, sent):
        self.asked.append((path, sent))
        if path.startswith(f"/api/models/{NAME}/preupload"):
            names = [file["path"] for file in json.loads(sent)["files"]]
            kind = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": name, **kind} for name in names]}
        if path.startswith(f"/api/models/{NAME}/commit"):
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{self.address}/{NAME}/commit/{self.sha}", "commitOid": self.sha}
        return {"url": f"{self.address}/{NAME}"}

    def file(self, path):
        path = path.partition("?")[0]
        _, resolved, name = path.partition(f"/{NAME}/resolve/{self.sha}/")
        if resolved and name in self.files:
            return 200, self.files[name]
        sized = {name: len(body) for name, body in self.files.items()}
        if path.startswith(f"/api/models/{NAME}/tree/"):
            rows = [{"type": "file", "path": n, "size": s, "oid": n} for n, s in sized.items()]
            return 200, json.dumps(rows).encode()
        if path.startswith(f"/api/models/{NAME}") and self.files:
            return 200, json.dumps({"id": NAME, "sha": self.sha, "siblings": []}).encode()
        return (200, b"") if path == "/" else (404, b"")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on this machine, which the hub's own library talks to."""
    hub = Hub()
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture
def pushed(hub, memorised_run):
    """A run with a result, after it was sent."""
    memloc.localise(memorised_run, "swapping")
    memorised_run.push(NAME)
    return memorised_run


def test_a_name_alone_is_a_run_of_the_hub(hub, pushed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fetched = memloc.adopt(NAME)
    assert fetched.folder == Path(NAME)
    assert fetched.record == pushed.record
    hub.files.clear()
    assert memloc.adopt(NAME).record == pushed.record  # it is there already
    beside = [(NAME, {"final": "x"}), (NAME, {"reference": "x"}), (NAME, {"epochs": {1: "x"}})]
    for name, given in [("mine", {}), (tmp_path / "mine", {}), *beside]:
        with pytest.raises(SettingsError, match="data must be given"):
            memloc.adopt(name, **given)


def test_a_run_comes_back_from_the_hub_as_it_was(hub, pushed, tmp_path):
    back = Run.pull(NAME, tmp_path / "back", device="cpu")
    assert back.record == pushed.record
    assert (
        back.checkpoints() == pushed.checkpoints() == ["memorised", "final", "reference", "frozen"]
    )
    assert back.task.train.parts == pushed.task.train.parts
    kept = back.folder / "results" / "swapping" / "about.json"
    before = kept.stat().st_mtime_ns
    assert memloc.localise(back, "swapping")["swapping"].depth == 3
    assert kept.stat().st_mtime_ns == before  # not computed again
    for name in back.checkpoints():
        one, other = (run.load(name).model.state_dict() for run in (back, pushed))
        assert all(np.array_equal(one[key].numpy(), other[key].numpy()) for key in other)
    left = {path.name for path in (tmp_path / "back").iterdir()}
    assert left == {
        *("run.json", "status.json", "labels.parquet", "training.parquet"),
        *("checkpoints", "results"),
    }
    create = next(json.loads(sent) for path, sent in hub.asked if path == "/api/repos/create")
    assert create.get("private") or create.get("visibility") == "private"
    assert b"memloc pull me/a-run" in hub.files["README.md"]


def test_adopted_weights_are_in_the_repository(hub, memorised_run, write_data, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(memorised_run.folder / "checkpoints", theirs)
    given = {"final": theirs / "final", "reference": theirs / "reference"}
    start = memorised_run.spec.model
    run = adopt(
        tmp_path / "mine",
        **given,
        pretrained=start,
        data=write_data(memorised_run),
        original="original",
    )
    run.push(NAME)
    shutil.rmtree(theirs)
    back = Run.pull(NAME, tmp_path / "back", device="cpu")
    assert back.checkpoints() == ["final", "reference"]
    assert back.path("final") == tmp_path / "back" / "adopted" / "final"
    assert memloc.localise(back, "swapping")["swapping"].depth == run.depth
    assert back.load("pretrained").weights_hash == run.status.adopted["pretrained"].hash


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: files.update({"labels.parquet": b"x"}), r"labels.parquet differ"),
        (lambda files: files.pop("checkpoints/final/model.safetensors"), "model.safetensors diff"),
        (lambda files: files.update({"results/more.json": b"{}"}), "results/more.json differ"),
        (lambda files: files.pop("files.json"), "holds no run"),
        (lambda files: files.clear(), r"could not be read .*404"),
    ],
)
def test_a_damaged_repository_is_refused_and_leaves_nothing(hub, pushed, tmp_path, spoil, said):
    spoil(hub.files)
    with pytest.raises(StoreError, match=said) as caught:
        Run.pull(NAME, tmp_path / "back")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "back").exists()


def resigned(hub, tmp_path, name, edit):
    """Somebody changes a record, with all checksums right."""
    place = tmp_path / "edited.json"
    place.write_bytes(hub.files[name])
    record = {k: v for k, v in read_json(place).items() if k != "format"}
    edit(record)
    write_json(place, record)
    hub.files[name] = place.read_bytes()
    if name != "files.json":
        sums = {name: hashlib.sha256(hub.files[name]).hexdigest()}
        resigned(hub, tmp_path, "files.json", lambda listed: listed["files"].update(sums))


def test_a_run_that_would_run_code_or_read_files_elsewhere_is_refused(hub, pushed, tmp_path):
    known = {"path": "/etc", "files": "", "hash": "x"}
    resigned(hub, tmp_path, "status.json", lambda r: r.update(adopted={"final": known}))
    with pytest.raises(StoreError, match="final weights that are not in it: /etc"):
        Run.pull(NAME, tmp_path / "back")
    resigned(hub, tmp_path, "status.json", lambda r: r.update(adopted={}))
    resigned(hub, tmp_path, "run.json", lambda r: r["spec"].update(remote_code=True))
    with pytest.raises(StoreError, match="needs code"):
        Run.pull(NAME, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_what_cannot_be_sent_or_fetched_is_a_sentence(hub, memorised_run, tmp_path, monkeypatch):
    (memorised_run.path("final") / "tokenizer_code.py").write_text("print()")
    with pytest.raises(StoreError, match="final are not those that memloc wrote"):
        memorised_run.push(NAME)
    with pytest.raises(StoreError, match="exists: choose another"):
        Run.pull(NAME, tmp_path)
    for name in ("run", "a/b/c"):
        with pytest.raises(StoreError, match="give a user and a name"):
            Run.pull(name, tmp_path / "back")
    with pytest.raises(SettingsError, match="repository is 3"):
        Run.pull(3, tmp_path / "back")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StoreError, match=r"cannot be reached.*HF_HUB_OFFLINE"):
        Run.pull(NAME, tmp_path / "back")


def test_weights_that_may_hold_code_are_not_sent(hub, memorised_run, write_data, tmp_path):
    theirs = shutil.copytree(memorised_run.path("final"), tmp_path / "final")
    (theirs / "tokenizer_code.py").write_text("print()")
    data = write_data(memorised_run)
    run = adopt(tmp_path / "mine", final=theirs, data=data, original="original")
    with pytest.raises(StoreError, match=r"tokenizer_code.py may hold code"):
        run.push(NAME)
    assert not hub.files


def test_the_commands(hub, pushed, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from memloc.cli import app

    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert printed(run(app, ["push", str(pushed.folder), NAME])) == f"{hub.address}/{NAME}\n"
    assert "final, reference" in printed(run(app, ["pull", NAME, "theirs"]))
    assert "theirs exists" in refused(run(app, ["pull", NAME, "theirs"]))
