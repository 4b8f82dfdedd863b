"""The constants of runs, plants and comparisons, each with its source.

The settings of a method are its own fields; `memloc.methods.protocol` joins both. What the
presets `paper`, `reference` and `demo` change is in `protocol.yaml`.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal

from memloc.errors import SettingsError, lookup, nearest
from memloc.settings import Settings, ours, packaged, paper, published


class NoiseSettings(Settings):
    """Settings of label noise."""

    rate: float = paper(0.15, "§3; per class, rounded down: published code", gt=0, lt=1)
    """Share of the training examples of each class that get a wrong label, rounded down."""
    pattern: Literal["uniform", "next"] = paper("uniform", "§3")
    """`uniform`: any other class, equally likely; `next`: class c becomes class c + 1."""
    seed: int = published(1, ge=0)
    """Data seed: which examples, which labels, which random splits."""


class TextSettings(Settings):
    """Settings of tokenisation."""

    max_tokens: int = paper(512, "appendix D", ge=2)
    """Longer sequences are cut; batches are padded on the right to their longest."""


class FineTuneSettings(Settings):
    """Settings of the trainings of θ_M1, θ_M2, θ_O and θ_F."""

    learning_rate: float = paper(1e-5, "appendix D", gt=0)
    """Peak of the schedule."""
    batch_size: int = paper(8, "appendix D", ge=1)
    """Examples per update."""
    accumulate: int = ours(1, ge=1)
    """Compute a batch in this many pieces to save memory; the update is the same."""
    epochs: int = paper(50, "§3", ge=1)
    """Passes over the training data."""
    warmup: float = published(0.1, ge=0, lt=1)
    """Share of the updates with a rising rate; it falls linearly to zero after that."""
    weight_decay: float = published(0.01, ge=0)
    """Weight decay of AdamW, on every trained parameter."""
    clip: float = published(1.0, gt=0)
    """Largest norm of the gradient."""
    clip_over: Literal["trained", "all"] = ours("trained")
    """Whose gradients count in that norm: those of the trained parameters, or of all. Gradients of
    frozen parameters are then computed for the norm only."""
    freeze_embeddings: bool = paper(True, "§3")
    """Whether input embeddings stay as they were pre-trained."""
    frozen_dropout: bool = ours(False)
    """Whether the frozen blocks run with dropout while θ_F is trained."""
    frozen_seed: int | None = ours(None, ge=0)
    """Model seed of θ_F, so that all runs of a task share it. Default: the seed of the run."""
    length_grouped: bool = ours(False)
    """Whether a batch takes examples of similar length (less padding, another order)."""
    autocast: Literal["none", "bf16"] = ours("none")
    """Lower precision for the forward pass of training."""
    gradient_checkpointing: bool = ours(False)
    """Whether fine-tuning keeps each block's input only and runs the block again on the way back:
    less memory, more time, the same update."""
    adapter: Literal["none", "lora"] = ours("none")
    """Whether all weights learn, or low-rank adapters in the blocks and the head alone; then the
    embeddings and the base weights stay as they were, and the disk holds adapters only."""
    adapter_rank: int = ours(8, ge=1)
    """Rank of the adapters."""
    adapter_alpha: float = ours(16, gt=0)
    """Scale of the adapters times their rank."""
    adapter_targets: tuple[str, ...] | None = ours(None)
    """The linear layers that get one, by the last part of their names; default: all of a block."""
    adapter_dropout: float = ours(0.0, ge=0, lt=1)
    """Dropout before the adapters."""
    keep_epochs: Literal["none", "early"] = ours("none")
    """Whether training on the noisy labels keeps its early checkpoints (`epoch-1`, `epoch-2`, …):
    every measured epoch until 95 % of the noisy labels are learnt, then epochs 2, 4, 8, 16, …
    They show when labels were learnt and can take the place of a reference."""
    repeat: int = ours(1, ge=1)
    """Number of times that each noisy example is learnt in an epoch."""
    measure_every: int = ours(1, ge=1)
    """Epochs between two measurements of accuracies; θ_M1 is one of the measured epochs."""
    near_ceiling: float = paper(0.993, "appendix D", gt=0, lt=1)
    """θ_M1 is the first epoch whose training score is above this."""
    near_ceiling_score: Literal["accuracy", "macro F1"] = paper("accuracy", "appendix D")
    """The training score of θ_M1."""
    without_near_ceiling: Literal["report", "use last epoch"] = ours("report")
    """Whether to report that no epoch is near the ceiling, or to use the last one as θ_M1."""


class VerdictSettings(Settings):
    """Settings of the verdict on memorisation."""

    noisy_at_least: float = ours(0.95, gt=0, le=1)
    """A run that ends with a lower accuracy on its noisy labels is `not memorised`. (With 15 %
    noise, a training accuracy of .993 means that at most 4.7 % of these labels are missing.)"""


class ControlSettings(Settings):
    """The planted windows of section 3.2."""

    width: int = paper(2, "§3.2", ge=1)
    """Number of layers that the noisy task may change: the first, middle or last ones."""
    auxiliary: str = paper("rte", "§3.2")
    """The task that changes every layer, with its original labels and its own head."""
    auxiliary_learning_rate: float = published(5e-6, gt=0)
    """Peak rate of the auxiliary task, which has its own optimiser and schedule."""
    trains_pooler_and_norm: bool = paper(False, "§3.2")
    """Whether the noisy task also trains what follows the blocks (pooler, final norm), besides its
    window and its head."""
    frozen_with_auxiliary: bool = ours(False)
    """Whether θ_F of a plant is trained in turns with the auxiliary task, which changes every layer
    and runs with dropout, or on the noisy task alone."""
    auxiliary_examples: int | None = ours(None, ge=2)
    """Training examples of the auxiliary task, drawn at random; default: all."""
    learning_rate: float | None = ours(None, gt=0)
    """Learning rate of the noisy task in the first training. Default: that of fine-tuning."""
    epochs: int | None = ours(None, ge=1)
    """Passes over the data of both tasks; default: as many as in fine-tuning."""
    seed: int = paper(1, "§3; which seed: published code", ge=0)
    """The model seed of all plants."""
    accuracy_above: float = paper(0.99, "appendix D", gt=0, lt=1)
    """Training accuracy below which training is repeated with a higher rate."""
    rate_factor: float = ours(2.0, gt=1)
    """The rate of the next training, relative to that of the one before."""
    tries: int = ours(4, ge=1)
    """Largest number of trainings; a plant that memorised in none of them is not used."""
    validation_tasks: tuple[str, ...] = paper(("mrpc", "trec"), "§3.2")
    """Tasks that choose the gradients' post-processing; the others test the methods."""
    ks: tuple[int, ...] = paper((1, 2), "§3.2")
    """The values of k in accuracy@k, the share of planted layers among the k best ones."""


