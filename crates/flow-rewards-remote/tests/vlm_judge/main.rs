//! The reward `vlm-judge`, against servers over loopback that answer as vLLM does, and against wrong ones.

#[path = "../common/mod.rs"]
mod common;
mod comparing;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Made, Received, Reply, Server, brightnesses, images, samples, video};
use flow_rewards::{NamedReward, Reward, RewardError, RewardKind, RewardRegistry, RewardWorkers, Sample};
use flow_rewards_remote::{BadAnswers, VlmJudge, VlmJudgeMode, VlmJudgeSettings};
use serde_json::{Value, json};

/// Settings that do not wait, with the path that vLLM has.
fn settings(servers: &[&Server]) -> VlmJudgeSettings {
    let urls = servers.iter().map(|server| format!("{}/v1", server.url));
    VlmJudgeSettings {
        backoff_s: 0.001,
        retries: 1,
        timeout_s: 20.0,
        ..VlmJudgeSettings::new(urls, "qwen", "Does this show \"{prompt}\"? Answer yes or no.")
    }
}

/// Settings for the number in the text.
fn numbers(servers: &[&Server]) -> VlmJudgeSettings {
    VlmJudgeSettings {
        mode: VlmJudgeMode::Number,
        ..settings(servers)
    }
}

fn judge(settings: VlmJudgeSettings) -> VlmJudge {
    VlmJudge::new(settings, &|_| None).expect("settings in range")
}

/// Position and words of the error of a judge that must fail.
fn failure(reward: &VlmJudge, made: &[Made]) -> (usize, String) {
    match reward.score(&samples(made)) {
        Err(RewardError::Sample { index, problem }) => (index, problem),
        other => panic!("no error of a sample: {other:?}"),
    }
}

/// The parts of the user's message.
fn content(received: &Received) -> Vec<Value> {
    let messages = received.body["messages"].as_array().expect("messages");
    let user = messages.last().expect("a message");
    assert_eq!(user["role"], "user");
    user["content"].as_array().expect("parts").clone()
}

/// The brightness of what each of the data URLs shows.
fn shown(received: &Received) -> Vec<f64> {
    let one = |part: &Value| {
        let url = part["image_url"]["url"].as_str()?;
        let png = url.strip_prefix("data:image/png;base64,").expect("a data URL");
        let png = STANDARD.decode(png).expect("base64");
        let bytes = image::load_from_memory(&png)
            .expect("a PNG file")
            .to_rgb8()
            .into_raw();
        Some(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() as f64 / bytes.len() as f64 / 255.0)
    };
    content(received).iter().filter_map(one).collect()
}

/// The mean brightness of what the data URLs show.
fn brightness(received: &Received) -> f64 {
    let all = shown(received);
    all.iter().sum::<f64>() / all.len() as f64
}

fn answer(content: &str) -> Value {
    json!({ "object": "chat.completion", "choices": [{
        "index": 0, "finish_reason": "stop", "logprobs": null,
        "message": { "role": "assistant", "content": content, "refusal": null },
    }] })
}

/// An answer of one token, with the likeliest tokens and their probabilities.
fn listed(tokens: &[(&str, f64)]) -> Value {
    let token = |(token, p): &(&str, f64)| json!({ "token": token, "logprob": p.ln(), "bytes": null });
    let top: Vec<Value> = tokens.iter().map(token).collect();
    let mut whole = answer(tokens[0].0);
    whole["choices"][0]["finish_reason"] = json!("length");
    whole["choices"][0]["logprobs"] = json!({ "content": [{
        "token": tokens[0].0, "logprob": tokens[0].1.ln(), "bytes": null, "top_logprobs": top,
    }] });
    whole
}

/// A server that answers yes with the brightness as its probability.
fn right(received: &Received) -> Reply {
    let yes = brightness(received);
    Reply::ok(listed(&[
        ("Yes", yes * 0.9),
        ("No", (1.0 - yes) * 0.9),
        ("It", 0.1),
    ]))
}

/// A server that writes the brightness as a number from 0 to 10.
fn right_number(received: &Received) -> Reply {
    Reply::ok(answer(&format!(
        "The score is {:.6}.",
        brightness(received) * 10.0
    )))
}

