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
    """Data seed: decides the noisy examples, their wrong labels and random splits."""


class TextSettings(Settings):
    """Settings of tokenisation."""

    max_tokens: int = paper(512, "appendix D", ge=2)
    """Largest number of tokens of a text; longer texts are cut, and batches padded on the right."""


class FineTuneSettings(Settings):
    """Settings of the trainings of θ_M1, θ_M2, θ_O and θ_F."""

    learning_rate: float = paper(1e-5, "appendix D", gt=0)
    """Peak learning rate of the schedule."""
    batch_size: int = paper(8, "appendix D", ge=1)
    """Number of examples per update."""
    accumulate: int = ours(1, ge=1)
    """Number of pieces in which a batch is computed to save memory; the update is the same."""
    epochs: int = paper(50, "§3", ge=1)
    """Number of passes over the training data."""
    warmup: float = published(0.1, ge=0, lt=1)
    """Share of the updates with a rising learning rate, which then falls linearly to zero."""
    weight_decay: float = published(0.01, ge=0)
    """Weight decay of AdamW, on every trained parameter."""
    clip: float = published(1.0, gt=0)
    """Largest norm of the gradient; larger gradients are scaled down to it."""
    clip_over: Literal["trained", "all"] = ours("trained")
    """Parameters whose gradients count in that norm: the trained ones, or all. Gradients of frozen
    parameters are then computed for the norm only.
    """
    freeze_embeddings: bool = paper(True, "§3")
    """Keep the input embeddings at their pre-trained values."""
    frozen_dropout: bool = ours(False)
    """Run the frozen blocks with dropout while θ_F is trained."""
    frozen_seed: int | None = ours(None, ge=0)
    """Model seed of θ_F, so that all runs of a task can share it; by default the seed of the
    run.
    """
    length_grouped: bool = ours(False)
    """Put examples of similar length into a batch (less padding, another order)."""
    autocast: Literal["none", "bf16"] = ours("none")
    """Lower precision for the forward pass in training."""
    gradient_checkpointing: bool = ours(False)
    """Keep only each block's input in fine-tuning and run the block again backwards: less memory,
    more time, the same update.
    """
    adapter: Literal["none", "lora"] = ours("none")
    """Train all weights, or only low-rank adapters in the blocks and the head; then embeddings and
    base weights stay as they were, and only adapters are saved.
    """
    adapter_rank: int = ours(8, ge=1)
    """Rank of the adapters."""
    adapter_alpha: float = ours(16, gt=0)
    """Scale of the adapters times their rank."""
    adapter_targets: tuple[str, ...] | None = ours(None)
    """Linear layers that get an adapter, by the last part of their names; by default all of a
    block.
    """
    adapter_dropout: float = ours(0.0, ge=0, lt=1)
    """Dropout before the adapters."""
    keep_epochs: Literal["none", "early"] = ours("none")
    """Early checkpoints (`epoch-1`, `epoch-2`, …) that training on the noisy labels keeps: with
    `early`, every measured epoch until 95 % of the noisy labels are learnt, then epochs 2, 4, 8,
    16, … They show when labels were learnt and can replace a reference.
    """
    repeat: int = ours(1, ge=1)
    """Number of times that each noisy example is seen in an epoch."""
    measure_every: int = ours(1, ge=1)
    """Number of epochs between two measurements of accuracies; θ_M1 is one of the measured
    epochs.
    """
    near_ceiling: float = paper(0.993, "appendix D", gt=0, lt=1)
    """Training score above which an epoch is near the ceiling; θ_M1 is the first such epoch."""
    near_ceiling_score: Literal["accuracy", "macro F1"] = paper("accuracy", "appendix D")
    """Training score that chooses θ_M1."""
    without_near_ceiling: Literal["report", "use last epoch"] = ours("report")
    """Report that no epoch is near the ceiling, or use the last epoch as θ_M1."""