class ProbeSettings(Settings):
    """Classifiers on the vectors of each layer: what probing and label probes share."""

    hidden_layers: int = paper(1, "§3.1", ge=0, le=2)
    """Hidden layers of the probe."""
    hidden: int = published(128, ge=1)
    """Width of a hidden layer; GELU follows it."""
    dropout: float = published(0.1, ge=0, lt=1)
    """Dropout on the input."""
    learning_rate: float = paper(2e-4, "§3.1", gt=0)
    """Learning rate of AdamW."""
    weight_decay: float = published(1e-5, ge=0)
    """Weight decay of AdamW."""
    batch_size: int = published(32, ge=1)
    """Examples per update."""
    epochs: int = paper(100, "§3.1", ge=1)
    """Largest number of epochs."""
    first_epoch: int = published(25, ge=0)
    """The best validation epoch is one after this; if F1 is 0 in all of them, it is the last."""
    split: tuple[float, float, float] = published((0.7, 0.1, 0.2))
    """Training, validation and test shares of the training examples."""
    seeds: tuple[int, ...] = paper((0, 1, 2, 3, 4), "§3.1; which five: published code")
    """Train one probe per seed and layer."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§3.1")
    """Whether a decoder's last vector is the block's output or what the final norm makes of it."""
    standardise: bool = ours(False)
    """Whether each number of a layer's vectors is scaled to mean 0 and deviation 1 over all
    examples. In some encoders the first token is nearly the same for all texts in the middle
    layers; probes read it only if it is scaled."""


class AgreementSettings(Settings):
    """Correlations between methods and between models."""

    between_methods: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient between methods."""
    between_models: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient between models."""
    significance: float = paper(0.05, "Table 2", gt=0, lt=1)
    """Coefficients with a p-value above this are not significant."""


class SummarySettings(Settings):
    """Settings that turn results of several seeds, layers and models into one number."""

    mcog: Literal["mean over seeds", "of mean weights"] = paper("mean over seeds", "§4")
    """The mean of the seeds' M-CoG, or the M-CoG of layer weights averaged over seeds."""
    single_layer: Literal["mean of largest", "largest mean"] = paper("mean of largest", "Figure 4")
    """The largest error of a single layer: the mean over seeds of each seed's largest error, or the
    largest of the layers' mean errors, normalised for methods that normalise."""
    binarised_events: Literal["tasks and models", "task means"] = paper(
        "tasks and models", "appendix C"
    )
    """The points over which events of multi-class and binarised tasks are compared."""


