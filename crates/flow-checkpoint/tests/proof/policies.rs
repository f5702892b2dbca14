//! What policies say of models, and what they refuse.

use crate::support::*;
use flow_checkpoint::{Policy, PolicyError};
use flow_core::{ModelSpec, RegionKind};

fn spec() -> ModelSpec {
    ModelSpec {
        architecture: "toy".into(),
        stacks: vec![("blocks".into(), 4)],
        regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
        ..ModelSpec::default()
    }
}

fn save(pattern: &str) -> Policy {
    Policy::Regions {
        save: vec![pattern.into()],
    }
}

#[test]
fn every_policy_but_none_refuses_a_model_without_blocks_or_regions() {
    let without_blocks = ModelSpec {
        stacks: vec![("blocks".into(), 0)],
        ..spec()
    };
    let without_regions = ModelSpec {
        regions: Vec::new(),
        ..spec()
    };
    let budget = Policy::Budget { peak_gib: 1.0 };
    for policy in policies(&spec()).into_iter().chain([budget]) {
        for spec in [&without_blocks, &without_regions] {
            let found = policy.assign(spec);
            match policy {
                Policy::None => assert!(found.is_ok()),
                _ => assert!(matches!(found, Err(PolicyError::Ignored { .. })), "{policy}"),
            }
        }
    }
}

#[test]
fn attn_only_refuses_a_model_without_attention() {
    let spec = ModelSpec {
        regions: vec![RegionKind::Mlp],
        ..spec()
    };
    let error = Policy::AttnOnly { split: false }.assign(&spec).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the policy `attn-only` would do nothing: the model `toy` announces no attention whose results could be kept"
    );
    assert!(Policy::Full { split: false }.assign(&spec).is_ok());
}

#[test]
fn a_pattern_that_names_nothing_names_the_nearest_that_would() {
    for (pattern, nearest) in [
        ("attn", "attention"),
        ("atention", "attention"),
        ("attention:attn", "attention:attention"),
        ("*.mpl", "*.mlp"),
    ] {
        match save(pattern).assign(&spec()).unwrap_err() {
            PolicyError::NoMatch {
                nearest: found,
                available,
                ..
            } => {
                assert_eq!(found.as_deref(), Some(nearest), "{pattern}");
                assert!(available.contains(&"blocks.*.attention:linear".to_owned()));
            }
            other => panic!("{pattern}: {other}"),
        }
    }
    // A block that is not there.
    assert!(save("blocks.4.mlp").assign(&spec()).is_err());
    assert!(save("blocks.3.mlp").assign(&spec()).is_ok());
}

#[test]
fn results_of_experts_and_their_router_have_names() {
    let spec = ModelSpec {
        regions: vec![RegionKind::Attention, RegionKind::Moe, RegionKind::Router],
        ..spec()
    };
    for pattern in [
        "moe:grouped_linear",
        "moe:linear",
        "router:router",
        "router:linear",
    ] {
        assert!(save(pattern).assign(&spec).is_ok(), "{pattern}");
    }
    let every = Policy::EveryNthLinear { n: 2 }.assign(&spec).unwrap().unwrap();
    let (_, blocks) = every.stacks().next().unwrap();
    let takes = |name, ordinal| blocks[0].saves.takes(RegionKind::Moe, name, ordinal);
    assert!(takes("grouped_linear", 0) && !takes("grouped_linear", 1));
    assert!(
        takes("router", 0) && takes("router", 1),
        "choices are always kept"
    );
}

#[test]
fn one_lost_pattern_among_others_is_an_error() {
    let policy = Policy::Regions {
        save: vec!["attention".into(), "moe".into()],
    };
    let error = policy.assign(&spec()).unwrap_err();
    assert!(matches!(error, PolicyError::NoMatch { pattern, .. } if pattern == "moe"));
}

#[test]
fn a_text_that_is_no_pattern_is_refused_with_its_reason() {
    let error = save("att[ention").assign(&spec()).unwrap_err();
    assert!(matches!(&error, PolicyError::BadPattern { .. }), "{error}");
    assert!(
        error.to_string().starts_with("`att[ention` is no pattern: "),
        "{error}"
    );
}

#[test]
fn block_skip_treats_every_nth_block_and_leaves_the_others() {
    let assignment = Policy::BlockSkip { every: 3 }.assign(&spec()).unwrap().unwrap();
    let (_, blocks) = assignment.stacks().next().unwrap();
    let recomputed: Vec<bool> = blocks.iter().map(|block| block.recompute).collect();
    assert_eq!(recomputed, [true, false, false, true]);
}

#[test]
fn a_budget_is_for_the_planner_to_spend() {
    let policy = Policy::Budget { peak_gib: 1.5 };
    assert_eq!(policy.assign(&spec()), Ok(None));
    assert_eq!(policy.to_string(), "budget (peak 1.5 GiB)");
}

#[test]
fn every_policy_is_listed_by_its_name() {
    let names: Vec<&str> = Policy::all().map(|(name, _)| name).collect();
    let budget = Policy::Budget { peak_gib: 1.0 };
    for policy in policies(&spec()).iter().chain([&budget]) {
        assert!(names.contains(&policy.name()), "{policy}");
    }
}
