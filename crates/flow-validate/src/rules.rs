//! The rules, as data.
//!
//! They are those of Flow-Factory's acceleration validator (PR #196, `validator.py`, V1 to V7; its V8 and V9 say
//! which cases stay silent, so they are rows that are not there), and one of our own, for accelerators that are lossy
//! outside the SDE window only. The wording is our own.

use crate::Severity;
use flow_accel::{AcceleratorStage, Paradigm, Safety, Slot, StepScope};

/// A rule: where all its conditions hold, it finds something.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Stable code.
    pub code: &'static str,
    /// How much a finding matters.
    pub severity: Severity,
    /// The slot it is about; `None` is a slot that does not exist.
    pub slot: Option<Slot>,
    /// The accelerator's stage; `None` if it does not matter.
    pub stage: Option<AcceleratorStage>,
    /// The accelerator's promises that it is about; `None` if they do not matter.
    pub safety: Option<&'static [Safety]>,
    /// The trainer's paradigms, `None` among them for a trainer that declares none; the whole is `None` if it does
    /// not matter.
    pub paradigms: Option<&'static [Option<Paradigm>]>,
    /// What is found, with `{name}`, `{slot}`, `{stage}`, `{trainer}` and `{paradigm}` to fill in.
    pub message: &'static str,
    /// How to mend it, with the same.
    pub help: &'static str,
    /// Why the rule is there.
    pub why: &'static str,
}

/// Every promise that is not lossless.
const LOSSY: &[Safety] = &[
    Safety::Lossy(StepScope::AllSteps),
    Safety::Lossy(StepScope::OutsideSdeWindow),
];

/// All rules. A combination that no rule is about is in order.
pub const RULES: &[Rule] = &[
    Rule {
        code: "acceleration::unknown-slot",
        severity: Severity::Error,
        slot: None,
        stage: None,
        safety: None,
        paradigms: None,
        message: "there is no slot `{slot}` for the accelerator `{name}`.",
        help: "The slots are `acceleration.shared` (rollout and training) and `acceleration.rollout`.",
        why: "A slot says in which stages an accelerator is in force; there are two.",
    },
    Rule {
        code: "acceleration::not-for-shared",
        severity: Severity::Error,
        slot: Some(Slot::Shared),
        stage: Some(AcceleratorStage::Rollout),
        safety: None,
        paradigms: None,
        message: "the accelerator `{name}` works in rollouts only, but `acceleration.shared` is in force in training too.",
        help: "Move the entry to `acceleration.rollout`, or choose an accelerator of stage `both`.",
        why: "An accelerator of stage `rollout` has no backward, or keeps state between the steps of a trajectory. \
              In training it would compute wrong gradients or none.",
    },
    Rule {
        code: "acceleration::ratio-not-exact",
        severity: Severity::Warning,
        slot: Some(Slot::Shared),
        stage: Some(AcceleratorStage::Both),
        safety: Some(LOSSY),
        paradigms: Some(&[Some(Paradigm::Coupled)]),
        message: "the accelerator `{name}` is in force in rollout and training, but its results are not the same bits \
                  in both, so the on-policy ratio of the coupled trainer `{trainer}` is about 1 and not exactly 1.",
        help: "Use a lossless accelerator if the ratio must be exact; otherwise keep `algorithm.clip_range` well above \
               the difference that the on-policy audit shows.",
        why: "A coupled trainer divides the probability of a step in training by that in the rollout. Before the first \
              update both come from the same weights, and any difference is an error of computation.",
    },
    Rule {
        code: "acceleration::not-for-rollout",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Both),
        safety: None,
        paradigms: None,
        message: "the accelerator `{name}` is made for rollout and training together, but `acceleration.rollout` is in \
                  force in rollouts only.",
        help: "Move the entry to `acceleration.shared`.",
        why: "Were it in force in one stage only, rollout and training would compute with different kernels, and even \
              a lossless accelerator would not give the same bits in both.",
    },
    Rule {
        code: "acceleration::no-paradigm",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(LOSSY),
        paradigms: Some(&[None]),
        message: "the trainer `{trainer}` declares no paradigm, so nobody can say whether the lossy rollout accelerator \
                  `{name}` is safe with it.",
        help: "Declare the trainer `coupled`, `decoupled` or `distillation`, or remove the entry.",
        why: "Whether a changed rollout corrupts the gradients depends on what the loss reads of it.",
    },
    Rule {
        code: "acceleration::lossy-rollout-of-coupled",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(&[Safety::Lossy(StepScope::AllSteps)]),
        paradigms: Some(&[Some(Paradigm::Coupled)]),
        message: "the lossy rollout accelerator `{name}` is unsafe with the {paradigm} trainer `{trainer}`: the loss \
                  reads the rollout's log-probabilities, which would belong to another policy than the trained one.",
        help: "Set `scope = \"outside_sde_window\"` in its `params` if it has that, use an accelerator of stage `both` \
               in `acceleration.shared`, or a decoupled algorithm such as `algorithm.kind = \"nft\"`.",
        why: "The importance ratio would be biased from the first update on, and the gradients wrong, without any sign \
              of it in the reward for a while.",
    },
    Rule {
        code: "acceleration::lossy-outside-window",
        severity: Severity::Warning,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(&[Safety::Lossy(StepScope::OutsideSdeWindow)]),
        paradigms: Some(&[Some(Paradigm::Coupled)]),
        message: "the rollout accelerator `{name}` is lossy outside the SDE window: the ratio of the coupled trainer \
                  `{trainer}` stays exactly 1, but the latents that enter and leave the window are not those of the \
                  exact sampler.",
        help: "Compare the mean and the deviation of the reward with those of a run without it; the on-policy audit must \
               still read exactly 0.",
        why: "A deterministic step has no log-probability, so no term of the loss belongs to it. What is kept between \
              steps is dropped where a stochastic step comes, so each of those is computed exactly as in training.",
    },
    Rule {
        code: "acceleration::lossy-rollout",
        severity: Severity::Warning,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(LOSSY),
        paradigms: Some(&[Some(Paradigm::Decoupled), Some(Paradigm::Distillation)]),
        message: "the lossy rollout accelerator `{name}` changes what the {paradigm} trainer `{trainer}` samples and \
                  learns from.",
        help: "Compare the mean and the deviation of the reward with those of a run without it.",
        why: "The loss stays correct for the samples it gets, but they come from a slightly different distribution.",
    },
];

