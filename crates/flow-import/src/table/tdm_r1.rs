//! Rules of `train` for `tdm-r1`, beyond those that it shares with `tdm`. From `hparams` of Flow-Factory's main branch at commit b30dc00.

use crate::rule::Conversion::{Number, Switch};
use crate::rule::Rule;

const TDM_R1: &[&str] = &["tdm-r1"];

pub(super) const WITH_SURROGATE: &[Rule] = &[
    Rule::new(
        "train.tdm_weight",
        "algorithm.tdm_weight",
        Number,
        "share of the teacher's guidance among the two rewards that TDM-R1's student follows",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.cfg_reward_scale",
        "algorithm.cfg_reward_scale",
        Number,
        "how far the teacher's guidance pulls TDM-R1's student",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.advantage_clip_range",
        "algorithm.advantage_clip",
        Number,
        "range of advantages of TDM-R1, to both sides",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_preference_beta",
        "algorithm.surrogate.preference_beta",
        Number,
        "strength of the preference that the surrogate learns",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_reference_beta",
        "algorithm.surrogate.reference_beta",
        Number,
        "how strongly the teacher pulls the surrogate back",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_reference_threshold",
        "algorithm.surrogate.reference_threshold",
        Number,
        "how far ahead of the teacher an image teaches the surrogate nothing more",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_clip_range",
        "algorithm.surrogate.clip_range",
        Number,
        "how far from its slower copy an image teaches the surrogate nothing more",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_slow_decay_min",
        "algorithm.surrogate.slow_decay_min",
        Number,
        "share of the slower copy that survives at first",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.surrogate_slow_decay_max",
        "algorithm.surrogate.slow_decay_max",
        Number,
        "most of the slower copy that survives",
    )
    .kinds(TDM_R1),
    Rule::new(
        "train.use_time_weighting",
        "algorithm.surrogate.time_weighting",
        Switch,
        "whether later steps count more for the surrogate",
    )
    .kinds(TDM_R1),
];
