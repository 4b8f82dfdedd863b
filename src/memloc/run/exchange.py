"""Sends a run's folder to a repository of the hub, and fetches one from there.

A repository holds the records, the data, the results and all weights of a run, and a list of these
files with their checksums. No code and no pickle is sent or fetched.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from memloc.data import hub
from memloc.errors import MemlocError, StoreError, counted, in_words, listed
from memloc.progress import tell
from memloc.store import paths
from memloc.store.files import is_draft, remove
from memloc.store.identity import model_files
from memloc.store.lock import RUN, refuse_if_busy
from memloc.store.records import read_columns, read_json, write_json

if TYPE_CHECKING:
    from memloc.run.folder import Run
    from memloc.run.records import RunStatus

SAFE = (".json", ".parquet", ".safetensors", ".txt", ".model")
"""Suffixes of files that hold no code."""
CARD = """---
library_name: memloc
tags: [memloc]
---

# {name}

A run of memloc: {facts}. Fetch it with `memloc pull {repository} FOLDER`.
"""


def upload(run: "Run", repository: str, *, private: bool) -> str:
    """Upload a whole run, and return the address of its repository."""
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    refuse_if_busy(run.folder, RUN)
    run.check_whole()
    files = _files_of(run)
    with tempfile.TemporaryDirectory() as place, _asked(repository, "could not be written"):
        status = _moved(run, set(files))
        files[paths.STATUS] = Path(place, paths.STATUS)
        write_json(files[paths.STATUS], status.model_dump(mode="json"))
        sums = {name: _sha256(path) for name, path in sorted(files.items())}
        files[paths.LISTED] = Path(place, paths.LISTED)
        write_json(files[paths.LISTED], {"files": sums})
        size = sum(path.stat().st_size for path in files.values()) / 1e6
        tell(f"Uploading {counted(len(files), 'file')}, {size:,.1f} MB, to {repository}.")
        card = CARD.format(name=run.name, facts=run.card().sentences[0], repository=repository)
        contents: dict[str, Path | bytes] = {paths.CARD: card.encode(), **files}
        api = HfApi(endpoint=constants.ENDPOINT)
        url = api.create_repo(repository, private=private, exist_ok=True)
        add = [CommitOperationAdd(name, given) for name, given in contents.items()]
        api.create_commit(repository, add, commit_message=f"memloc run {run.name}")
    return str(url)


def download(repository: str, draft: Path, revision: str | None) -> None:
    """Download a run into a folder, and compare every file with the list of checksums."""
    from huggingface_hub import HfApi, constants, snapshot_download

    with _asked(repository, "could not be read"):
        repository_info = HfApi(endpoint=constants.ENDPOINT).model_info(
            repository, revision=revision
        )
        snapshot_download(
            repository,
            revision=repository_info.sha,  # one state of the repository, whoever pushes meanwhile
            local_dir=draft,
            allow_patterns=[f"*{ending}" for ending in SAFE],
            endpoint=constants.ENDPOINT,
        )
    listed_files = {
        path.relative_to(draft).as_posix(): path
        for path in draft.rglob("*")
        if path.is_file() and path.relative_to(draft).parts[0] != ".cache"
    }
    if paths.LISTED not in listed_files:
        raise StoreError(f"{repository} holds no run that `memloc push` sent: check the name.")
    wanted = read_json(listed_files.pop(paths.LISTED)).get("files")
    wrong = [
        name
        for name in sorted({*listed_files, *(wanted or {})})
        if not wanted or name not in listed_files or wanted.get(name) != _sha256(listed_files[name])
    ]
    if wrong:
        raise StoreError(
            f"{repository} is damaged: {listed(wrong[:3])} differ from the list of checksums in "
            f"{paths.LISTED}. Try again, or ask its owner to push the run again."
        )
    for path in listed_files.values():
        if path.suffix == ".parquet":
            read_columns(path)
    for name in (".cache", paths.LISTED):  # the hub's own notes, and the list just compared
        remove(draft / name)


def check_fetched(run: "Run", repository: str) -> None:
    """Refuse a fetched run that is incomplete, needs code, or names weights outside its folder."""
    if run.spec.remote_code or run.spec.any_format:
        raise StoreError(
            f"{repository} needs code or pickled weights of a model's repository, which memloc "
            "does not load for a run that comes from the hub."
        )
    for name, known in run.status.adopted.items():
        place = PurePosixPath(known.path)
        inside = place == PurePosixPath(paths.ADOPTED, name)
        if not inside and (name != "pretrained" or place.is_absolute() or ".." in place.parts):
            raise StoreError(f"{repository} names {name} weights that are not in it: {known.path}.")
    run.check_whole()


def _files_of(run: "Run") -> dict[str, Path]:
    """Return the files to send, by their names in the repository."""
    names = (paths.RUN, paths.LABELS, paths.TRAINING)
    files = {name: run.folder / name for name in names if (run.folder / name).is_file()}
    for path in sorted((run.folder / paths.RESULTS).rglob("*")):
        if path.is_file() and not is_draft(path) and path.suffix in SAFE:
            files[path.relative_to(run.folder).as_posix()] = path
    for name in [*run.checkpoints(), *map(paths.epoch, run.epochs()), *_adopted_start(run)]:
        folder = run.path(name)
        home = f"{paths.ADOPTED if name in run.status.adopted else paths.CHECKPOINTS}/{name}"
        for path in model_files(folder):
            if path.suffix not in SAFE:
                raise StoreError(
                    f"{path} may hold code, which is not sent to the hub: save the {name} weights "
                    "as safetensors (`model.save_pretrained(FOLDER)`) and adopt them again."
                )
            files[f"{home}/{path.name}"] = path
        about = folder / paths.PROVENANCE
        if about.is_file():
            files[f"{home}/{about.name}"] = about
    return files


def _adopted_start(run: "Run") -> list[str]:
    """Return `pretrained` in a list if these weights were adopted from a folder, else nothing."""
    given = run.status.adopted.get("pretrained")
    return ["pretrained"] if given is not None and run.path("pretrained").is_dir() else []


def _moved(run: "Run", names: set[str]) -> "RunStatus":
    """Return the run's status with adopted weights at their places in the repository."""
    homes = {PurePosixPath(name).parent.as_posix() for name in names}
    adopted = {
        name: known.replace({"path": home})
        if (home := f"{paths.ADOPTED}/{name}") in homes
        else known
        for name, known in run.status.adopted.items()
    }
    return run.status.model_copy(update={"adopted": adopted})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _asked(repository: str, what: str) -> Iterator[None]:
    """Turn any error of the hub into one sentence while active."""
    if repository.count("/") != 1:
        raise StoreError(f"{repository!r} is no repository: give a user and a name, as user/run.")
    reason = hub.unreachable()
    if reason:
        raise StoreError(f"{repository} {what}: {reason}. Check the connection and HF_HUB_OFFLINE.")
    try:
        with hub.quiet_hub():
            yield
    except MemlocError:
        raise
    except Exception as error:  # which errors there are depends on the hub's HTTP client
        raise StoreError(
            f"{repository} {what} ({in_words(error)}). Check its name, and log in with "
            "`hf auth login` if it is yours or private."
        ) from error
