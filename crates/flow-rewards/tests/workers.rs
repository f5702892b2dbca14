//! The worker pool: same results for any number of threads, and errors that name reward and sample.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{digits, noisy};
use flow_data::{CaptionedImages, Image, ImageShape, Prompt};
use flow_rewards::{
    NamedReward, Reward, RewardBatch, RewardError, RewardKind, RewardRegistry, RewardSample, RewardWorkers,
    Sample,
};
use proptest::prelude::*;
use serde_json::json;

/// `n` digits with some noise, in groups that are interleaved.
fn batch(n: usize, groups: u64) -> Vec<Sample> {
    let digits = digits();
    (0..n as u64)
        .map(|index| {
            let example = digits.example(index * 13 % digits.len()).unwrap();
            Sample {
                frames: Vec::new(),
                image: noisy(&example.image, 0.3, index),
                prompt: example.prompt,
                group: index % groups,
            }
        })
        .collect()
}

fn built_in() -> Vec<NamedReward> {
    let registry = RewardRegistry::with_built_in().unwrap();
    let rank = json!({ "reward": "jpeg-compressibility", "params": { "quality": 80 } });
    let colour = json!({ "rgb": [0.2, 0.4, 0.6] });
    [
        ("digit-classifier", json!({ "weights": "built-in" })),
        ("rank-in-group", rank),
        ("target-colour", colour),
    ]
    .map(|(name, params)| {
        registry
            .build(name, params.as_object().unwrap(), Path::new("."))
            .unwrap()
            .into()
    })
    .into()
}

fn without_times(mut batch: RewardBatch) -> RewardBatch {
    batch.wall_ms = 0.0;
    batch.rewards.iter_mut().for_each(|reward| reward.busy_ms = 0.0);
    batch
}

/// A reward made of a function of the portion.
struct Scripted<F> {
    name: &'static str,
    kind: RewardKind,
    score: F,
}

