//! Rewards of pretrained networks in a run.

use super::support::*;
use flow_report::RunDirectory;
use flow_trainer::setup::{self, ScoredPrompts};

/// The small random CLIP of the crate of those rewards.
const CLIP: &str = "../flow-rewards-models/tests/fixtures/clip";

fn trained_on(reward: &str) -> (String, Vec<f64>) {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&[&format!("rewards=[{reward}]")]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 2,
    };
    let left = with_trainer(&config, &environment, run).unwrap_or_else(|error| panic!("{error}"));
    let directory = RunDirectory::resume(root.path(), "run").expect("the run is there");
    let metrics = directory.read_metrics().expect("readable");
    let rewards = metrics.series("train", "reward").into_iter();
    (left.metrics, rewards.map(|(_, reward)| reward).collect())
}

#[test]
fn a_run_is_trained_on_clip_score_with_the_same_bits_on_the_processor_and_on_the_processor_of_the_run() {
    let (metrics, rewards) = trained_on(&format!("{{ kind = 'clip-score', path = '{CLIP}' }}"));
    assert_eq!(rewards.len(), 2);
    assert!(
        rewards
            .iter()
            .all(|reward| (-1.0..1.0).contains(reward) && *reward != 0.0),
        "{rewards:?}"
    );
    assert!(metrics.contains("reward/clip-score"), "{metrics}");
    let of_run = format!("{{ kind = 'clip-score', path = '{CLIP}', device = 'run', batch_size = 5 }}");
    assert_eq!(trained_on(&of_run).1, rewards);
}

#[test]
fn a_clip_that_is_not_there_is_told_with_the_folder_that_its_path_starts_from() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&["rewards=[{ kind = 'pickscore', path = 'no-such-clip' }]"]);
    let dataset = setup::dataset(&config, &environment).expect("it is built in");
    let scored = ScoredPrompts {
        dataset: &*dataset,
        prompts: &[],
    };
    let error = setup::rewards(&config.rewards, &environment, scored, 1, &mut Default::default()).err();
    let error = error.expect("there is no such folder").to_string();
    for word in [
        "reward `pickscore`",
        "no-such-clip",
        "flow-train fetch",
        "the config's folder",
    ] {
        assert!(error.contains(word), "{error}");
    }
}
