"""The presets `paper`, `reference` and `demo`: every constant of the method and its source."""

from typing import Any, Literal

from memloc.errors import lookup
from memloc.settings import Settings, ours, paper, published


class ModelSettings(Settings):
    """Which models the study is about."""

    small: tuple[str, ...] = paper(
        (
            "google-bert/bert-base-cased",
            "facebook/opt-125m",
            "EleutherAI/gpt-neo-125m",
            "EleutherAI/pythia-160m-deduped",
        ),
        "§3",
    )
    """The four models of the main study."""
    large: tuple[str, ...] = paper(("facebook/opt-1.3b",), "appendix B")
    """Models of appendix B: swapping and centroids only."""


class NoiseSettings(Settings):
    """How labels are perturbed."""

    rate: float = paper(0.15, "§3", gt=0, lt=1)
    """Share of the training examples of each class that get a wrong label, rounded down."""
    kind: Literal["uniform", "next"] = paper("uniform", "§3")
    """`uniform`: any other class, equally likely; `next`: class c becomes class c + 1."""
    seed: int = published(1, ge=0)
    """Data seed: which examples, which labels, which random splits."""


class SplitSettings(Settings):
    """How data are divided; these are fixed."""

    held_out: Literal["validation, else test"] = published("validation, else test")
    """The split that is halved at random into validation and test."""
    train_percent: Literal[80] = published(80)
    """Per cent for training where nothing is held out (ImplicitHate, Stormfront, own files)."""
    reuters_topics: Literal[8] = published(8)
    """Reuters: ModApte, exactly one topic, that many most frequent ones, duplicates dropped."""


class TextSettings(Settings):
    """How texts become tokens."""

    max_tokens: int = paper(512, "appendix D", ge=2)
    """Longer sequences are cut; batches are padded on the right to their longest."""
    separator: Literal["by model"] = published("by model")
    """Between the parts of a pair: `[SEP]` BERT, `</s>` OPT, `|` GPT-Neo and Pythia."""


class FineTuneSettings(Settings):
    """How θ_M1, θ_M2, θ_O and θ_F are trained."""

    learning_rate: float = paper(1e-5, "appendix D", gt=0)
    """Peak of the schedule."""
    large_learning_rate: float = paper(5e-6, "appendix D", gt=0)
    """The same for the models of appendix B."""
    batch_size: int = paper(8, "appendix D", ge=1)
    """Examples an update."""
    large_batch_size: int = paper(16, "appendix D", ge=1)
    """The same for the models of appendix B (32 where memory allows)."""
    accumulate: int = ours(1, ge=1)
    """Pieces in which a batch is computed; the update is that of the whole batch."""
    epochs: int = paper(50, "§3", ge=1)
    """Passes over the training data."""
    warmup: float = published(0.1, ge=0, lt=1)
    """Share of the updates with a rising rate; it falls linearly to zero after that."""
    weight_decay: float = published(0.01, ge=0)
    """AdamW's, on every trained parameter."""
    clip: float = published(1.0, gt=0)
    """Largest norm of the gradient."""
    clip_over: Literal["trained", "all"] = ours("trained")
    """Whose gradients count in that norm: those of the trained parameters, or the frozen ones' as
    well, which are computed for it and not used otherwise."""
    freeze_embeddings: bool = paper(True, "§3")
    """Whether input embeddings stay as they were pre-trained."""
    frozen_dropout: bool = ours(False)
    """Whether the frozen blocks run with dropout while θ_F is trained."""
    frozen_seed: int | None = ours(None, ge=0)
    """The model seed of θ_F, so that all runs of a task have the same; none given: the run's."""
    length_grouped: bool = ours(False)
    """Whether a batch takes examples of similar length (less padding, another order)."""
    autocast: Literal["none", "bf16"] = ours("none")
    """Lower precision for the forward pass of training."""
    measure_every: int = ours(1, ge=1)
    """Epochs after which accuracies are measured; so is the last. θ_M1 is one of them."""
    seeds: tuple[int, ...] = published((1, 2, 3))
    """Model seeds: order of the data, initial head, dropout."""
    near_ceiling: float = paper(0.993, "appendix D", gt=0, lt=1)
    """θ_M1 is the first epoch whose training score is above this."""
    near_ceiling_score: Literal["accuracy", "macro F1"] = paper("accuracy", "appendix D")
    """The training score of θ_M1."""
    without_near_ceiling: Literal["report", "use last epoch"] = ours("report")
    """What becomes of θ_M1 where no epoch gets there."""
    noisy_at_least: float = ours(0.95, gt=0, le=1)
    """A run whose noisy accuracy ends below this is `not memorised`; a training accuracy of .993
    with 15 % noise leaves at most 4.7 % of the noisy labels out."""


