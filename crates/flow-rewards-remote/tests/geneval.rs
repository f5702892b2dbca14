//! The reward `geneval`, against detectors over loopback: right ones, dying ones and wrong ones.

mod common;

use std::path::Path;

use common::{Made, Received, Reply, Server, images, samples, video};
use flow_data::Prompt;
use flow_rewards::{Reward, RewardError, RewardRegistry, score_videos};
use flow_rewards_remote::{GenEval, GenEvalMode, GenEvalSettings};
use serde_json::{Value, json};

fn settings(servers: &[&Server]) -> GenEvalSettings {
    GenEvalSettings {
        backoff_s: 0.001,
        retries: 1,
        timeout_s: 20.0,
        ..GenEvalSettings::new(servers.iter().map(|server| server.url.as_str()))
    }
}

fn reward(settings: GenEvalSettings) -> GenEval {
    GenEval::new(settings, &|_| None).expect("settings in range")
}

/// Images whose prompts want 1, 2, 3, … dogs.
fn wanting_dogs(count: usize) -> Vec<Made> {
    let mut made = images(count);
    for (index, it) in made.iter_mut().enumerate() {
        it.prompt = wants(json!([{ "class": "dog", "count": index + 1 }]));
    }
    made
}

fn wants(include: Value) -> Prompt {
    let mut prompt = Prompt::free(0, "dogs".to_owned());
    prompt.metadata.insert("include".into(), include);
    prompt
}

fn dog(score: f64) -> Value {
    json!({ "class": "dog", "score": score, "box": [0, 0, 10.5, 10] })
}

/// A detector that finds two dogs in every image.
fn two_dogs(received: &Received) -> Reply {
    let images = received.body["image"].as_array().expect("images");
    Reply::ok(json!({ "detections": vec![json!([dog(0.5), dog(0.9), dog(0.1)]); images.len()] }))
}

fn failure(reward: &GenEval, made: &[Made]) -> (usize, String) {
    match reward.score(&samples(made)) {
        Err(RewardError::Sample { index, problem }) => (index, problem),
        other => panic!("no error of a sample: {other:?}"),
    }
}

#[test]
fn scores_are_those_of_the_rules_for_any_number_of_images_per_request() {
    // 1 of 2, 2 of 2, 2 of 3, 2 of 4.
    let wanted = vec![0.0, 1.0, (2.0_f64 / 3.0) as f32, 0.5];
    for batch in [1, 3, 4, 9] {
        let server = Server::healthy(two_dogs);
        let reward = reward(GenEvalSettings {
            batch,
            ..settings(&[&server])
        });
        assert_eq!(
            reward.score(&samples(&wanting_dogs(4))),
            Ok(wanted.clone()),
            "{batch}"
        );
        assert_eq!(server.count("/detect"), 4_usize.div_ceil(batch));
        assert_eq!(server.count("/health"), 1);
        assert_eq!(reward.score(&[]), Ok(vec![]));
    }
    let server = Server::healthy(two_dogs);
    for (mode, wanted) in [
        (GenEvalMode::Correct, vec![1.0, 1.0, 0.0]),
        (GenEvalMode::Strict, vec![0.0, 1.0, 0.0]),
    ] {
        let reward = reward(GenEvalSettings {
            mode,
            ..settings(&[&server])
        });
        assert_eq!(reward.score(&samples(&wanting_dogs(3))), Ok(wanted));
    }
}

#[test]
fn a_request_names_the_classes_that_matter_and_a_video_is_the_mean_of_its_frames() {
    let server = Server::healthy(two_dogs);
    let mut made = wanting_dogs(1);
    made[0].prompt = wants(json!([{ "class": "cat", "count": 1 }, { "class": "dog", "count": 2 }]));
    made[0]
        .prompt
        .metadata
        .insert("exclude".into(), json!([{ "class": "cat", "count": 2 }]));
    let reward = reward(settings(&[&server]));
    assert_eq!(reward.score(&samples(&made)), Ok(vec![0.5]));
    assert_eq!(
        server.received().last().unwrap().body["classes"],
        json!([["cat", "dog"]])
    );
    let mut moving = video(3, 1);
    moving.prompt = wants(json!([{ "class": "dog", "count": 4 }]));
    assert_eq!(score_videos(&reward, &samples(&[moving])), Ok(vec![0.5]));
    let body = server.received().last().unwrap().body.clone();
    assert_eq!(body["image"].as_array().unwrap().len(), 3);
}