/// Codes of findings that come from a registry rather than from a rule, with their rationale.
pub(crate) const OF_REGISTRY: [(&str, &str); 8] = [
    (
        REMOVED,
        "A name that people know from elsewhere, or from an earlier version, gets an answer and not a guess.",
    ),
    (
        DUPLICATE,
        "The second entry of a name would wrap or replace the first, and nobody could say which parameters are in force.",
    ),
    (
        CONFLICT,
        "Accelerators declare which others they cannot work beside; together they would compute something else.",
    ),
    (
        ORDER,
        "Entries are applied in the order of the list. One that records or replays what others do must come after them.",
    ),
    (
        UNKNOWN,
        "A program knows the accelerators that it registered and no others; a misspelt one must not be left out.",
    ),
    (
        BAD_PARAMETERS,
        "Each accelerator has parameters of its own type; an unknown one would be ignored in silence.",
    ),
    (
        REFUSED,
        "An accelerator that would do nothing, or not what it was asked for, says so before the run.",
    ),
    (
        UNUSABLE,
        "An entry that cannot be put in force must not be left out in silence.",
    ),
];
pub(crate) const UNKNOWN: &str = "acceleration::unknown-accelerator";
pub(crate) const REMOVED: &str = "acceleration::removed";
pub(crate) const DUPLICATE: &str = "acceleration::duplicate";
pub(crate) const CONFLICT: &str = "acceleration::conflict";
pub(crate) const ORDER: &str = "acceleration::order";
pub(crate) const BAD_PARAMETERS: &str = "acceleration::bad-parameters";
pub(crate) const REFUSED: &str = "acceleration::refused";
pub(crate) const UNUSABLE: &str = "acceleration::unusable";

/// Why findings with `code` exist: the rationale, or `None` if there is no such code.
pub fn explain(code: &str) -> Option<&'static str> {
    let rules = RULES.iter().map(|rule| (rule.code, rule.why));
    rules
        .chain(OF_REGISTRY)
        .find(|(known, _)| *known == code)
        .map(|(_, why)| why)
}

impl Rule {
    /// Whether the rule is about an accelerator in `slot` (`None` if the slot does not exist) with these properties,
    /// under a trainer of `paradigm`.
    pub fn applies(
        &self,
        slot: Option<Slot>,
        stage: AcceleratorStage,
        safety: Safety,
        paradigm: Option<Paradigm>,
    ) -> bool {
        self.slot == slot
            && self.stage.is_none_or(|it| it == stage)
            && self.safety.is_none_or(|them| them.contains(&safety))
            && self.paradigms.is_none_or(|them| them.contains(&paradigm))
    }
}