impl<F> Reward for Scripted<F>
where
    F: Fn(&[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn kind(&self) -> RewardKind {
        self.kind
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        (self.score)(samples)
    }
}

fn scripted<F>(name: &'static str, kind: RewardKind, score: F) -> NamedReward
where
    F: Fn(&[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> + Send + Sync + 'static,
{
    let reward: Arc<dyn Reward> = Arc::new(Scripted { name, kind, score });
    reward.into()
}

/// Batches whose first pixel is the position of the sample, so that a scripted reward knows which one it sees.
fn numbered(n: usize) -> Vec<Sample> {
    let mut samples = batch(n, 3);
    for (index, sample) in samples.iter_mut().enumerate() {
        sample.image.pixels_chw[0] = index as f32;
    }
    samples
}

fn number(sample: &RewardSample<'_>) -> usize {
    sample.image.pixels_chw[0] as usize
}

fn outcome(
    rewards: Vec<NamedReward>,
    threads: usize,
    samples: Vec<Sample>,
) -> Result<RewardBatch, RewardError> {
    RewardWorkers::new(rewards, threads)?.submit(samples, 31)?.wait()
}

#[test]
fn results_are_the_same_bits_for_every_number_of_threads() {
    let samples = batch(101, 7);
    let expected = without_times(outcome(built_in(), 1, samples.clone()).unwrap());
    assert_eq!(expected.id, 31);
    let names: Vec<_> = expected
        .rewards
        .iter()
        .map(|reward| reward.name.as_str())
        .collect();
    assert_eq!(names, ["digit-classifier", "rank-in-group", "target-colour"]);
    for threads in [2, 3, 8] {
        let found = outcome(built_in(), threads, samples.clone()).unwrap();
        assert!(found.wall_ms > 0.0 && found.rewards.iter().all(|reward| reward.busy_ms > 0.0));
        assert_eq!(without_times(found), expected);
    }
}

#[test]
fn scores_are_those_of_the_reward_in_the_order_of_the_batch_with_mean_and_deviation() {
    let samples = batch(37, 4);
    let found = outcome(built_in(), 2, samples.clone()).unwrap();
    let rewards = built_in();
    let direct = |members: &[&Sample], reward: usize| {
        let samples: Vec<_> = members
            .iter()
            .map(|s| common::sample(&s.image, &s.prompt))
            .collect();
        rewards[reward].reward.score(&samples).unwrap()
    };
    let all: Vec<&Sample> = samples.iter().collect();
    assert_eq!(found.rewards[0].values, direct(&all, 0));
    assert_eq!(found.rewards[2].values, direct(&all, 2));
    for group in 0..4 {
        let members: Vec<usize> = (0..37).filter(|&i| samples[i].group == group).collect();
        let expected = direct(&members.iter().map(|&i| &samples[i]).collect::<Vec<_>>(), 1);
        let values: Vec<f32> = members.iter().map(|&i| found.rewards[1].values[i]).collect();
        assert_eq!(values, expected);
    }
    for reward in &found.rewards {
        let values: Vec<f64> = reward.values.iter().map(|&v| f64::from(v)).collect();
        let mean = values.iter().sum::<f64>() / 37.0;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / 37.0 - mean * mean;
        assert!((f64::from(reward.mean) - mean).abs() < 1e-6);
        assert!((f64::from(reward.std) - variance.sqrt()).abs() < 1e-6);
    }
}

#[test]
fn a_groupwise_reward_gets_exactly_one_group_at_a_time() {
    let seen: Arc<Mutex<BTreeSet<Vec<usize>>>> = Arc::default();
    let log = Arc::clone(&seen);
    let reward = scripted("groups", RewardKind::Groupwise, move |samples| {
        log.lock().unwrap().insert(samples.iter().map(number).collect());
        Ok(vec![samples.len() as f32; samples.len()])
    });
    let found = outcome(vec![reward], 3, numbered(50)).unwrap();
    let groups: BTreeSet<Vec<usize>> = (0..3)
        .map(|group| (0..50).filter(|i| i % 3 == group).collect())
        .collect();
    assert_eq!(*seen.lock().unwrap(), groups);
    assert_eq!(found.rewards[0].values[..3], [17.0, 17.0, 16.0]);
}

#[test]
fn the_caller_goes_on_while_rewards_run() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let inner = Arc::clone(&gate);
    let reward = scripted("slow", RewardKind::Pointwise, move |samples| {
        let open = inner
            .1
            .wait_while(inner.0.lock().unwrap(), |open| !*open)
            .unwrap();
        drop(open);
        Ok(vec![1.0; samples.len()])
    });
    let workers = RewardWorkers::new(vec![reward], 2).unwrap();
    let mut first = workers.submit(batch(40, 2), 1).unwrap();
    let second = workers.submit(batch(3, 2), 2).unwrap();
    // Both were handed over although no reward can finish before the gate opens.
    assert!(!first.is_ready());
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(
        (second.id(), second.wait().unwrap().rewards[0].values.len()),
        (2, 3)
    );
    while !first.is_ready() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(first.wait().unwrap().rewards[0].values.len(), 40);
}

#[test]
fn a_panic_names_the_reward_and_the_sample_and_the_pool_lives_on() {
    let reward = scripted("fragile", RewardKind::Pointwise, |samples| {
        assert!(
            samples.iter().all(|sample| number(sample) != 21),
            "cannot look at this"
        );
        Ok(vec![0.0; samples.len()])
    });
    let workers = RewardWorkers::new(vec![reward], 2).unwrap();
    let samples = numbered(40);
    let text = samples[21].prompt.text.clone();
    let error = workers.submit(samples, 5).unwrap().wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("reward `fragile` panicked in batch 5 on sample 21 (\"{text}\"): cannot look at this")
    );
    assert_eq!(
        workers.submit(numbered(20), 6).unwrap().wait().unwrap().rewards[0].values,
        [0.0; 20]
    );
}

#[test]
fn an_error_is_traced_to_its_sample_whether_or_not_the_reward_says_which() {
    for says in [true, false] {
        let reward = scripted("picky", RewardKind::Pointwise, move |samples| {
            match samples
                .iter()
                .position(|sample| [18, 33].contains(&number(sample)))
            {
                None => Ok(vec![0.0; samples.len()]),
                Some(index) if says => Err(RewardError::Sample {
                    index,
                    problem: "not this one".to_owned(),
                }),
                Some(_) => Err(RewardError::Workers {
                    problem: "not this one".to_owned(),
                }),
            }
        });
        for threads in [1, 4] {
            let error = outcome(vec![reward.clone()], threads, numbered(40)).unwrap_err();
            assert!(matches!(error, RewardError::Failed { .. }));
            let error = error.to_string();
            assert!(
                error.starts_with("reward `picky` failed in batch 31 on sample 18 (\""),
                "{error}"
            );
            assert!(error.ends_with("not this one"), "{error}");
        }
    }
}

#[test]
fn a_failing_group_is_named_by_its_samples() {
    let reward = scripted("groups", RewardKind::Groupwise, |samples| {
        if number(&samples[0]) == 1 {
            panic!("{} in the group", samples.len());
        }
        Ok(vec![0.0; samples.len()])
    });
    let error = outcome(vec![reward], 2, numbered(20)).unwrap_err().to_string();
    assert!(
        error.contains("`groups` panicked in batch 31 on 7 samples, 1 to 19 (\""),
        "{error}"
    );
    assert!(error.ends_with("7 in the group"), "{error}");
}

#[test]
fn a_score_that_is_not_finite_names_the_reward_and_the_sample() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for kind in [RewardKind::Pointwise, RewardKind::Groupwise] {
            let reward = scripted("wild", kind, move |samples| {
                Ok(samples
                    .iter()
                    .map(|sample| if number(sample) == 19 { value } else { 0.0 })
                    .collect())
            });
            let error = outcome(vec![reward], 2, numbered(40)).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!(
                    "reward `wild` gave {value} in batch 31 on sample 19 (\""
                )),
                "{error}"
            );
        }
    }
}