class VerdictSettings(Settings):
    """Settings of the verdict on memorisation."""

    noisy_at_least: float = ours(0.95, gt=0, le=1)
    """Accuracy on the noisy labels below which a run is `not memorised`. (With 15 % noise, a
    training accuracy of .993 means that at most 4.7 % of these labels are missing.)
    """


class ControlSettings(Settings):
    """Settings of the planted windows of section 3.2."""

    width: int = paper(2, "§3.2", ge=1)
    """Number of layers that the noisy task may change: the first, middle or last ones."""
    auxiliary: str = paper("rte", "§3.2")
    """Task that changes every layer, with its original labels and its own head."""
    auxiliary_learning_rate: float = published(5e-6, gt=0)
    """Peak learning rate of the auxiliary task, which has its own optimiser and schedule."""
    trains_pooler_and_norm: bool = paper(False, "§3.2")
    """Let the noisy task also train pooler and final norm, in addition to its window and its
    head.
    """
    frozen_with_auxiliary: bool = ours(False)
    """Train θ_F of a plant in turns with the auxiliary task, which changes every layer and runs
    with dropout, rather than on the noisy task alone.
    """
    auxiliary_examples: int | None = ours(None, ge=2)
    """Number of training examples of the auxiliary task, drawn at random; all by default."""
    learning_rate: float | None = ours(None, gt=0)
    """Learning rate of the noisy task in the first training; by default that of fine-tuning."""
    epochs: int | None = ours(None, ge=1)
    """Number of passes over the data of both tasks; by default as many as in fine-tuning."""
    seed: int = paper(1, "§3; which seed: published code", ge=0)
    """Model seed of all plants."""
    accuracy_above: float = paper(0.99, "appendix D", gt=0, lt=1)
    """Training accuracy below which training is repeated with a higher rate."""
    rate_factor: float = ours(2.0, gt=1)
    """Factor by which the learning rate rises from one training to the next."""
    tries: int = ours(4, ge=1)
    """Largest number of trainings; a plant that memorised in none of them is not used."""
    validation_tasks: tuple[str, ...] = paper(("mrpc", "trec"), "§3.2")
    """Tasks that choose the gradients' post-processing; the others test the methods."""
    ks: tuple[int, ...] = paper((1, 2), "§3.2")
    """Values of k in accuracy@k, the share of planted layers among the k best ones."""


class ProbeSettings(Settings):
    """Settings of classifiers on the vectors of each layer, shared by probing and label probes."""

    hidden_layers: int = paper(1, "§3.1", ge=0, le=2)
    """Number of hidden layers of a probe."""
    hidden: int = published(128, ge=1)
    """Width of a hidden layer, which is followed by GELU."""
    dropout: float = published(0.1, ge=0, lt=1)
    """Dropout on the input."""
    learning_rate: float = paper(2e-4, "§3.1", gt=0)
    """Learning rate of AdamW."""
    weight_decay: float = published(1e-5, ge=0)
    """Weight decay of AdamW."""
    batch_size: int = published(32, ge=1)
    """Number of examples per update."""
    epochs: int = paper(100, "§3.1", ge=1)
    """Largest number of epochs."""
    first_epoch: int = published(25, ge=0)
    """Epoch after which the best validation epoch is chosen; if F1 is 0 in all of them, the last
    epoch is used.
    """
    split: tuple[float, float, float] = published((0.7, 0.1, 0.2))
    """Shares of the training examples used for training, validation and test of a probe."""
    seeds: tuple[int, ...] = paper((0, 1, 2, 3, 4), "§3.1; which five: published code")
    """Seeds of the probes; one probe is trained per seed and layer."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§3.1")
    """Last vector of a decoder: the block's output, or the output of the final norm."""
    standardise: bool = ours(False)
    """Scale each number of a layer's vectors to mean 0 and deviation 1 over all examples. In some
    encoders the first token is nearly the same for all texts in the middle layers; probes read
    it only if it is scaled.
    """


