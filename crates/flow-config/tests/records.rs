//! Rules on runs that learn from records of the data set.

use test_catalog::inspect_named;

/// The diagnostics of a config and of training with it: codes with messages.
fn found(text: &str) -> Vec<(&'static str, String)> {
    let inspection = inspect_named("a.toml", &format!("config_version = 1\n{text}"), &[]);
    let training = inspection
        .partial
        .map(|partial| partial.check_training().diagnostics);
    let all = inspection.report.diagnostics.into_iter();
    all.chain(training.into_iter().flatten())
        .map(|one| (one.code, one.message))
        .collect()
}

fn codes(text: &str) -> Vec<&'static str> {
    found(text).into_iter().map(|(code, _)| code).collect()
}

const SFT: &str = "[algorithm]\nkind = \"sft\"\n[sampling]\ngroup_size = 1\nmicro_batch = 8\n";

#[test]
fn a_run_on_records_needs_no_weights_and_a_reward_for_evaluations_alone() {
    assert_eq!(codes(SFT), ["rule::no-reward"]);
    assert!(codes(&format!("{SFT}[evaluation]\nevery = 0\n")).is_empty());
    assert!(codes(&format!("{SFT}[[rewards]]\nkind = \"jpeg-compressibility\"\n")).is_empty());
}

#[test]
fn a_group_is_a_record() {
    let of = |kind: &str, group: usize, batch: usize| {
        found(&format!(
            "[algorithm]\nkind = \"{kind}\"\n[sampling]\nprompts_per_step = 6\ngroup_size = {group}\nmicro_batch = {batch}\n\
             [evaluation]\nevery = 0\n"
        ))
    };
    assert!(of("sft", 1, 3).is_empty());
    assert!(of("offline-dpo", 2, 4).is_empty());
    for (kind, group, wanted) in [
        ("sft", 4, "has one image"),
        ("offline-dpo", 1, "has 2 images"),
        ("offline-dpo", 4, "has 2 images"),
    ] {
        let all = of(kind, group, 2);
        let [(code, message)] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(*code, "rule::group-size");
        assert!(message.contains(wanted), "{message}");
    }
    let odd = of("offline-dpo", 2, 3);
    assert_eq!(odd.len(), 1, "{odd:?}");
    assert_eq!(odd[0].0, "rule::batch-geometry");
}

#[test]
fn what_rollouts_alone_have_is_refused_or_named_as_not_read() {
    let rest = "[evaluation]\nevery = 0\n";
    let accelerated = format!("{SFT}{rest}[[acceleration.rollout]]\nname = \"feature_cache\"\n");
    assert_eq!(codes(&accelerated), ["rule::no-rollout"]);
    assert!(
        codes(&format!(
            "{SFT}{rest}[[acceleration.shared]]\nname = \"exact_reuse\"\n"
        ))
        .is_empty()
    );
    let idle = found(&format!(
        "{SFT}{rest}[advantage]\naggregation = \"sum\"\n[watch]\nevery = 5\n"
    ));
    assert!(
        idle.len() == 2 && idle.iter().all(|(code, _)| *code == "rule::unused"),
        "{idle:?}"
    );
    assert!(idle[0].1.contains("`advantage.aggregation`"), "{idle:?}");
}

#[test]
fn pairs_have_the_rules_of_pictures() {
    let of = |more: &str| {
        codes(&format!(
            "[algorithm]\nkind = \"offline-dpo\"\n[sampling]\ngroup_size = 2\nmicro_batch = 8\n[evaluation]\nevery = 0\n\
             [data]\nkind = \"preferences\"\npath = \"pairs.jsonl\"\n{more}"
        ))
    };
    assert_eq!(of(""), ["rule::image-shape", "rule::image-shape"]);
    assert!(of("width = 8\nheight = 8\ngrey = true\nwords = true\n").is_empty());
    assert!(
        of("width = 8\nheight = 8\ngrey = true\ntest_path = \"t.txt\"\ntest_count = 3\n")
            .contains(&"rule::unused")
    );
}
