//! The reward `remote`, against servers over loopback: right ones, dying ones and wrong ones.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Made, Reply, Server, brightnesses, images, samples, video};
use flow_rewards::{NamedReward, Reward, RewardError, RewardKind, RewardRegistry, RewardWorkers, Sample};
use flow_rewards_remote::{RemoteReward, RemoteSettings};
use serde_json::{Value, json};

/// Settings that do not wait.
fn settings(servers: &[&Server]) -> RemoteSettings {
    RemoteSettings {
        backoff_s: 0.001,
        retries: 1,
        timeout_s: 20.0,
        ..RemoteSettings::new(servers.iter().map(|server| server.url.as_str()))
    }
}

fn reward(settings: RemoteSettings) -> RemoteReward {
    RemoteReward::new(settings, &|_| None).expect("settings in range")
}

/// Position and words of the error of a reward that must fail.
fn failure(reward: &RemoteReward, made: &[Made]) -> (usize, String) {
    match reward.score(&samples(made)) {
        Err(RewardError::Sample { index, problem }) => (index, problem),
        other => panic!("no error of a sample: {other:?}"),
    }
}

#[test]
fn scores_are_those_of_the_server_for_any_number_of_samples_per_request() {
    let made = images(11);
    for batch in [1, 4, 11, 16] {
        let server = Server::healthy(Reply::right);
        let reward = reward(RemoteSettings {
            batch,
            ..settings(&[&server])
        });
        assert_eq!(
            reward.score(&samples(&made)),
            Ok(brightnesses(&made)),
            "batch {batch}"
        );
        assert_eq!(server.count("/compute"), 11_usize.div_ceil(batch));
        assert_eq!(server.count("/health"), 1);
        assert_eq!(reward.score(&[]), Ok(vec![]));
    }
}

#[test]
fn a_request_has_the_keys_of_flow_factory_and_metadata_only_where_asked_for() {
    let server = Server::healthy(Reply::right);
    let made = images(2);
    for metadata in [false, true] {
        let reward = reward(RemoteSettings {
            metadata,
            ..settings(&[&server])
        });
        reward.score(&samples(&made)).unwrap();
        let body = server.received().last().unwrap().body.clone();
        assert_eq!(body["prompt"], json!([made[0].prompt.text, made[1].prompt.text]));
        assert_eq!(body["image"].as_array().unwrap().len(), 2);
        for key in ["video", "condition_images", "condition_videos"] {
            assert!(
                body.as_object().unwrap().contains_key(key) && body[key].is_null(),
                "{key}"
            );
        }
        let expected = if metadata {
            json!([{ "count": 0 }, { "count": 1 }])
        } else {
            Value::Null
        };
        assert_eq!(body["metadata"], expected);
    }
}

#[test]
fn videos_go_as_frames_in_requests_of_their_own() {
    let server = Server::healthy(Reply::right);
    let mut made = images(2);
    made.extend([video(3, 1), video(2, 2)]);
    made.extend(images(1));
    let reward = reward(settings(&[&server]));
    assert!(reward.takes_videos());
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    let received = server.received();
    let bodies: Vec<&Value> = received.iter().skip(1).map(|it| &it.body).collect();
    let lengths = |key: &str| {
        bodies
            .iter()
            .map(|it| it[key].as_array().map(Vec::len))
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths("image"), [Some(2), None, Some(1)]);
    assert_eq!(lengths("video"), [None, Some(2), None]);
}

#[test]
fn a_group_wise_server_gets_the_whole_group_at_once() {
    let server = Server::healthy(Reply::right);
    let reward = reward(RemoteSettings {
        groupwise: true,
        batch: 2,
        ..settings(&[&server])
    });
    assert_eq!(reward.kind(), RewardKind::Groupwise);
    let mut made = images(5);
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    assert_eq!(server.count("/compute"), 1);
    made.push(video(2, 0));
    let (index, problem) = failure(&reward, &made);
    assert_eq!(index, 5);
    assert!(problem.contains("either images or videos"), "{problem}");
}