fn close(scores: &[f32], expected: &[f32], at_most: f32) {
    assert_eq!(scores.len(), expected.len());
    for (score, expected) in scores.iter().zip(expected) {
        assert!((score - expected).abs() <= at_most, "{score} and {expected}");
    }
}

#[test]
fn the_probability_of_yes_is_that_of_the_server() {
    let server = Server::start(right);
    let made = images(7);
    let reward = judge(settings(&[&server]));
    assert_eq!(
        (reward.kind(), reward.range()),
        (RewardKind::Pointwise, (0.0, 1.0))
    );
    close(
        &reward.score(&samples(&made)).unwrap(),
        &brightnesses(&made),
        1e-6,
    );
    assert_eq!(server.count("/v1/chat/completions"), 7);
    assert_eq!(server.received().len(), 7, "nothing else is asked");
    assert_eq!(reward.score(&[]), Ok(vec![]));
}

#[test]
fn a_number_in_the_text_is_its_place_in_the_range() {
    let server = Server::start(right_number);
    let made = images(7);
    let scores = judge(numbers(&[&server])).score(&samples(&made)).unwrap();
    close(&scores, &brightnesses(&made), 1e-6);
    let from_minus_10 = judge(VlmJudgeSettings {
        range: [-10.0, 10.0],
        ..numbers(&[&server])
    });
    let halves: Vec<f32> = brightnesses(&made).iter().map(|it| 0.5 + 0.5 * it).collect();
    close(&from_minus_10.score(&samples(&made)).unwrap(), &halves, 1e-6);
}

#[test]
fn a_request_is_openais_with_the_image_before_the_filled_question() {
    let server = Server::start(right);
    let made = images(2);
    let mut settings = VlmJudgeSettings {
        question: "{prompt} {metadata.count} {{}}".into(),
        system: Some("You judge {metadata.count}.".into()),
        top_logprobs: 7,
        requests_per_server: 1,
        ..settings(&[&server])
    };
    settings
        .extra_body
        .insert("chat_template_kwargs".into(), json!({ "enable_thinking": false }));
    judge(settings.clone()).score(&samples(&made)).unwrap();
    let received = server.received().last().unwrap().clone();
    let parts = content(&received);
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0]["type"], "image_url");
    assert_eq!(
        parts[1],
        json!({ "type": "text", "text": format!("{} 1 {{}}", made[1].prompt.text) })
    );
    let mut body = received.body.clone();
    assert_eq!(
        body["messages"][0],
        json!({ "role": "system", "content": "You judge 1." })
    );
    body.as_object_mut().unwrap().remove("messages");
    assert_eq!(
        body,
        json!({
            "model": "qwen", "temperature": 0.0, "max_tokens": 1, "logprobs": true, "top_logprobs": 7,
            "chat_template_kwargs": { "enable_thinking": false },
        })
    );
    let reward = judge(settings);
    assert_eq!(reward.check_prompt(&made[0].prompt), Ok(()));
    let (index, problem) = failure(&reward, &[images(1).remove(0), video(2, 0)]);
    assert_eq!(index, 1);
    assert!(problem.contains("no `count`"), "{problem}");
    assert!(reward.check_prompt(&video(2, 0).prompt).is_err());
}

#[test]
fn several_answers_are_averaged_and_have_seeds_of_their_own() {
    // The answer is a function of the seed alone: 0, 2, 4, …
    let server = Server::start(|received| {
        let seed = received.body["seed"].as_u64().expect("a seed");
        assert_eq!(received.body["temperature"], 0.5);
        Reply::ok(answer(&(2 * seed).to_string()))
    });
    for requests_per_server in [1, 3, 16] {
        let reward = judge(VlmJudgeSettings {
            samples: 4,
            temperature: 0.5,
            requests_per_server,
            ..numbers(&[&server])
        });
        assert_eq!(reward.score(&samples(&images(3))), Ok(vec![0.3; 3]));
    }
}