#[test]
fn answers_that_are_no_detections_are_errors_and_never_scores() {
    let with = |key: &str, value: Value| {
        let mut dog = dog(0.9);
        dog[key] = value;
        json!({ "detections": [[dog]] })
    };
    let cases = [
        (json!({}), "without a list `detections`"),
        (json!({ "detections": [] }), "of 0 images for 1"),
        (json!({ "detections": [[], []] }), "of 2 images for 1"),
        (json!({ "detections": [null] }), "`null`"),
        (json!({ "error": "no such class" }), "no such class"),
        (with("score", Value::Null), "no list of detections"),
        (with("score", json!(1.5)), "from 0 to 1"),
        (with("box", json!([0, 0, 10])), "no list of detections"),
        (with("box", json!([10, 0, 0, 10])), "left, top, right and bottom"),
        (with("class", json!(7)), "no list of detections"),
    ];
    for (body, words) in cases {
        let shown = body.to_string();
        let server = Server::healthy(move |_| Reply::ok(&body));
        let (_, problem) = failure(&reward(settings(&[&server])), &wanting_dogs(1));
        assert!(problem.contains(words), "{shown}: {problem}");
        assert_eq!(server.count("/detect"), 1, "{shown}");
    }
    // A colour is asked for, and the second image's dog has none.
    let server = Server::healthy(|_| {
        let mut red = dog(0.9);
        red["color"] = json!("red");
        Reply::ok(json!({ "detections": [[red], [dog(0.9)]] }))
    });
    let mut made = wanting_dogs(2);
    for it in &mut made {
        it.prompt = wants(json!([{ "class": "dog", "count": 1, "color": "red" }]));
    }
    let (index, problem) = failure(&reward(settings(&[&server])), &made);
    assert_eq!(index, 1);
    assert!(problem.contains("without a `color`"), "{problem}");
}

#[test]
fn a_detector_that_dies_is_replaced() {
    let mut count = 0;
    let dying = Server::healthy(move |received| {
        count += 1;
        if count == 1 {
            two_dogs(received)
        } else {
            Reply::Close
        }
    });
    let healthy = Server::healthy(two_dogs);
    let reward = reward(GenEvalSettings {
        batch: 1,
        ..settings(&[&dying, &healthy])
    });
    let scores = reward.score(&samples(&wanting_dogs(8))).unwrap();
    assert_eq!(scores[1], 1.0);
    assert_eq!(scores.len(), 8);
}

#[test]
fn prompts_without_genevals_metadata_are_named_before_the_run() {
    let reward = reward(GenEvalSettings::new(["http://localhost:8000"]));
    assert_eq!(reward.check_prompt(&wanting_dogs(1)[0].prompt), Ok(()));
    for (include, words) in [
        (Value::Null, "not GenEval's"),
        (json!([]), "is empty"),
        (json!([{ "class": "dog" }]), "`count`"),
        (json!([{ "class": "dog", "count": 0 }]), "wants 0 of `dog`"),
        (
            json!([{ "class": "dog", "count": 1, "position": ["left of", 0] }]),
            "entries before it",
        ),
        (
            json!([{ "class": "cat", "count": 1 }, { "class": "dog", "count": 1, "position": ["beside", 0] }]),
            "allowed are left of",
        ),
    ] {
        let problem = reward.check_prompt(&wants(include.clone())).unwrap_err();
        assert!(problem.contains(words), "{include}: {problem}");
    }
    assert!(
        reward
            .check_prompt(&images(1)[0].prompt)
            .unwrap_err()
            .contains("`include`")
    );
}

#[test]
fn a_config_builds_it_and_wrong_parameters_are_named() {
    let mut registry = RewardRegistry::new();
    flow_rewards_remote::register(&mut registry).unwrap();
    let build = |params: Value| {
        let built = registry.build("geneval", params.as_object().unwrap(), Path::new("."));
        built
            .map(|reward| reward.range())
            .map_err(|error| error.to_string())
    };
    let url = "http://localhost:8000";
    assert_eq!(build(json!({ "servers": [url] })), Ok((-14.0, 1.0)));
    assert_eq!(
        build(json!({ "servers": [url], "mode": "strict" })),
        Ok((0.0, 1.0))
    );
    for (params, words) in [
        (json!({}), "servers"),
        (json!({ "servers": ["localhost"] }), "http://"),
        (json!({ "servers": [url], "threshold": 2 }), "threshold"),
        (json!({ "servers": [url], "max_objects": 0 }), "max_objects"),
        (json!({ "servers": [url], "mode": "loose" }), "mode"),
    ] {
        let problem = build(params.clone()).unwrap_err();
        assert!(problem.contains(words), "{params}: {problem}");
    }
}