#[test]
fn a_server_that_dies_in_the_middle_is_replaced_by_the_next_with_the_same_scores() {
    let made = images(23);
    let mut answered = 0;
    let dying = Server::start(move |received| {
        if received.path == "/health" && answered < 3 {
            return Reply::ok(json!({ "status": "ok" }));
        }
        answered += 1;
        match answered {
            1 | 2 => Reply::right(received),
            // The third answer is cut off, and then nothing comes any more.
            3 => Reply::Cut(json!({ "rewards": received.scores() }).to_string(), 14),
            _ => Reply::Close,
        }
    });
    let healthy = Server::healthy(Reply::right);
    let reward = reward(RemoteSettings {
        batch: 2,
        ..settings(&[&dying, &healthy])
    });
    for _ in 0..3 {
        assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    }
    assert!(dying.count("/compute") >= 3);
    // It is asked last for half a minute, and the other one answers.
    let asked = dying.received().len();
    reward.score(&samples(&made)).unwrap();
    assert_eq!(dying.received().len(), asked);
}

#[test]
fn a_server_that_comes_back_is_asked_again() {
    let made = images(3);
    let mut failures = vec![
        Reply::Close,
        Reply::Whole(503, "", "busy".into()),
        Reply::Cut("{}".into(), 1),
    ];
    let server = Server::healthy(move |received| failures.pop().unwrap_or_else(|| Reply::right(received)));
    let reward = reward(RemoteSettings {
        retries: 3,
        ..settings(&[&server])
    });
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    assert_eq!(server.count("/compute"), 4);
}

#[test]
fn servers_that_stay_away_are_named_with_the_attempts_and_what_came_back() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let long = format!("out of memory {}", "x".repeat(500));
    let failing = Server::healthy(move |_| Reply::Whole(500, "", json!({ "error": long }).to_string()));
    let mut settings = settings(&[&failing]);
    settings.servers.push(gone.clone());
    settings.retries = 2;
    let reward = reward(settings);
    let (index, problem) = failure(&reward, &images(5));
    assert_eq!(index, 0);
    for words in [
        "6 attempts",
        "5 samples",
        &gone,
        &failing.url,
        "status 500",
        "out of memory",
    ] {
        assert!(problem.contains(words), "{words}: {problem}");
    }
    let shown = problem.matches('x').count();
    assert!(
        (150..=200).contains(&shown),
        "{shown} of 500 characters are shown"
    );
    assert_eq!(failing.count("/compute"), 3);
}

