//! Rules on how candidates and the members of a group are sampled.

use super::found;
use flow_config::Severity::{self, Error, Warning};

#[test]
fn each_rule_on_exploration_and_branches_is_reported_at_the_key_to_mend() {
    let cases: &[(&str, &str, &str, Severity)] = &[
        (
            "[exploration]\ncandidates = 16",
            "rule::exploration",
            "exploration.candidates",
            Error,
        ),
        (
            "[exploration]\ncandidates = 17",
            "rule::exploration",
            "exploration.candidates",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\n[exploration]\ncandidates = 32",
            "rule::exploration",
            "sampling.initial_noise",
            Error,
        ),
        (
            "[exploration]\ncandidates = 32\nsteps = 4\ndynamics = \"same\"",
            "rule::exploration",
            "exploration.steps",
            Error,
        ),
        (
            "[exploration]\nsteps = 4",
            "rule::unused",
            "exploration.steps",
            Warning,
        ),
        (
            "[sampling]\ngroup_size = 24\nmicro_batch = 8\n[sampling.branching]\nkind = \"one-step\"\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "sampling.branching.kind",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\n[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 24\nmicro_batch = 8\n[sampling.branching]\nkind = \"one-step\"\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "sampling.branching.kind",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\nmicro_batch = 4\n[sampling.branching]\nkind = \"one-step\"\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "sampling.group_size",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 3\nmicro_batch = 1\n[sampling.branching]\nkind = \"one-step\"\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "sampling.group_size",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 24\nmicro_batch = 16\n[sampling.branching]\nkind = \"one-step\"\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "sampling.micro_batch",
            Error,
        ),
        (
            "[sampling]\ngroup_size = 12\nmicro_batch = 8\nprompts_per_step = 2\n[sampling.branching]\nkind = \"one-step-per-group\"",
            "rule::branching",
            "sampling.micro_batch",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\n[sampling]\ngroup_size = 16\nmicro_batch = 8\n[sampling.branching]\nkind = \"one-step-per-group\"",
            "rule::branching",
            "sampling.branching.kind",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [2, 0, 4, 6]",
            "rule::branching",
            "sampling.branching.splits",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 8\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 6]",
            "rule::branching",
            "sampling.branching.splits",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 9]",
            "rule::branching",
            "sampling.branching.splits",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [1, 2, 4, 6]",
            "rule::branching",
            "sampling.branching.splits",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 6]\nleaves = \"extremes\"\nextremes = 9",
            "rule::branching",
            "sampling.branching.extremes",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 6]\nuntrained_steps = [0, 1, 2, 3, 4, 5, 6, 7, 8]",
            "rule::branching",
            "sampling.branching.untrained_steps",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 6]\nuntrained_steps = [4]\nuntrained_hold = 5\nuntrained_least = 5",
            "rule::branching",
            "sampling.branching.untrained_least",
            Error,
        ),
        (
            "[sampling]\ninitial_noise = \"per_group\"\ngroup_size = 16\n[sampling.branching]\nkind = \"tree\"\nsplits = [0, 2, 4, 6]\n[scheduler.window]\nkind = \"contiguous\"\nsize = 3",
            "rule::branching",
            "scheduler.window.kind",
            Error,
        ),
    ];
    for (text, code, path, severity) in cases {
        assert_eq!(found(text), [(*code, (*path).to_owned(), *severity)], "{text}");
    }
}

#[test]
fn a_rollout_an_update_behind_needs_a_ratio_and_no_exploration() {
    let staleness = |rest: &str| found(&format!("[sampling]\nstaleness = 1\n{rest}"));
    let refused = ("rule::staleness", "sampling.staleness".to_owned(), Error);
    for algorithm in ["nft", "awm", "dpo", "dgpo", "crd"] {
        let text = format!("[algorithm]\nkind = \"{algorithm}\"");
        assert!(staleness(&text).contains(&refused), "{algorithm}");
    }
    assert_eq!(staleness("[exploration]\ncandidates = 32"), [refused]);
    for algorithm in ["grpo", "grpo-guard", "dppo"] {
        let text = format!("[algorithm]\nkind = \"{algorithm}\"");
        assert!(staleness(&text).is_empty(), "{algorithm}");
    }
}