#[test]
fn a_video_is_sent_as_frames_with_even_distances() {
    let server = Server::start(right);
    let made = [video(9, 1)];
    let reward = judge(VlmJudgeSettings {
        frames: 3,
        ..settings(&[&server])
    });
    let scores = reward.score(&samples(&made)).unwrap();
    let mut chosen = video(9, 1);
    chosen.frames = [0, 4, 8].map(|frame| made[0].frames[frame].clone()).to_vec();
    close(&scores, &brightnesses(&[chosen]), 1e-6);
    assert_eq!(content(&server.received()[0]).len(), 4);
}

#[test]
fn answers_without_a_score_are_errors_with_what_came() {
    let cut = |content: &str| {
        let mut whole = answer(content);
        whole["choices"][0]["finish_reason"] = json!("length");
        whole
    };
    let refused = |key: &str, value: &str| {
        let mut whole = answer("8");
        whole["choices"][0][key] = json!(value);
        whole["choices"][0]["message"]["refusal"] = match key {
            "refusal" => json!(value),
            _ => Value::Null,
        };
        whole
    };
    let mut silent = answer("");
    silent["choices"][0]["message"]["content"] = Value::Null;
    let cases = [
        (answer("I like it."), "there is no number in `I like it.`"),
        (answer("1 to 10: 7"), "more than one number"),
        (answer("11"), "not from 0 to 10"),
        (answer("NaN"), "there is no number"),
        (cut("The score is 1"), "cut off at `max_tokens`"),
        (refused("refusal", "I can't help"), "refused: `I can't help`"),
        (refused("finish_reason", "content_filter"), "filter"),
        (silent, "has no text"),
        (json!({ "choices": [] }), "`choices` of one answer"),
        (
            json!({ "choices": [answer("1")["choices"][0], answer("2")["choices"][0]] }),
            "of one answer",
        ),
        (json!({ "choices": [{ "text": "8" }] }), "without a `message`"),
        (
            json!({ "error": { "message": "no such model" } }),
            "no such model",
        ),
    ];
    for (body, words) in cases {
        let shown = body.to_string();
        let server = Server::start(move |_| Reply::ok(&body));
        let (index, problem) = failure(&judge(numbers(&[&server])), &images(1));
        assert_eq!(index, 0);
        assert!(problem.contains(words), "{shown}: {problem}");
        assert_eq!(server.received().len(), 1, "{shown}: nothing is asked again");
    }
}

#[test]
fn probabilities_that_are_missing_or_none_are_errors() {
    let with = |key: &str, value: Value| {
        let mut whole = listed(&[("Yes", 0.6), ("No", 0.4)]);
        whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0][key] = value;
        whole
    };
    let cases = [
        (answer("Yes"), "without `logprobs`"),
        (
            json!({ "choices": [{ "message": { "content": "Yes" }, "logprobs": { "content": [] } }] }),
            "without `logprobs`",
        ),
        (with("logprob", Value::Null), "no token with the logarithm"),
        (with("logprob", json!("-0.5")), "no token with the logarithm"),
        (with("logprob", json!(0.5)), "no token with the logarithm"),
        (with("token", json!(17)), "no token with the logarithm"),
        (
            listed(&[("The", 0.9), ("Yes", 0.05), ("No", 0.05)]),
            "`The` 0.900",
        ),
        (listed(&[("Yes", 0.6), ("It", 0.2)]), "raise `top_logprobs`"),
        (listed(&[("Yes", 0.9), ("No", 0.9)]), "1.800 together"),
    ];
    for (body, words) in cases {
        let shown = body.to_string();
        let server = Server::start(move |_| Reply::ok(&body));
        let (_, problem) = failure(&judge(settings(&[&server])), &images(1));
        assert!(problem.contains(words), "{shown}: {problem}");
    }
    let nan = listed(&[("Yes", 0.6), ("No", 0.4)])
        .to_string()
        .replacen("-0.", "NaN", 1);
    let server = Server::start(move |_| Reply::ok(&nan));
    let (_, problem) = failure(&judge(settings(&[&server])), &images(1));
    assert!(problem.contains("NaN"), "{problem}");
}

