//! Every combination of slot, stage, safety and paradigm, and whole configs.

use flow_accel::{
    Accelerator, AcceleratorRegistry, AcceleratorStage, Paradigm, Refusal, Safety, StepScope, Target,
};
use flow_attention::CpuAttention;
use flow_config::{AccelerationConfig, AcceleratorEntry, Config};
use flow_core::{Backends, ModelSpec};
use flow_kernels::CpuKernels;
use flow_validate::{
    Entry, RULES, Severity, TrainerKind, check, errors, explain, resolve, resolve_exploration, several,
    sharded_pretraining, sharded_weights,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;

use AcceleratorStage::{Both, Rollout};
use Safety::{Lossless, Lossy};
use StepScope::{AllSteps, OutsideSdeWindow};

const PARADIGMS: [Option<Paradigm>; 4] = [
    Some(Paradigm::Coupled),
    Some(Paradigm::Decoupled),
    Some(Paradigm::Distillation),
    None,
];

fn entry(slot: &str, position: usize, stage: AcceleratorStage, safety: Safety) -> Entry {
    Entry {
        slot: slot.into(),
        position,
        name: "fast-thing".into(),
        stage,
        safety,
    }
}

/// Every stage with every promise.
fn promises() -> impl Iterator<Item = (AcceleratorStage, Safety)> {
    [Both, Rollout]
        .into_iter()
        .flat_map(|stage| [Lossless, Lossy(AllSteps), Lossy(OutsideSdeWindow)].map(|safety| (stage, safety)))
}

fn trainer(paradigm: Option<Paradigm>) -> TrainerKind {
    TrainerKind {
        name: "grpo".into(),
        paradigm,
    }
}

/// The specification, written as nested cases rather than as rows: `(severity, code)` or silence.
fn specified(
    slot: &str,
    stage: AcceleratorStage,
    safety: Safety,
    paradigm: Option<Paradigm>,
) -> Option<(Severity, &'static str)> {
    match (slot, stage) {
        ("shared", Rollout) => Some((Severity::Error, "acceleration::not-for-shared")),
        ("shared", Both) if safety != Lossless && paradigm == Some(Paradigm::Coupled) => {
            Some((Severity::Warning, "acceleration::ratio-not-exact"))
        }
        ("shared", Both) => None,
        ("rollout", Both) => Some((Severity::Error, "acceleration::not-for-rollout")),
        ("rollout", Rollout) if safety == Lossless => None,
        ("rollout", Rollout) => Some(match paradigm {
            None => (Severity::Error, "acceleration::no-paradigm"),
            Some(Paradigm::Coupled) if safety == Lossy(OutsideSdeWindow) => {
                (Severity::Warning, "acceleration::lossy-outside-window")
            }
            Some(Paradigm::Coupled) => (Severity::Error, "acceleration::lossy-rollout-of-coupled"),
            Some(Paradigm::Decoupled | Paradigm::Distillation) => {
                (Severity::Warning, "acceleration::lossy-rollout")
            }
        }),
        _ => Some((Severity::Error, "acceleration::unknown-slot")),
    }
}

#[test]
fn every_combination_gets_the_specified_finding_or_none() {
    let mut fired = BTreeSet::new();
    for slot in ["shared", "rollout", "evaluation"] {
        for (stage, safety) in promises() {
            for paradigm in PARADIGMS {
                let case = format!("{slot}, {stage}, {safety}, {paradigm:?}");
                let found = check(&[entry(slot, 2, stage, safety)], &trainer(paradigm));
                let found: Vec<_> = found
                    .iter()
                    .map(|finding| (finding.severity, finding.code))
                    .collect();
                let expected: Vec<_> = specified(slot, stage, safety, paradigm).into_iter().collect();
                assert_eq!(found, expected, "{case}");
                fired.extend(found.into_iter().map(|(_, code)| code));
            }
        }
    }
    let codes: BTreeSet<&str> = RULES.iter().map(|rule| rule.code).collect();
    assert_eq!(codes.len(), RULES.len(), "codes are unique");
    assert_eq!(fired, codes, "every rule is reached");
}

#[test]
fn a_message_names_accelerator_trainer_and_place_and_leaves_no_blank() {
    for slot in ["shared", "rollout", "evaluation"] {
        for (stage, safety) in promises() {
            for paradigm in PARADIGMS {
                for finding in check(&[entry(slot, 2, stage, safety)], &trainer(paradigm)) {
                    assert_eq!(finding.path, format!("acceleration.{slot}.2.name"));
                    assert!(finding.message.contains("`fast-thing`"), "{finding}");
                    assert!(
                        finding.help.is_some() && !finding.to_string().contains(['{', '}']),
                        "{finding}"
                    );
                    assert!(explain(finding.code).is_some());
                }
            }
        }
    }
    let found = check(
        &[entry("rollout", 0, Rollout, Lossy(AllSteps))],
        &trainer(Some(Paradigm::Coupled)),
    );
    assert!(
        found[0].message.contains("the coupled trainer `grpo`"),
        "{}",
        found[0]
    );
    assert!(explain("acceleration::no-such-rule").is_none());
}

#[test]
fn a_name_with_braces_is_printed_as_it_is() {
    let odd = Entry {
        name: "{trainer}".into(),
        ..entry("evaluation", 0, Both, Lossless)
    };
    let found = check(&[odd], &trainer(None));
    assert!(found[0].message.contains("`{trainer}`"), "{}", found[0]);
}

#[test]
fn all_findings_come_at_once_in_the_order_of_the_entries() {
    let entries = [
        entry("shared", 0, Both, Lossy(AllSteps)),
        entry("shared", 1, Rollout, Lossless),
        entry("shared", 2, Both, Lossless),
        entry("rollout", 0, Rollout, Lossy(AllSteps)),
        entry("rollout", 1, Both, Lossless),
    ];
    let found = check(&entries, &trainer(Some(Paradigm::Coupled)));
    let paths: Vec<&str> = found.iter().map(|finding| &*finding.path).collect();
    assert_eq!(
        paths,
        [
            "acceleration.shared.0.name",
            "acceleration.shared.1.name",
            "acceleration.rollout.0.name",
            "acceleration.rollout.1.name"
        ]
    );
    assert!(errors(&found));
    assert!(!errors(&found[..1]), "a warning forbids nothing");
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CacheParams {
    threshold: f64,
}

#[derive(Debug)]
struct Cache {
    threshold: f64,
}

/// Lossless at threshold 0; refuses a plan above 1.
impl Accelerator for Cache {
    fn name(&self) -> &str {
        "cache"
    }
    fn stage(&self) -> AcceleratorStage {
        Rollout
    }
    fn safety(&self, _: &Backends) -> Safety {
        if self.threshold == 0.0 {
            Lossless
        } else {
            Lossy(AllSteps)
        }
    }
    fn apply(&self, plan: Backends, _: &Target<'_>) -> Result<Backends, Refusal> {
        if self.threshold > 1.0 {
            return Err(Refusal::new(
                "a threshold above 1 reuses everything",
                "Choose `threshold` below 1",
            ));
        }
        Ok(plan)
    }
}

fn registry() -> AcceleratorRegistry {
    let mut registry = AcceleratorRegistry::default();
    let build = |params: CacheParams| {
        Ok(Cache {
            threshold: params.threshold,
        })
    };
    registry
        .register("cache", AcceleratorStage::Rollout, "Reuses.", build)
        .unwrap();
    registry
        .remove("old_cache", "it is called `cache`", "Write `cache`")
        .unwrap();
    registry
}

fn listed(name: &str, threshold: serde_json::Value) -> AcceleratorEntry {
    AcceleratorEntry {
        name: name.into(),
        params: [("threshold".into(), threshold)].into(),
    }
}

fn codes(config: &AccelerationConfig, paradigm: Paradigm) -> Vec<(String, &'static str)> {
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let model = ModelSpec::default();
    let whole = Config {
        acceleration: config.clone(),
        ..test_catalog::defaults()
    };
    let (found, acceleration) = resolve(&whole, &registry(), &base, &model, &trainer(Some(paradigm)));
    assert_eq!(
        acceleration.is_none(),
        errors(&found),
        "in force unless something forbids it"
    );
    found
        .into_iter()
        .map(|finding| (finding.path, finding.code))
        .collect()
}

#[test]
fn a_config_is_checked_with_the_parameters_it_gives() {
    let config = |threshold: f64| AccelerationConfig {
        rollout: vec![listed("Cache", threshold.into())],
        ..AccelerationConfig::default()
    };
    let at = || "acceleration.rollout.0.name".to_owned();
    assert_eq!(codes(&AccelerationConfig::default(), Paradigm::Coupled), []);
    assert_eq!(codes(&config(0.0), Paradigm::Coupled), []);
    assert_eq!(
        codes(&config(0.1), Paradigm::Coupled),
        [(at(), "acceleration::lossy-rollout-of-coupled")]
    );
    assert_eq!(
        codes(&config(0.1), Paradigm::Decoupled),
        [(at(), "acceleration::lossy-rollout")]
    );
}

#[test]
fn a_removed_name_and_a_second_entry_are_found_where_they_stand() {
    let config = AccelerationConfig {
        rollout: vec![
            listed("old_cache", 0.0.into()),
            listed("cache", 0.0.into()),
            listed("cache", 0.0.into()),
        ],
        ..AccelerationConfig::default()
    };
    assert_eq!(
        codes(&config, Paradigm::Decoupled),
        [
            ("acceleration.rollout.0.name".to_owned(), "acceleration::removed"),
            (
                "acceleration.rollout.2.name".to_owned(),
                "acceleration::duplicate"
            ),
        ]
    );
}

#[test]
fn names_parameters_refusals_and_slots_of_a_config_are_found_together() {
    let config = AccelerationConfig {
        shared: vec![listed("cache", 0.0.into()), listed("cahce", 0.0.into())],
        rollout: vec![listed("cache", "high".into()), listed("cache", 2.0.into())],
        ..AccelerationConfig::default()
    };
    let found = codes(&config, Paradigm::Decoupled);
    let expected = [
        ("acceleration.shared.0.name", "acceleration::not-for-shared"),
        ("acceleration.shared.1.name", "acceleration::unknown-accelerator"),
        ("acceleration.rollout.0.params.threshold", "wrong-type"),
        ("acceleration.rollout.1.name", "acceleration::refused"),
        ("acceleration.rollout.1.name", "acceleration::lossy-rollout"),
    ];
    assert!(found.iter().all(|(_, code)| explain(code).is_some()));
    assert_eq!(found, expected.map(|(path, code)| (path.to_owned(), code)));
}

#[test]
fn lossy_accelerators_explore_for_a_coupled_trainer_and_what_is_wrong_with_them_stands_at_their_own_keys() {
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let explored = |entries: &[(&str, f64)]| {
        let mut whole = test_catalog::defaults();
        whole.exploration.candidates = 2 * whole.sampling.group_size;
        let entries = entries.iter();
        whole.exploration.accelerators = entries
            .map(|(name, threshold)| listed(name, (*threshold).into()))
            .collect();
        let trainer = trainer(Some(Paradigm::Coupled));
        let (_, run) = resolve(&whole, &registry(), &base, &ModelSpec::default(), &trainer);
        let run = run.expect("nothing forbids the run");
        let (found, arrangement) = resolve_exploration(&whole, &registry(), &run);
        assert_eq!(arrangement.is_none(), errors(&found));
        found
    };
    assert!(explored(&[]).is_empty());
    assert!(explored(&[("cache", 0.5)]).is_empty());
    for (entries, path, code) in [
        (
            &[("cahce", 0.5)][..],
            "exploration.accelerators.0.name",
            "acceleration::unknown-accelerator",
        ),
        (
            &[("cache", 2.0)][..],
            "exploration.accelerators.0.name",
            "acceleration::refused",
        ),
        (
            &[("cache", 0.5), ("cache", 0.25)][..],
            "exploration.accelerators.1.name",
            "acceleration::duplicate",
        ),
    ] {
        let found = explored(entries);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.path.as_str(), one.code), (path, code));
        assert!(!one.message.contains("acceleration.rollout"), "{}", one.message);
    }
}