class ControlSettings(Settings):
    """The planted windows of section 3.2."""

    width: int = paper(2, "§3.2", ge=1)
    """Layers that the noisy task may change: the first, the middle and the last so many."""
    auxiliary: str = paper("rte", "§3.2")
    """The task that changes every layer, with its original labels and its own head."""
    auxiliary_learning_rate: float = published(5e-6, gt=0)
    """Its peak rate; it has its own optimiser and schedule."""
    trains_pooler_and_norm: bool = paper(False, "§3.2")
    """Whether the noisy task also trains what follows the blocks (pooler, final norm), besides its
    window and its head."""
    frozen_beside_auxiliary: bool = ours(False)
    """Whether θ_F of a plant is trained beside the auxiliary task, which changes every layer and
    runs with dropout, or on the noisy task alone."""
    auxiliary_examples: int | None = ours(None, ge=2)
    """Training examples of the auxiliary task, drawn at random; none given: all."""
    learning_rate: float | None = ours(None, gt=0)
    """The noisy task's first rate; none given: that of fine-tuning."""
    epochs: int | None = ours(None, ge=1)
    """Passes over the data of both tasks; none given: as many as in fine-tuning."""
    seed: int = paper(1, "§3", ge=0)
    """One model seed."""
    accuracy_above: float = paper(0.99, "appendix D", gt=0, lt=1)
    """Training accuracy below which training is repeated with a higher rate."""
    rate_factor: float = ours(2.0, gt=1)
    """How much higher."""
    tries: int = ours(4, ge=1)
    """Trainings at most; a plant that none of them memorised is not used."""
    validation_tasks: tuple[str, ...] = paper(("mrpc", "trec"), "§3.2")
    """Tasks that choose the gradients' post-processing; the others test the methods."""
    ks: tuple[int, ...] = paper((1, 2), "§3.2")
    """accuracy@k: share of the k best layers that are planted ones."""


class SwappingSettings(Settings):
    """Layers of θ_O put into θ_M2."""

    normalise: bool = paper(True, "§3.1")
    """Whether the error of the full window counts as 1.0."""
    clean_examples: int | None = ours(None, ge=1)
    """Clean examples whose error is measured, drawn at random; none given: all."""


class RetrainingSettings(Settings):
    """Layers of θ_P put into θ_M2 and trained on clean examples."""

    learning_rate: float = published(3e-5, gt=0)
    """Peak of the schedule, which is that of fine-tuning."""
    batch_size: int = published(8, ge=1)
    """Examples an update."""
    epochs: int = paper(5, "§3.1", ge=1)
    """Passes over the clean examples."""
    seed: int = published(42, ge=0)
    """Order of the data."""
    frozen_dropout: bool = ours(False)
    """Whether the frozen blocks run with dropout."""
    trains_pooler: bool = ours(True)
    """Whether the pooler learns with the window, as head and final norm do."""
    normalise: bool = paper(True, "§3.1")
    """Whether the error of the full window counts as 1.0."""


class GradientSettings(Settings):
    """Forgetting gradients."""

    objective: Literal["loss", "logit"] = paper("loss", "§3.1")
    """Gradient of the negative loss, or of the assigned label's raw logit."""
    norm: Literal["L1", "L2"] = paper("L1", "appendix E")
    """Over all parameters of a block."""
    subtract_clean: bool = paper(True, "appendix E")
    """Whether the mean gradient of as many clean examples is subtracted first."""
    divide_frozen: bool = paper(True, "appendix E")
    """Whether the norm is divided by that of θ_F."""
    interval_groups: int = ours(8, ge=0)
    """Groups of examples that are left out in turn for the intervals; 0: no intervals."""


class ProbeSettings(Settings):
    """Probing classifiers on the vectors of each layer."""

    hidden_layers: int = paper(1, "§3.1", ge=0, le=2)
    """Hidden layers of the probe."""
    hidden: int = published(128, ge=1)
    """Width of each, followed by GELU."""
    dropout: float = published(0.1, ge=0, lt=1)
    """On the input."""
    learning_rate: float = paper(2e-4, "§3.1", gt=0)
    """AdamW's."""
    weight_decay: float = published(1e-5, ge=0)
    """AdamW's."""
    batch_size: int = published(32, ge=1)
    """Examples an update."""
    epochs: int = paper(100, "§3.1", ge=1)
    """At most."""
    first_epoch: int = published(25, ge=0)
    """The best validation epoch is sought after this one."""
    split: tuple[float, float, float] = published((0.7, 0.1, 0.2))
    """Training, validation and test shares of the training examples."""
    class_weights: tuple[float, float] = published((0.33, 0.67))
    """Of clean and noisy examples in the noise probe's loss."""
    seeds: tuple[int, ...] = paper((0, 1, 2, 3, 4), "§3.1")
    """One probe each, a layer."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§3.1")
    """The decoders' vector of the last layer: before or after the final norm."""


class CentroidSettings(Settings):
    """Positions between class centroids, section 5."""

    crossing_at: float = paper(0.5, "§5", gt=0, lt=1)
    """The noisy mean has crossed where it is below this (assigned class at 0, original at 1)."""
    events: Literal["first", "last"] = paper("first", "§5")
    """First crossing and first separation, or the last crossing and the start of the last
    uninterrupted separation."""
    central: float = published(0.75, gt=0, lt=1)
    """Classes are separated where the central shares of their positions do not overlap."""