#[test]
fn a_bad_answer_is_asked_for_again_only_where_another_seed_may_help() {
    let server = || {
        Server::start(|received| match received.body["seed"].as_u64() {
            Some(2) => Reply::ok(answer("7")),
            _ => Reply::ok(answer("hard to say")),
        })
    };
    let again = |server: &Server, temperature: f64, retries: u32| VlmJudgeSettings {
        bad_answers: BadAnswers::AskAgain,
        temperature,
        retries,
        ..numbers(&[server])
    };
    let helped = server();
    assert_eq!(
        judge(again(&helped, 1.0, 2)).score(&samples(&images(1))),
        Ok(vec![0.7])
    );
    assert_eq!(helped.received().len(), 3);
    let given_up = server();
    let (_, problem) = failure(&judge(again(&given_up, 1.0, 1)), &images(1));
    assert!(
        problem.contains("2 answers") && problem.contains("hard to say"),
        "{problem}"
    );
    let greedy = server();
    let (_, problem) = failure(&judge(again(&greedy, 0.0, 5)), &images(1));
    assert!(
        problem.contains("1 answer ") && greedy.received().len() == 1,
        "{problem}"
    );
}

#[test]
fn a_server_that_dies_is_replaced_and_one_that_is_busy_is_asked_again() {
    let made = images(9);
    let mut count = 0;
    let dying = Server::start(move |received| {
        count += 1;
        match count {
            1 => right(received),
            2 => Reply::Cut(listed(&[("Yes", 1.0)]).to_string(), 20),
            _ => Reply::Close,
        }
    });
    let healthy = Server::start(right);
    let reward = judge(settings(&[&dying, &healthy]));
    close(
        &reward.score(&samples(&made)).unwrap(),
        &brightnesses(&made),
        1e-6,
    );

    let mut busy = 2;
    let server = Server::start(move |received| {
        busy -= 1;
        if busy >= 0 {
            return Reply::Whole(429, "", "slow down".into());
        }
        right(received)
    });
    let reward = judge(VlmJudgeSettings {
        retries: 2,
        requests_per_server: 1,
        ..settings(&[&server])
    });
    close(
        &reward.score(&samples(&made)).unwrap(),
        &brightnesses(&made),
        1e-6,
    );
    assert_eq!(server.received().len(), 11);
}

#[test]
fn a_time_out_and_statuses_are_as_those_of_other_servers() {
    let silent = Server::start(|_| Reply::Silence(Duration::from_secs(30)));
    let reward = judge(VlmJudgeSettings {
        timeout_s: 0.2,
        ..settings(&[&silent])
    });
    let (_, problem) = failure(&reward, &images(1));
    assert!(problem.contains("within `timeout_s`"), "{problem}");
    for (status, attempts, words) in [
        (400, 1, "status 400"),
        (401, 1, "`api_key_from`"),
        (404, 1, "`/v1`"),
        (429, 2, "status 429"),
        (503, 2, "status 503"),
    ] {
        let server = Server::start(move |_| Reply::Whole(status, "", "what went wrong".into()));
        let (_, problem) = failure(&judge(settings(&[&server])), &images(1));
        assert!(
            problem.contains(words) && problem.contains("what went wrong"),
            "{problem}"
        );
        assert_eq!(server.received().len(), attempts, "status {status}");
    }
}

#[test]
fn the_key_goes_to_the_servers_and_into_no_text() {
    let server = Server::start(|received| Reply::ok(answer(&format!("key {:?}", received.authorization))));
    let settings = VlmJudgeSettings {
        api_key_from: Some("JUDGE_KEY".into()),
        ..numbers(&[&server])
    };
    let reward = VlmJudge::new(settings.clone(), &|name| {
        (name == "JUDGE_KEY").then(|| "sesame7".into())
    })
    .unwrap();
    let (_, problem) = failure(&reward, &images(1));
    assert_eq!(
        server.received()[0].authorization.as_deref(),
        Some("Bearer sesame7")
    );
    assert!(
        problem.contains("no number") && !problem.contains("sesame"),
        "{problem}"
    );
    assert!(!format!("{reward:?}").contains("sesame"));
    let missing = VlmJudge::new(settings, &|_| None).unwrap_err().to_string();
    assert!(missing.contains("JUDGE_KEY"), "{missing}");
}