#[test]
fn a_wrong_number_of_scores_is_an_error() {
    let reward = scripted("short", RewardKind::Pointwise, |samples| {
        Ok(vec![0.0; samples.len() - 1])
    });
    let error = outcome(vec![reward], 1, numbered(4)).unwrap_err().to_string();
    assert!(
        error.starts_with("reward `short` gave 3 scores for 4 samples in batch 31 (4 samples, 0 to 3"),
        "{error}"
    );
}

#[test]
fn dropping_the_pool_finishes_what_was_submitted_and_joins_the_threads() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let reward = scripted("counted", RewardKind::Pointwise, move |samples| {
        std::thread::sleep(Duration::from_millis(2));
        count.fetch_add(samples.len(), Ordering::SeqCst);
        Ok(vec![2.0; samples.len()])
    });
    let workers = RewardWorkers::new(vec![reward], 3).unwrap();
    let ticket = workers.submit(numbered(100), 1).unwrap();
    drop(workers);
    // The threads held the only other clones of the counter, and they are gone.
    assert_eq!(
        (calls.load(Ordering::SeqCst), Arc::strong_count(&calls)),
        (100, 2)
    );
    assert_eq!(ticket.wait().unwrap().rewards[0].values, [2.0; 100]);
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn a_dropped_ticket_cancels_what_has_not_begun() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let inner = Arc::clone(&gate);
    let reward = scripted("gated", RewardKind::Pointwise, move |samples| {
        let _pass = inner.lock().unwrap();
        count.fetch_add(1, Ordering::SeqCst);
        Ok(vec![0.0; samples.len()])
    });
    let workers = RewardWorkers::new(vec![reward], 1).unwrap();
    drop(workers.submit(numbered(160), 1).unwrap());
    let second = workers.submit(numbered(1), 2).unwrap();
    drop(held);
    assert_eq!(second.wait().unwrap().rewards[0].values, [0.0]);
    // At most one of the ten portions had begun when the ticket was dropped.
    assert!(calls.load(Ordering::SeqCst) <= 2);
}