MEMORISED_ONLY = (
    *("finetune.near_ceiling", "finetune.near_ceiling_score"),
    *("finetune.without_near_ceiling", "finetune.measure_every"),
)
"""Settings that decide when the memorised weights are kept, and no other weights."""
NOT_DECIDING = (
    *("preset", "finetune.keep_epochs"),
    *("finetune.accumulate", "finetune.gradient_checkpointing"),
)
"""The preset's name, which epochs are kept, and what saves memory while updates stay the same."""


class RunSettings(Settings):
    """The settings that decide the weights of a run."""

    preset: str = "paper"
    """The preset that the values started from."""
    noise: NoiseSettings = NoiseSettings()
    text: TextSettings = TextSettings()
    finetune: FineTuneSettings = FineTuneSettings()

    def deciding(self, *, memorised: bool) -> dict[str, Any]:
        """Return the settings that decide the weights; `memorised` adds those of θ_M1 alone."""
        without = NOT_DECIDING if memorised else (*NOT_DECIDING, *MEMORISED_ONLY)
        if self.finetune.adapter == "none":
            without = (*without, *(n for n in self.flat() if n.startswith("finetune.adapter")))
        return {name: value for name, value in self.flat().items() if name not in without}

    def changes(self) -> dict[str, Any]:
        """Return every setting that differs from the preset, under its dotted name."""
        base = common_preset(self.preset).flat()
        return {name: value for name, value in self.flat().items() if value != base[name]}


class CommonSettings(RunSettings):
    """The settings that belong to no method: those of runs, of plants and of comparisons."""

    verdict: VerdictSettings = VerdictSettings()
    control: ControlSettings = ControlSettings()
    agreement: AgreementSettings = AgreementSettings()
    summary: SummarySettings = SummarySettings()

    def for_run(self) -> RunSettings:
        """Return the part that decides a run's weights."""
        return RunSettings(**{name: getattr(self, name) for name in RunSettings.model_fields})


PRESETS: dict[str, dict[str, Any]] = packaged(__file__)
"""Settings that each preset changes; names and values are checked when a preset is made."""


@cache
def common_preset(name: str) -> CommonSettings:
    """Return the part of the preset `paper`, `reference` or `demo` that belongs to no method."""
    changes = lookup("preset", name, PRESETS)
    common = {key: changes[key] for key in changes if is_common(key)}
    return CommonSettings().replace({"preset": name, **common})


def is_common(key: str) -> bool:
    """Whether a setting, by its dotted name, is in a group that belongs to no method."""
    return key.split(".", maxsplit=1)[0] in CommonSettings.model_fields


def settings_of_run(
    name: str, changes: Mapping[str, Any], *, has_noise: bool = False
) -> RunSettings:
    """Return a preset with changes to settings that decide a run's weights; others are refused.

    The settings of noise decide nothing where the data say which labels are wrong (`has_noise`).
    """
    start = common_preset(name).for_run()
    for key in changes:
        if "." in key and key.split(".")[0] not in RunSettings.model_fields:
            raise SettingsError(
                f"{key} does not decide the weights of a run, so the run would not keep it: give "
                "it to `memloc localise` or `memloc analyse`, or set it in a study's file; `memloc "
                "protocol` lists all settings."
                f"{nearest(key, start.flat())}"
            )
    changed = start.replace(changes)
    if has_noise:
        used = [key for key in changed.flat() if key not in {"noise.rate", "noise.pattern"}]
        refuse_idle(changes, used, "data that say which labels are wrong")
    adapter = "finetune.adapter"
    if changed.finetune.adapter == "none":
        used = [key for key in changed.flat() if not key.startswith(f"{adapter}_")]
        refuse_idle(changes, used, "training without an adapter", dict.fromkeys(changes, adapter))
    return changed


def refuse_idle(
    changes: Mapping[str, Any],
    used: Collection[str],
    work: str,
    instead: Mapping[str, str] | None = None,
) -> None:
    """Refuse settings that decide nothing: whoever gives one expects an effect.

    Args:
        changes: The settings that were given, by dotted name.
        used: Names of settings that decide something, or of whole groups of them.
        work: What the settings were given to, for people.
        instead: The setting to use in place of one that decides nothing.
    """
    for key in changes:
        if not {key, key.split(".")[0]} & {*used}:
            other = (instead or {}).get(key)
            advice = f"set {other}" if other else "leave it out"
            raise SettingsError(f"{key} decides nothing for {work}: {advice}.")


def readable(value: Any) -> str:
    """Write a setting's value as people do."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
