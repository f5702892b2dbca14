//! What a rule of the table is: a key of Flow-Factory, the key or keys of flow-train it becomes, and how.

use crate::note::Rank;

/// One row of the table that drives the conversion.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Dotted path in the YAML.
    pub from: &'static str,
    /// Dotted path or paths in the TOML, separated by `, `. For a key without a counterpart the place of its comment, if it has one.
    pub to: &'static str,
    /// How the value is converted.
    pub conversion: Conversion,
    /// Our `algorithm.kind`s that have the target; empty for all.
    pub kinds: &'static [&'static str],
    /// What Flow-Factory takes where the key is left out, as YAML. Written to the TOML where it differs from
    /// flow-train's default.
    pub default: Option<&'static str>,
    /// What becomes of the key, or why nothing does.
    pub doc: &'static str,
    /// Whether what is trained may differ where the key has no counterpart; not so for what spreads work, caches or logs.
    pub matters: bool,
}

/// How a value is converted.
#[derive(Clone, Copy, Debug)]
pub enum Conversion {
    /// Any number, as it is.
    Number,
    /// A whole number, as it is.
    Integer,
    /// A whole number, as it is; null and a key left out, which mean "for ever", have no counterpart.
    Limit,
    /// true or false, as it is.
    Switch,
    /// A text, as it is.
    Text,
    /// A path, as it is; `~`, which Flow-Factory expands and flow-train does not, has no counterpart.
    Path,
    /// Two numbers, as they are; one number `c` means `[-c, c]`.
    Range,
    /// `[-c, c]` or `c` to `c`.
    Symmetric,
    /// Two numbers `[lo, hi]`; one number `f` means `[0, f]`.
    Fraction,
    /// Guidance; Flow-Factory has none at 1 and below.
    Guidance,
    /// One of these texts, to ours. Case does not matter.
    Choice(&'static [(&'static str, &'static str)]),
    /// The values of these texts mean what flow-train does anyway; any other is kept as a comment.
    Same(&'static [&'static str]),
    /// Converted together with other keys.
    Joint(Join),
    /// Nothing in flow-train; kept as a comment.
    Nothing,
}

/// Groups of keys that are converted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The diffusers folder, size and sigma shift.
    Model,
    /// Guidance of rollouts, which FLUX.1-dev is told.
    Guidance,
    /// What adapters are put on.
    LoraTargets,
    /// Prompts and data.
    Prompts,
    /// How rewards become advantages.
    Advantage,
    /// The algorithm.
    Algorithm,
    /// How steps are taken.
    Dynamics,
    /// Which steps are random.
    Window,
    /// Batches, devices and accumulation.
    Geometry,
    /// Settings of AdamW, which stand in `optimizers` or in `train`.
    Optimizer,
    /// The KL term.
    Kl,
    /// The policy that samples, in NFT.
    OldPolicy,
    /// The centre and the slower copies of CRD.
    Crd,
    /// Teachers, and the part of the path on which a loss is taken.
    Distillation,
    /// The moving average.
    Ema,
    /// Size, steps and guidance of evaluation, whose defaults depend on those of training.
    Evaluation,
    /// The seed of the run.
    Seed,
    /// The logging backend.
    Logging,
    /// Rewards.
    Rewards,
    /// Accelerators.
    Acceleration,
}

impl Rule {
    /// A rule for every algorithm, without a default.
    pub(crate) const fn new(
        from: &'static str,
        to: &'static str,
        conversion: Conversion,
        doc: &'static str,
    ) -> Self {
        Self {
            from,
            to,
            conversion,
            kinds: &[],
            default: None,
            doc,
            matters: true,
        }
    }

    /// A key without a counterpart.
    pub(crate) const fn nothing(from: &'static str, doc: &'static str) -> Self {
        Self::new(from, "", Conversion::Nothing, doc)
    }

    /// A key without a counterpart that changes nothing about what is trained.
    pub(crate) const fn detail(from: &'static str, doc: &'static str) -> Self {
        Self::nothing(from, doc).no_matter()
    }

    /// Without a counterpart it changes nothing about what is trained.
    pub(crate) const fn no_matter(mut self) -> Self {
        self.matters = false;
        self
    }

    /// What the key means where it has no counterpart.
    pub(crate) fn rank(&self) -> Rank {
        if self.matters { Rank::Result } else { Rank::Detail }
    }

    /// With Flow-Factory's default.
    pub(crate) const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// For some algorithms only.
    pub(crate) const fn kinds(mut self, kinds: &'static [&'static str]) -> Self {
        self.kinds = kinds;
        self
    }
}