class LabelProbeSettings(Settings):
    """Label probes, section 5."""

    margin: float = paper(0.10, "§5", gt=0, lt=1)
    """F1 of assigned labels exceeds F1 of original ones by this: memorisation » generalisation."""
    share: float = paper(0.9, "§5", gt=0, lt=1)
    """Share of the best F1 above chance, on clean examples, that makes the 90 % event."""


class GeneralisationSettings(Settings):
    """Models trained on random halves."""

    models: int = paper(30, "§5, footnote 8", ge=2)
    """How many."""
    share: float = paper(0.5, "§5, footnote 8", gt=0, lt=1)
    """Of the training examples that each one sees."""
    epochs: int = published(10, ge=1)
    """Passes over that half."""
    learning_rate: float = published(3e-5, gt=0)
    """Peak of the schedule."""


class AgreementSettings(Settings):
    """Correlations between methods and between models."""

    between_methods: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient between methods."""
    between_models: Literal["spearman", "pearson"] = paper("spearman", "§4, Figure 8")
    """Coefficient between models."""
    significance: float = paper(0.05, "Table 2", gt=0, lt=1)
    """Coefficients with a larger p are marked."""


class SummarySettings(Settings):
    """How results of several seeds, layers and models become one number."""

    mcog: Literal["mean over seeds", "of mean weights"] = paper("mean over seeds", "§4")
    """The M-CoG of each seed and then their mean, or that of layer weights averaged over seeds."""
    single_layer: Literal["mean of largest", "largest mean"] = paper("mean of largest", "Figure 4")
    """The largest error of one layer: of each seed, plain, and then their mean; or the largest of
    the layers' means over seeds, divided by the error of all layers where a method's are."""
    binarised_events: Literal["tasks and models", "task means"] = paper(
        "tasks and models", "appendix C"
    )
    """What events of multi-class and binarised tasks are compared over."""


class Protocol(Settings):
    """One versioned object that holds every constant; a preset is one of three of them."""

    preset: str = "paper"
    """The preset that the values started from."""
    version: int = 1
    """Counted up when a preset's values change."""
    models: ModelSettings = ModelSettings()
    noise: NoiseSettings = NoiseSettings()
    splits: SplitSettings = SplitSettings()
    text: TextSettings = TextSettings()
    finetune: FineTuneSettings = FineTuneSettings()
    control: ControlSettings = ControlSettings()
    swapping: SwappingSettings = SwappingSettings()
    retraining: RetrainingSettings = RetrainingSettings()
    gradients: GradientSettings = GradientSettings()
    probes: ProbeSettings = ProbeSettings()
    centroids: CentroidSettings = CentroidSettings()
    label_probes: LabelProbeSettings = LabelProbeSettings()
    generalisation: GeneralisationSettings = GeneralisationSettings()
    agreement: AgreementSettings = AgreementSettings()
    summary: SummarySettings = SummarySettings()

    def changes(self) -> dict[str, Any]:
        """Every setting that differs from the preset, under its dotted name."""
        base = preset(self.preset).flat()
        return {name: value for name, value in self.flat().items() if value != base[name]}


REFERENCE: dict[str, Any] = {
    "preset": "reference",
    "version": 2,
    "gradients.objective": "logit",
    "finetune.near_ceiling_score": "macro F1",
    "finetune.without_near_ceiling": "use last epoch",
    "probes.hidden_layers": 2,
    "swapping.normalise": False,
    "centroids.events": "last",
    "agreement.between_methods": "pearson",
    "probes.last_layer": "final norm",
    "retraining.frozen_dropout": True,
    "finetune.clip_over": "all",
    "finetune.frozen_dropout": True,
    "finetune.frozen_seed": 1,
    "control.trains_pooler_and_norm": True,
    "control.frozen_beside_auxiliary": True,
    "retraining.trains_pooler": False,
    "summary.mcog": "of mean weights",
    "summary.single_layer": "largest mean",
    "summary.binarised_events": "task means",
}
"""Where the published code differs from the text."""

DEMO: dict[str, Any] = {
    "preset": "demo",
    "models.small": ("tiny-bert", "tiny-opt", "tiny-gpt-neo", "tiny-gpt-neox"),
    "models.large": (),
    "text.max_tokens": 128,
    "finetune.learning_rate": 4e-4,
    "finetune.batch_size": 16,
    "finetune.epochs": 30,
    "control.auxiliary": "tiny-entailment",
    "control.auxiliary_learning_rate": 2e-4,
    "control.auxiliary_examples": 100,
    "control.learning_rate": 7e-4,
    "control.epochs": 60,
    "control.validation_tasks": ("tiny-acceptability",),
    "retraining.learning_rate": 1e-3,
    "retraining.batch_size": 16,
    "generalisation.learning_rate": 4e-4,
}
"""`paper` scaled to the embedded tiny models."""

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper"},
    "reference": REFERENCE,
    "demo": DEMO,
}


def preset(name: str) -> Protocol:
    """The protocol called `paper`, `reference` or `demo`."""
    return Protocol().replace(lookup("preset", name, PRESETS))
