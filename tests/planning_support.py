"""Plans of the micro study, and what is stale in them after a change."""

from command_support import rows_of, write_csv
from memloc.study.config import read_study
from memloc.study.plan import make_plan
from memloc.study.records import Store, study_states

RUN = "tiny-sentiment/tiny-opt-depth-2/seed-1"
"""The micro study's run."""


def plan_of(folder):
    return make_plan(read_study(folder))


def finish_all(plan):
    """As if everything had been done: records, and files that are there."""
    store = Store(plan.file.folder)
    for step in plan.steps.values():
        store.begin(step, "token")
        for path in step.outputs:
            (store.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (store.folder / path).touch()
        facts = {"seconds": 1.0, "peak_mb": 1.0}
        store.finish(step, facts)
    return store


def not_done(plan):
    """How the steps stand that are not done."""
    return {name: state for name, state in study_states(plan).items() if state.name != "done"}


def stale_after(micro, changes):
    """The steps that are not done after the text of a finished study was changed."""
    finish_all(plan_of(micro()))
    return not_done(plan_of(micro(changes=changes)))


def write_rows(folder, n=60, name="mine.csv"):
    """A file of one's own, in which every fifth label is wrong."""
    other = {"good": "bad", "bad": "good"}
    rows = [
        (text, other[label] if i % 5 == 0 else label, label, int(i % 5 == 0))
        for i, (text, label) in enumerate(rows_of(n))
    ]
    return write_csv(folder / name, rows, ("text", "label", "before", "wrong"))