#[test]
fn a_reward_of_whole_groups_needs_whole_groups_of_candidates_on_each_process() {
    let found = |candidates: usize, ranks: usize, group_wise: bool| {
        let mut whole = test_catalog::defaults();
        whole.sampling.prompts_per_step = 2;
        whole.sampling.group_size = 4;
        whole.sampling.micro_batch = 4;
        whole.optimizer.gradient_accumulation = 0;
        whole.exploration.candidates = candidates;
        let found = several(&whole, ranks, group_wise);
        found.into_iter().map(|one| one.path).collect::<Vec<_>>()
    };
    assert!(found(8, 2, true).is_empty());
    assert_eq!(found(6, 2, true), ["exploration.candidates"]);
    assert!(found(6, 2, false).is_empty());
    assert!(found(6, 1, true).is_empty());
}

#[test]
fn weights_are_shared_out_where_every_block_is_computed_again_and_nothing_else_needs_them_whole() {
    use flow_config::{
        AdapterLayout, BlockSkipCheckpointing, CheckpointingConfig, DistillationFacts, Finetune,
        FullCheckpointing, Shard,
    };
    let mut right = test_catalog::defaults();
    right.distributed.shard = Shard::Weights;
    right.model.finetune = Finetune::Lora;
    right.model.weights = Some("w.safetensors".into());
    right.checkpointing = CheckpointingConfig::Full(FullCheckpointing::default());
    let found = |config: &Config, ranks: usize, facts: Option<DistillationFacts>| {
        let found = sharded_weights(config, ranks, facts);
        assert!(errors(&found) || found.is_empty());
        found.into_iter().map(|one| one.path).collect::<Vec<_>>()
    };
    assert!(found(&right, 2, None).is_empty());
    let changed = |change: fn(&mut Config)| {
        let mut config = right.clone();
        change(&mut config);
        // Nothing of it matters to one process, or where nothing but the optimizer is shared out.
        assert!(found(&config, 1, None).is_empty());
        let optimizer = Config {
            distributed: flow_config::DistributedConfig {
                shard: Shard::Optimizer,
                ..config.distributed.clone()
            },
            ..config.clone()
        };
        assert!(found(&optimizer, 2, None).is_empty());
        found(&config, 2, None)
    };
    assert!(changed(|config| config.model.finetune = Finetune::Full).is_empty());
    let drawn = changed(|config| {
        config.model.finetune = Finetune::Full;
        config.model.weights = None;
    });
    assert!(
        drawn.is_empty(),
        "checkpoints hold trained weights, whose parts are asked for"
    );
    let narrow = changed(|config| {
        config.model.finetune = Finetune::Full;
        config.optimizer.weights = flow_config::WeightStorage::Bf16;
    });
    assert!(
        narrow.is_empty(),
        "the numbers that round a part are those of its place in the weight"
    );
    assert_eq!(changed(|config| config.model.weights = None), ["model.weights"]);
    let kept = changed(|config| config.checkpointing = CheckpointingConfig::default());
    assert_eq!(kept, ["checkpointing.policy"]);
    let skipped = |every: usize| {
        let mut config = right.clone();
        config.checkpointing = CheckpointingConfig::BlockSkip(BlockSkipCheckpointing { every });
        found(&config, 2, None)
    };
    assert!(skipped(1).is_empty());
    assert_eq!(skipped(2), ["checkpointing.policy"]);
    let recorded = changed(|config| config.acceleration.shared = vec![listed("Graph-Capture", 0.5.into())]);
    assert_eq!(recorded, ["acceleration.shared.0.name"]);
    let narrow = changed(|config| config.acceleration.shared = vec![listed("low_precision", 0.5.into())]);
    assert_eq!(narrow, ["acceleration.shared.0.name"]);
    let merged = changed(|config| config.lora.export.push(AdapterLayout::Merged));
    assert_eq!(merged, ["lora.export"]);
    let facts = |networks: usize| DistillationFacts {
        step_range: [0.0, 1.0],
        adapters: 0,
        models: 0,
        networks,
    };
    assert!(found(&right, 2, Some(facts(0))).is_empty());
    assert_eq!(found(&right, 2, Some(facts(1))), ["algorithm.kind"]);
}

#[test]
fn a_pretraining_on_several_processes_shares_out_nothing_but_the_state_of_its_optimizer() {
    use flow_config::Shard;
    let refused = sharded_pretraining(Shard::Weights, 2).expect("its weights stay whole");
    assert_eq!(refused.path, "distributed.shard");
    assert!(refused.help.is_some_and(|help| help.contains("\"optimizer\"")));
    for (shard, ranks) in [(Shard::Weights, 1), (Shard::Optimizer, 2), (Shard::None, 4)] {
        assert!(
            sharded_pretraining(shard, ranks).is_none(),
            "{shard:?} on {ranks}"
        );
    }
}
