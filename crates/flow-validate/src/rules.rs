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
    /// Stable code; [`explain`](crate::explain) has its rationale.
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
    /// What is found, without a full stop, with `{name}`, `{slot}`, `{stage}`, `{trainer}` and `{paradigm}` to fill in.
    pub message: &'static str,
    /// How to mend it, with the same.
    pub help: &'static str,
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
        message: "there is no slot `{slot}` for the accelerator `{name}`",
        help: "the slots are `acceleration.shared` (rollout and training) and `acceleration.rollout`",
    },
    Rule {
        code: "acceleration::not-for-shared",
        severity: Severity::Error,
        slot: Some(Slot::Shared),
        stage: Some(AcceleratorStage::Rollout),
        safety: None,
        paradigms: None,
        message: Slot::Shared.misplaced().0,
        help: Slot::Shared.misplaced().1,
    },
    Rule {
        code: "acceleration::ratio-not-exact",
        severity: Severity::Warning,
        slot: Some(Slot::Shared),
        stage: Some(AcceleratorStage::Both),
        safety: Some(LOSSY),
        paradigms: Some(&[Some(Paradigm::Coupled)]),
        message: "the accelerator `{name}` is in force in rollout and training, but its results are not the same bits \
                  in both, so the on-policy ratio of the coupled trainer `{trainer}` is about 1 and not exactly 1",
        help: "use a lossless accelerator if the ratio must be exact; otherwise keep `algorithm.clip_range` well above \
               the difference that the on-policy audit shows",
    },
    Rule {
        code: "acceleration::not-for-rollout",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Both),
        safety: None,
        paradigms: None,
        message: Slot::Rollout.misplaced().0,
        help: Slot::Rollout.misplaced().1,
    },
    Rule {
        code: "acceleration::no-paradigm",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(LOSSY),
        paradigms: Some(&[None]),
        message: "the trainer `{trainer}` declares no paradigm, so nobody can say whether the lossy rollout accelerator \
                  `{name}` is safe with it",
        help: "declare the trainer `coupled`, `decoupled` or `distillation`, or remove the entry",
    },
    Rule {
        code: "acceleration::lossy-rollout-of-coupled",
        severity: Severity::Error,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(&[Safety::Lossy(StepScope::AllSteps)]),
        paradigms: Some(&[Some(Paradigm::Coupled)]),
        message: "the lossy rollout accelerator `{name}` is unsafe with the {paradigm} trainer `{trainer}`: the loss \
                  reads the rollout's log-probabilities, which would belong to another policy than the trained one",
        help: "set `scope = \"outside_sde_window\"` in its `params` if it has that, use an accelerator of stage `both` \
               in `acceleration.shared`, or a decoupled algorithm such as `algorithm.kind = \"nft\"`",
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
                  exact sampler",
        help: "compare the mean and the deviation of the reward with those of a run without it; the on-policy audit must \
               still read exactly 0",
    },
    Rule {
        code: "acceleration::lossy-rollout",
        severity: Severity::Warning,
        slot: Some(Slot::Rollout),
        stage: Some(AcceleratorStage::Rollout),
        safety: Some(LOSSY),
        paradigms: Some(&[Some(Paradigm::Decoupled), Some(Paradigm::Distillation)]),
        message: "the lossy rollout accelerator `{name}` changes what the {paradigm} trainer `{trainer}` samples and \
                  learns from",
        help: "compare the mean and the deviation of the reward with those of a run without it",
    },
];

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