class AgreementSettings(Settings):
    """Settings of correlations between methods and between models."""

    between_methods: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient of correlation between methods."""
    between_models: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient of correlation between models."""
    significance: float = paper(0.05, "Table 2", gt=0, lt=1)
    """P-value above which a coefficient is not significant."""


class SummarySettings(Settings):
    """Settings that turn results of several seeds, layers and models into one number."""

    mcog: Literal["mean over seeds", "of mean weights"] = paper("mean over seeds", "§4")
    """Summary over seeds: the mean of the seeds' M-CoG, or the M-CoG of layer weights averaged over
    seeds.
    """
    single_layer: Literal["mean of largest", "largest mean"] = paper("mean of largest", "Figure 4")
    """Largest error of a single layer: the mean over seeds of each seed's largest error, or the
    largest of the layers' mean errors, normalised for methods that normalise.
    """
    binarised_events: Literal["tasks and models", "task means"] = paper(
        "tasks and models", "appendix C"
    )
    """Points over which events of multi-class and binarised tasks are compared."""


MEMORISED_ONLY = (
    *("finetune.near_ceiling", "finetune.near_ceiling_score"),
    *("finetune.without_near_ceiling", "finetune.measure_every"),
)
"""Settings that decide when the memorised weights are kept, and affect no other weights."""
NOT_DECIDING = (
    *("preset", "finetune.keep_epochs"),
    *("finetune.accumulate", "finetune.gradient_checkpointing"),
)
"""Settings that do not change weights: the preset's name, kept epochs, and memory saving."""


class RunSettings(Settings):
    """The settings that decide the weights of a run."""

    preset: str = "paper"
    """Preset that the values started from."""
    noise: NoiseSettings = NoiseSettings()
    """How labels are made wrong."""
    text: TextSettings = TextSettings()
    """How texts are cut into tokens."""
    finetune: FineTuneSettings = FineTuneSettings()
    """How all weights are trained."""

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
    """Settings that belong to no method: those of runs, of plants and of comparisons."""

    verdict: VerdictSettings = VerdictSettings()
    """When labels count as memorised."""
    control: ControlSettings = ControlSettings()
    """How labels are planted."""
    agreement: AgreementSettings = AgreementSettings()
    """How methods and models are compared."""
    summary: SummarySettings = SummarySettings()
    """How runs are combined."""

    def for_run(self) -> RunSettings:
        """Return the settings that decide a run's weights."""
        return RunSettings(**{name: getattr(self, name) for name in RunSettings.model_fields})


PRESETS: dict[str, dict[str, Any]] = packaged(__file__)
"""Settings that each preset changes; names and values are checked when a preset is made."""


@cache
def common_preset(name: str) -> CommonSettings:
    """Return the settings of the preset `paper`, `reference` or `demo` that belong to no method."""
    changes = lookup("preset", name, PRESETS)
    common = {key: changes[key] for key in changes if is_common(key)}
    return CommonSettings().replace({"preset": name, **common})


def is_common(key: str) -> bool:
    """Return whether a setting, by its dotted name, is in a group that belongs to no method."""
    return key.split(".", maxsplit=1)[0] in CommonSettings.model_fields


def settings_of_run(
    name: str, changes: Mapping[str, Any], *, has_noise: bool = False
) -> RunSettings:
    """Return a preset with changes to settings that decide a run's weights; refuse other changes.

    The settings of noise decide nothing if the data say which labels are wrong (`has_noise`).
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
    """Refuse settings that have no effect, as a user who gives one expects an effect.

    Args:
        changes: The given settings, by dotted name.
        used: Names of settings that have an effect, or of whole groups of them.
        work: Name of the work that the settings were given to, for the message.
        instead: The setting to use in place of one without effect.
    """
    for key in changes:
        if not {key, key.split(".")[0]} & {*used}:
            other = (instead or {}).get(key)
            advice = f"set {other}" if other else "leave it out"
            raise SettingsError(f"{key} decides nothing for {work}: {advice}.")


def readable(value: Any) -> str:
    """Return a setting's value as text for people."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
