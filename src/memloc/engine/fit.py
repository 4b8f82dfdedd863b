"""`fit` trains one or several models on the same texts; all of memloc's trainings use it.

Narrow models spend their time on calling small operations, so several of them share each call where
this is exact. No module outside this folder needs to know: each model is what it would be alone.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.engine.learner import Auxiliary, Learner, States, Watch, first_layer, part_sizes
from memloc.engine.loop import out_of_memory_explained, train_epoch
from memloc.engine.passes import Pass, Trained, Work
from memloc.engine.stacked import most_members
from memloc.engine.state import save_state
from memloc.model.stack import Stack
from memloc.progress import tell
from memloc.protocol import FineTuneSettings
from memloc.store.files import remove

ONE_BY_ONE = "MEMLOC_ONE_BY_ONE"
"""Environment variable; if set, every model is trained alone, with numbers equal up to float
noise.
"""


def fit(  # noqa: PLR0913 - what is trained, on what, how; the rest is optional
    learners: Sequence[Learner],
    texts: Encoded,
    settings: FineTuneSettings,
    *,
    auxiliary: Auxiliary | None = None,
    watch: Watch = Watch(),  # noqa: B008 - frozen
    state: States | None = None,
    ask: IntArray | None = None,
    scratch: Path | None = None,
) -> Iterator[list[Trained]]:
    """Train models; yield them as they become ready, one or several at a time.

    Each model gives what it would give alone, up to float noise. Models yielded in one list were
    trained in one pass; with `whole`, numbers do not depend on where the work was interrupted. If
    settings freeze layers without dropout, all models must start from the same weights outside of
    their own layers.

    Args:
        learners: The models, with the labels each of them learns.
        texts: The texts of all models.
        settings: Settings of the training.
        auxiliary: A task that trains the whole body of each model in turns with the learner.
        watch: Functions to call after updates and epochs.
        state: The files from which an interrupted training continues to the same bits; none by
            default.
        ask: Rows of the texts whose logits each trained model returns.
        scratch: Folder for intermediate states that do not fit into memory.
    """
    work = Work(texts, settings, auxiliary, watch, scratch or Path(tempfile.gettempdir()))
    with out_of_memory_explained(settings), closing(work):
        for some in _passes(learners, work, state):
            one = Pass(some, work)
            with one.objectives() as objectives:
                done = one.resume(state, objectives)
                for epoch in range(done + 1, settings.epochs + 1):
                    losses = train_epoch(
                        objectives, one.seeds, epoch, one.after_update, turns=one.turns
                    )
                    is_enough = one.after_epoch(epoch, losses)
                    if state is not None:
                        path = state.path(*one.names)
                        save_state(path, objectives, one.curves, state.key)
                    if is_enough:
                        break
            yield one.finished(ask)
            if state is not None:
                remove(state.path(*one.names))


def fit_all(
    learners: Sequence[Learner],
    texts: Encoded,
    settings: FineTuneSettings,
    watch: Watch = Watch(),  # noqa: B008 - frozen
) -> list[Trained]:
    """Train models as `fit` does and return all of them, in the order of the learners.

    Args:
        learners: The models, with the labels each of them learns.
        texts: The texts of all models.
        settings: Settings of the training.
        watch: Functions to call after updates and epochs.
    """
    ready = [trained for some in fit(learners, texts, settings, watch=watch) for trained in some]
    place = {learner.name: number for number, learner in enumerate(learners)}
    return sorted(ready, key=lambda trained: place[trained.name])


def whole(kept: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the stored models, given by `Trained.trained_with`, that need not be trained again.

    If a pass was interrupted while its models were stored, those stored are trained again with the
    others, so that the result never depends on when it was interrupted.
    """
    return {
        name
        for name, names in kept.items()
        if all([*kept.get(other, ())] == [*names] for other in names)
    }


def _passes(
    learners: Sequence[Learner], work: Work, state: States | None
) -> Iterator[list[Learner]]:
    """Yield the learners that are trained in one pass, pass by pass.

    Finished passes can be left out without a change of the others, so that interrupted work
    continues with the passes that are missing.
    """
    if all(learner.is_kept for learner in learners):
        return
    most = 1 if len(learners) == 1 else _at_once(learners[0].start().stack, work.settings)
    grouped = _grouped(learners, work, most)
    if state is not None:
        _give_up([learner.name for learner in learners], grouped, state)
    for group in grouped:
        left = [one for one in group if not one.is_kept]
        if left and state is not None:
            yield from _with_states(group, left, state)
        elif left:
            yield left


def _grouped(learners: Sequence[Learner], work: Work, most: int) -> list[list[Learner]]:
    """Return groups of learners that can share a pass: as many texts, and layers that allow it."""
    drops = work.settings.frozen_dropout or work.settings.clip_over == "all"

    def kind(learner: Learner) -> tuple[object, ...]:
        layers = [part.layers or () for part in learner.parts]
        first = None if drops else first_layer(learner)
        return (*part_sizes(learner, work.texts), *(layers if first is None else [(first,)]))

    def width(learner: Learner) -> int:
        return -len(learner.parts[0].layers or ())

    groups: list[list[Learner]] = []
    for _, group in groupby(sorted(learners, key=lambda one: (kind(one), width(one))), key=kind):
        same = list(group)
        groups += [same[start : start + most] for start in range(0, len(same), most)]
    return groups


def _with_states(
    group: list[Learner], left: list[Learner], state: States
) -> Iterator[list[Learner]]:
    """Yield the passes in which the remaining models of a group were begun, or will be."""
    if state.path(*(one.name for one in group)).is_file():
        yield group
    elif any(state.path(one.name).is_file() for one in left):
        yield from ([one] for one in left if not one.is_optional)
    elif not all(one.is_optional for one in left):
        yield left


def _give_up(names: list[str], groups: list[list[Learner]], state: States) -> None:
    """Remove the state of models that were begun in one pass and cannot continue in one."""
    if len(groups) > 1 and state.path(*names).is_file():
        tell(
            f"{' and '.join(names).capitalize()} were begun in one pass, which these settings or "
            "this device do not allow: they are trained from the start, one after the other."
        )
        remove(state.path(*names))


def _at_once(stack: Stack, settings: FineTuneSettings) -> int:
    """Return the number of models like this one that can be trained in one pass."""
    if os.environ.get(ONE_BY_ONE) or settings.autocast != "none" or stack.is_language_model:
        return 1
    # Batches of similar length differ from seed to seed in where the smaller one is.
    if settings.length_grouped or settings.gradient_checkpointing:
        return 1
    return most_members(stack, stack.device)