#[test]
fn scores_and_errors_are_the_same_for_any_number_of_threads_and_requests() {
    let made = images(37);
    let server = Server::start(right);
    let bad = Server::start(|received| {
        let question = received.body["messages"].to_string();
        let is_bad = question.contains("no. 21") || question.contains("no. 30");
        if is_bad {
            Reply::ok(answer("No"))
        } else {
            right(received)
        }
    });
    let batch = || {
        let sample = |it: &Made| Sample {
            image: it.image.clone(),
            frames: vec![],
            prompt: it.prompt.clone(),
            group: 0,
        };
        made.iter().map(sample).collect::<Vec<_>>()
    };
    let mut first = None;
    for (threads, requests_per_server) in [(1, 1), (2, 5), (7, 64)] {
        let scored = |server: &Server| {
            let reward: Arc<dyn Reward> = Arc::new(judge(VlmJudgeSettings {
                requests_per_server,
                ..settings(&[server, server])
            }));
            let workers = RewardWorkers::new(vec![NamedReward::from(reward)], threads).unwrap();
            workers.submit(batch(), 1).unwrap().wait()
        };
        let scores = scored(&server).unwrap().rewards.remove(0).values;
        close(&scores, &brightnesses(&made), 1e-6);
        assert_eq!(
            *first.get_or_insert_with(|| scores.clone()),
            scores,
            "{threads} threads"
        );
        let words = scored(&bad).unwrap_err().to_string();
        assert!(words.contains("on sample 21 "), "{threads} threads: {words}");
    }
}

#[test]
fn a_config_builds_it_and_wrong_parameters_are_named() {
    let mut registry = RewardRegistry::new();
    flow_rewards_remote::register(&mut registry).unwrap();
    let build = |more: Value| {
        let mut params =
            json!({ "servers": ["http://localhost:8000/v1"], "model": "qwen", "question": "{prompt}?" });
        let object = params.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        let built = registry.build("vlm-judge", object, Path::new("."));
        built
            .map(|reward| reward.range())
            .map_err(|error| error.to_string())
    };
    assert_eq!(build(json!({})), Ok((0.0, 1.0)));
    assert_eq!(
        build(json!({ "answers": { "bad": 1, "good": 5 } })),
        Ok((1.0, 5.0))
    );
    assert_eq!(build(json!({ "compare": true, "opponents": 4 })), Ok((0.0, 1.0)));
    assert_eq!(
        build(json!({ "mode": "number", "range": [1, 5] })),
        Ok((0.0, 1.0))
    );
    for (params, words) in [
        (json!({ "servers": [] }), "servers"),
        (json!({ "servers": ["localhost"] }), "http://"),
        (json!({ "model": "" }), "model"),
        (json!({ "question": "{promt}" }), "{promt}"),
        (json!({ "system": "{" }), "system"),
        (json!({ "mode": "text" }), "mode"),
        (json!({ "answers": { "Yes": 1 } }), "answers"),
        (json!({ "answers": { "Yes": 1, "yes ": 0 } }), "upper case"),
        (json!({ "answers": { "Yes": 1, "No": 1 } }), "different values"),
        (json!({ "answers": { "Yes": 1, " ": 0 } }), "no letters"),
        (
            json!({ "compare": true, "answers": { "bad": 1, "good": 5 } }),
            "the second image is better",
        ),
        (json!({ "opponents": 2000 }), "opponents"),
        (json!({ "range": [5, 5] }), "range"),
        (json!({ "samples": 0 }), "samples"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "timeout_s": 0 }), "timeout_s"),
        (
            json!({ "api_key_from": "NO_SUCH_VARIABLE_HERE" }),
            "NO_SUCH_VARIABLE_HERE",
        ),
        (
            json!({ "api_key_from": "A=B" }),
            "no name of an environment variable",
        ),
        (json!({ "extra_body": { "seed": 1 } }), "extra_body"),
        (json!({ "number": 1 }), "number"),
    ] {
        let problem = build(params.clone()).unwrap_err();
        assert!(problem.contains(words), "{params}: {problem}");
    }
    // What stands in the settings of a library's user is looked at, too.
    let mut settings = VlmJudgeSettings::new(["http://localhost:8000/v1"], "qwen", "?");
    settings.answers = BTreeMap::from([("Yes".into(), f64::NAN), ("No".into(), 0.0)]);
    assert!(VlmJudge::new(settings, &|_| None).is_err());
}
