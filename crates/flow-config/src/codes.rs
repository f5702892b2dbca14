//! The stable codes of diagnostics, each with what it means.

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)+) => {
        $($(#[doc = $doc])+ pub const $name: &str = $code;)+

        /// Every code with its explanation, in the order of the source.
        pub const ALL: &[(&str, &str)] = &[$(($code, concat!($($doc, "\n"),+))),+];
    };
}

codes! {
    /// The file cannot be read.
    UNREADABLE = "unreadable";
    /// The text is not TOML.
    SYNTAX = "syntax";
    /// An override is not of the form `a.b=value`, or names an entry of a list that does not exist.
    BAD_OVERRIDE = "bad-override";
    /// `config_version` is not the one that this build reads.
    CONFIG_VERSION = "config-version";
    /// A key that its section does not have.
    UNKNOWN_KEY = "unknown-key";
    /// A key that must be there is not.
    MISSING_KEY = "missing-key";
    /// A value of another type than the key takes.
    WRONG_TYPE = "wrong-type";
    /// A number outside the range of its key, or not a multiple of what it must be a multiple of.
    OUT_OF_RANGE = "out-of-range";
    /// A text that is none of the allowed ones.
    NOT_ALLOWED = "not-allowed";
    /// A text or a list that is too short or too long.
    WRONG_LENGTH = "wrong-length";
    /// A list that has an entry twice.
    REPEATED_ENTRY = "repeated-entry";
    /// The name of the run is also a directory's name, so it can be neither a path nor `.` nor `..`.
    RULE_RUN_NAME = "rule::run-name";
    /// `device.index` is for machines with several GPUs; there is one CPU device.
    RULE_DEVICE_INDEX = "rule::device-index";
    /// The dimensions of a model have to divide each other in certain ways.
    RULE_MODEL_SHAPE = "rule::model-shape";
    /// The table of the architecture that is not in use has values.
    RULE_OTHER_ARCHITECTURE = "rule::other-architecture";
    /// Images of the data set are not of the size, or have not as many channels, as the model's.
    RULE_IMAGE_SHAPE = "rule::image-shape";
    /// The model cannot take the data set's prompts.
    RULE_CONDITIONING = "rule::conditioning";
    /// A reward that cannot score the data set's images.
    RULE_REWARD_DATA = "rule::reward-data";
    /// Two rewards of one list have the same name, so that their metrics would be mixed.
    RULE_REWARD_NAME = "rule::reward-name";
    /// Training needs a reward.
    RULE_NO_REWARD = "rule::no-reward";
    /// Training with LoRA or from pretrained weights needs `model.weights`.
    RULE_NO_WEIGHTS = "rule::no-weights";
    /// A window names steps that the path does not have, or more of them than there are.
    RULE_WINDOW = "rule::window";
    /// A list of noise levels needs one value per step, and some dynamics bound them.
    RULE_NOISE_LEVEL = "rule::noise-level";
    /// A coupled algorithm needs log-probabilities, which deterministic steps do not have.
    RULE_NO_LOG_PROBABILITY = "rule::no-log-probability";
    /// The numbers of tokens of a dynamic shift must rise.
    RULE_SHIFT = "rule::shift";
    /// `prompts_per_step * group_size` must be a multiple of `micro_batch`, so that every call of the model has the
    /// same shape: log-probabilities must not depend on it.
    RULE_BATCH_GEOMETRY = "rule::batch-geometry";
    /// A group of one image has an advantage of 0, whatever its reward is.
    RULE_GROUP_SIZE = "rule::group-size";
    /// The number of micro-batches must be a multiple of `optimizer.gradient_accumulation`.
    RULE_ACCUMULATION = "rule::accumulation";
    /// The clip range must contain 0.
    RULE_CLIP_RANGE = "rule::clip-range";
    /// The pull towards a reference needs one that can be had.
    RULE_REFERENCE = "rule::reference";
    /// A KL term without a factor, or a factor without a KL term.
    RULE_KL = "rule::kl";
    /// The part of the path on which the loss is taken is empty, or has fewer times than are asked for.
    RULE_TRAIN_TIMESTEPS = "rule::train-timesteps";
    /// GDPO normalises over the batch by definition.
    RULE_AGGREGATION = "rule::aggregation";
    /// The average of the weights is asked for but not kept.
    RULE_EMA = "rule::ema";
    /// A warm-up that is longer than what it warms up.
    RULE_WARMUP = "rule::warmup";
    /// Values that nothing reads, given the others.
    RULE_UNUSED = "rule::unused";
}

/// The explanation of a code.
pub fn explain_code(code: &str) -> Option<&'static str> {
    ALL.iter()
        .find(|(known, _)| *known == code)
        .map(|(_, text)| text.trim())
}