#[test]
fn answers_that_are_not_one_number_for_each_sample_are_refused_and_not_asked_for_again() {
    let made = images(3);
    let cases: &[(&str, usize, &str)] = &[
        (r#"{"rewards":[0.1,0.2]}"#, 0, "2 rewards for 3 samples"),
        (r#"{"rewards":[0.1,0.2,0.3,0.4]}"#, 0, "4 rewards for 3 samples"),
        (r#"{"rewards":[0.1,null,0.3]}"#, 1, "reward 2 of 3 `null`"),
        (r#"{"rewards":[0.1,0.2,"0.3"]}"#, 2, "reward 3 of 3 `\"0.3\"`"),
        (r#"{"rewards":[true,0.2,0.3]}"#, 0, "reward 1 of 3 `true`"),
        (r#"{"rewards":[[0.1],0.2,0.3]}"#, 0, "reward 1 of 3 `[0.1]`"),
        (r#"{"rewards":[0.1,NaN,0.3]}"#, 0, "NaN"),
        (r#"{"rewards":[0.1,Infinity,0.3]}"#, 0, "infinity"),
        (r#"{"rewards":[0.1,1e60,0.3]}"#, 1, "32-bit"),
        (r#"{"rewards":0.1}"#, 0, "without a list `rewards`"),
        (r#"{"scores":[0.1,0.2,0.3]}"#, 0, "without a list `rewards`"),
        ("[0.1,0.2,0.3]", 0, "without a list `rewards`"),
        (
            r#"{"rewards":[0.1,0.2,0.3],"error":"half of it"}"#,
            0,
            "half of it",
        ),
        ("<!DOCTYPE html><html>Log in</html>", 0, "an HTML page"),
        (r#"{"rewards":[0.1,0.2,0.3]} trailing"#, 0, "no JSON"),
    ];
    for (body, expected, words) in cases {
        let server = Server::healthy(move |_| Reply::ok(body));
        let reward = reward(settings(&[&server]));
        let (index, problem) = failure(&reward, &made);
        assert_eq!(index, *expected, "{body}: {problem}");
        assert!(
            problem.contains(words) && problem.contains(&server.url),
            "{body}: {problem}"
        );
        assert_eq!(server.count("/compute"), 1, "{body}");
    }
}

#[test]
fn answers_that_are_cut_off_are_asked_for_again_and_never_scores() {
    let whole = r#"{"rewards":[0.25,0.5,0.75]}"#;
    for sent in [0, 1, 14, whole.len() - 1] {
        for says_length in [true, false] {
            let server = Server::healthy(move |_| match says_length {
                true => Reply::Cut(whole.into(), sent),
                false => Reply::ok(&whole[..sent]),
            });
            let reward = reward(settings(&[&server]));
            let (_, problem) = failure(&reward, &images(3));
            assert!(problem.contains("2 attempts"), "{problem}");
            assert_eq!(server.count("/compute"), 2);
        }
    }
}

#[test]
fn statuses_that_stay_are_not_tried_again() {
    for (status, attempts) in [
        (400, 1),
        (401, 1),
        (404, 1),
        (204, 1),
        (408, 2),
        (429, 2),
        (500, 2),
        (502, 2),
    ] {
        let server = Server::healthy(move |_| Reply::Whole(status, "", "what went wrong".into()));
        let (_, problem) = failure(&reward(settings(&[&server])), &images(1));
        assert!(problem.contains(&format!("status {status}")), "{problem}");
        assert_eq!(server.count("/compute"), attempts, "status {status}");
    }
}

#[test]
fn a_server_that_is_not_healthy_gets_no_images() {
    let loading = Server::start(|_| Reply::ok(json!({ "status": "loading" })));
    let (_, problem) = failure(&reward(settings(&[&loading])), &images(2));
    assert!(
        problem.contains("not ready") && problem.contains("loading"),
        "{problem}"
    );
    let other = Server::start(|_| Reply::Whole(404, "", "no such page".into()));
    let (_, problem) = failure(&reward(settings(&[&other])), &images(2));
    assert!(problem.contains("/health with status 404"), "{problem}");
    assert_eq!((loading.count("/compute"), other.count("/compute")), (0, 0));
}

#[test]
fn a_server_that_says_nothing_is_given_up_after_the_time_out() {
    let silent = Server::healthy(|_| Reply::Silence(Duration::from_secs(30)));
    let reward = reward(RemoteSettings {
        timeout_s: 0.2,
        ..settings(&[&silent])
    });
    let start = Instant::now();
    let (_, problem) = failure(&reward, &images(1));
    assert!(problem.contains("within `timeout_s`"), "{problem}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(silent.count("/compute"), 2);
}

#[test]
fn a_token_goes_to_the_named_server_and_neither_to_a_redirect_nor_into_errors() {
    let elsewhere = Server::healthy(Reply::right);
    let to: &'static str = format!("Location: {}/compute\r\n", elsewhere.url).leak();
    let server = Server::healthy(move |_| Reply::Whole(307, to, String::new()));
    let with_token = |server: &Server| {
        let mut settings = settings(&[server]);
        settings
            .headers_from
            .insert("Authorization".into(), "REWARD_TOKEN".into());
        RemoteReward::new(settings, &|name| {
            (name == "REWARD_TOKEN").then(|| "Bearer sesame7".into())
        })
        .unwrap()
    };
    let (_, problem) = failure(&with_token(&server), &images(1));
    assert!(
        problem.contains("redirect") && problem.contains(&elsewhere.url),
        "{problem}"
    );
    assert_eq!(elsewhere.received().len(), 0);
    assert!(
        server
            .received()
            .iter()
            .all(|it| it.authorization.as_deref() == Some("Bearer sesame7"))
    );

    let echo =
        Server::healthy(|received| Reply::Whole(403, "", format!("{:?} may not", received.authorization)));
    let reward = with_token(&echo);
    let (_, problem) = failure(&reward, &images(1));
    assert!(
        problem.contains("may not") && !problem.contains("sesame"),
        "{problem}"
    );
    assert!(!format!("{reward:?}").contains("sesame"));
}

#[test]
fn an_image_without_a_number_is_refused_before_it_is_sent() {
    let server = Server::healthy(Reply::right);
    let mut made = images(6);
    made[4].image.pixels_chw[3] = f32::NAN;
    let (index, problem) = failure(&reward(settings(&[&server])), &made);
    assert_eq!(index, 4);
    assert!(problem.contains("NaN"), "{problem}");
    assert_eq!(server.count("/compute"), 0);
}

#[test]
fn scores_and_errors_are_the_same_for_any_number_of_threads() {
    let made = images(53);
    let server = Server::healthy(Reply::right);
    let bad = Server::healthy(|received| {
        let broken = received.body["prompt"].to_string().contains("no. 37");
        let mut scores = json!(received.scores());
        if broken {
            scores[0] = Value::Null;
        }
        Reply::ok(json!({ "rewards": scores }))
    });
    let batch = || {
        let sample = |(group, it): (usize, &Made)| Sample {
            image: it.image.clone(),
            frames: vec![],
            prompt: it.prompt.clone(),
            group: group as u64 / 8,
        };
        made.iter().enumerate().map(sample).collect::<Vec<_>>()
    };
    for threads in [1, 2, 7] {
        let named = |server: &Server| {
            let reward: Arc<dyn Reward> = Arc::new(reward(RemoteSettings {
                batch: 1,
                ..settings(&[server, server])
            }));
            vec![NamedReward::from(reward)]
        };
        let scores = RewardWorkers::new(named(&server), threads)
            .unwrap()
            .submit(batch(), 1)
            .unwrap()
            .wait();
        assert_eq!(
            scores.unwrap().rewards[0].values,
            brightnesses(&made),
            "{threads} threads"
        );
        let error = RewardWorkers::new(named(&bad), threads)
            .unwrap()
            .submit(batch(), 1)
            .unwrap()
            .wait();
        let words = error.unwrap_err().to_string();
        assert!(
            words.contains("on sample 37 ") && words.contains("null"),
            "{threads} threads: {words}"
        );
    }
}

#[test]
fn a_config_builds_it_and_wrong_parameters_are_named() {
    let mut registry = RewardRegistry::new();
    flow_rewards_remote::register(&mut registry).unwrap();
    assert!(flow_rewards_remote::register(&mut registry).is_err());
    let build = |params: Value| {
        let built = registry.build("remote", params.as_object().unwrap(), Path::new("."));
        // What is known of it before it is built is what it is.
        if let Ok(reward) = &built {
            let factory = registry.get("remote").unwrap();
            assert_eq!(factory.kind_with(params.as_object().unwrap()), reward.kind());
        }
        built
            .map(|reward| reward.kind())
            .map_err(|error| error.to_string())
    };
    let url = "http://localhost:8000";
    assert_eq!(build(json!({ "servers": [url] })), Ok(RewardKind::Pointwise));
    assert_eq!(
        build(json!({ "servers": [url], "groupwise": true })),
        Ok(RewardKind::Groupwise)
    );
    for (params, words) in [
        (json!({}), "servers"),
        (json!({ "servers": [] }), "servers"),
        (json!({ "servers": ["localhost:8000"] }), "http://"),
        (json!({ "servers": [url], "batch": 0 }), "batch"),
        (json!({ "servers": [url], "timeout_s": 0 }), "timeout_s"),
        (json!({ "servers": [url], "retry": 1 }), "retries"),
        (
            json!({ "servers": [url], "headers_from": { "Authorization": "NO_SUCH_VARIABLE_HERE" } }),
            "NO_SUCH_VARIABLE_HERE",
        ),
    ] {
        let problem = build(params.clone()).unwrap_err();
        assert!(problem.contains(words), "{params}: {problem}");
    }
}