#[test]
fn pools_and_batches_that_make_no_sense_are_refused() {
    let refusal = |rewards, threads| match RewardWorkers::new(rewards, threads) {
        Ok(_) => panic!("accepted {threads} threads"),
        Err(error) => error.to_string(),
    };
    assert!(
        refusal(built_in(), 0).starts_with("`threads = 0` is not allowed: rewards run on 1 to 1024 threads")
    );
    assert!(refusal(vec![], 1).contains("there must be at least one reward"));
    let twice = [built_in(), built_in()].concat();
    assert_eq!(
        refusal(twice, 1),
        "reward `digit-classifier` is there twice; give the second one another name"
    );
    let workers = RewardWorkers::new(built_in(), 1).unwrap();
    assert_eq!(
        workers.names().collect::<Vec<_>>(),
        ["digit-classifier", "rank-in-group", "target-colour"]
    );
    let error = workers.submit(vec![], 9).err().unwrap();
    assert_eq!(error, RewardError::EmptyBatch { batch: 9 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_first_sample_at_fault_is_reported_whatever_the_threads(
        n in 1usize..70,
        bad in prop::collection::vec(0usize..70, 0..4),
        threads in 1usize..5,
    ) {
        let at_fault: BTreeSet<usize> = bad.into_iter().filter(|&sample| sample < n).collect();
        let first = at_fault.first().copied();
        let reward = scripted("picky", RewardKind::Pointwise, move |samples| {
            match samples.iter().position(|sample| at_fault.contains(&number(sample))) {
                None => Ok(samples.iter().map(|sample| number(sample) as f32).collect()),
                Some(index) => Err(RewardError::Sample { index, problem: "no".to_owned() }),
            }
        });
        match (outcome(vec![reward], threads, numbered(n)), first) {
            (Ok(found), None) => {
                prop_assert_eq!(&found.rewards[0].values, &(0..n).map(|i| i as f32).collect::<Vec<_>>());
            }
            (Err(error), Some(first)) => {
                prop_assert!(error.to_string().contains(&format!("on sample {first} (")), "{}", error);
            }
            (found, first) => prop_assert!(false, "{found:?} {first:?}"),
        }
    }
}

/// Scores an image by its first value.
struct FirstValue {
    takes_videos: bool,
}

impl Reward for FirstValue {
    fn name(&self) -> &str {
        "first-value"
    }

    fn takes_videos(&self) -> bool {
        self.takes_videos
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |(index, sample): (usize, &RewardSample<'_>)| match sample.image.pixels_chw[0] {
            value if value < 0.0 => Err(RewardError::Sample {
                index,
                problem: "too dark".into(),
            }),
            value => Ok(value + sample.frames.len() as f32),
        };
        samples.iter().enumerate().map(score).collect()
    }
}

#[test]
fn a_video_scores_the_mean_of_its_frames_unless_a_reward_takes_videos() {
    let frame = |value: f32| {
        Image::filled(
            ImageShape {
                channels: 1,
                height: 2,
                width: 3,
            },
            value,
        )
    };
    let sample = |values: &[f32]| Sample {
        image: frame(values[0]),
        frames: match values.len() {
            1 => Vec::new(),
            _ => values.iter().copied().map(frame).collect(),
        },
        prompt: Prompt::free(0, "a"),
        group: 0,
    };
    let score = |takes_videos: bool, batch: &[&[f32]]| {
        let workers = RewardWorkers::new(
            vec![(Arc::new(FirstValue { takes_videos }) as Arc<dyn Reward>).into()],
            1,
        )
        .unwrap();
        let batch = batch.iter().map(|values| sample(values)).collect();
        workers
            .submit(batch, 3)
            .unwrap()
            .wait()
            .map(|scored| scored.rewards[0].values.clone())
    };
    let batch: [&[f32]; 3] = [&[1.0], &[0.25, 0.5, 0.75], &[1.0, 0.0]];
    assert_eq!(score(false, &batch).unwrap(), [1.0, 0.5, 0.5]);
    assert_eq!(score(true, &batch).unwrap(), [1.0, 3.25, 3.0]);
    // A frame that cannot be scored names its video.
    let wrong = score(false, &[&[1.0], &[0.5, 0.5], &[0.5, -1.0, 0.5]])
        .unwrap_err()
        .to_string();
    assert!(
        wrong.contains("sample 2") && wrong.contains("too dark"),
        "{wrong}"
    );
}
