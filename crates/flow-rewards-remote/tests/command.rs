//! The reward `command`, with small programs for the shell: right ones, crashing ones and wrong ones.
#![cfg(unix)]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Made, images, samples, video};
use flow_rewards::{Reward, RewardError, RewardRegistry};
use flow_rewards_remote::{CommandReward, CommandSettings};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Reads lines, and has the number of each in `id`.
const READ: &str = r#"while IFS= read -r line; do id=${line#'{"id":'}; id=${id%%,*}; "#;

/// Settings that do not wait, for a program of the shell that does `body` for each line.
fn settings(body: &str) -> CommandSettings {
    CommandSettings {
        backoff_s: 0.001,
        timeout_s: 20.0,
        start_timeout_s: 20.0,
        retries: 1,
        ..CommandSettings::new(["sh", "-c", &format!("{READ} {body}; done")])
    }
}

fn reward(settings: CommandSettings, base: &Path) -> CommandReward {
    CommandReward::new(settings, base).expect("settings in range")
}

/// Position and words of the error of a reward that must fail.
fn failure(reward: &CommandReward, made: &[Made]) -> (usize, String) {
    match reward.score(&samples(made)) {
        Err(RewardError::Sample { index, problem }) => (index, problem),
        other => panic!("no error of a sample: {other:?}"),
    }
}

/// Lines of a file that a program wrote.
fn lines(folder: &TempDir, name: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The score that a program gives: the number of the prompt, for the prompts are `… no. 7 …`.
const NUMBER: &str = r#"n=${line#*no. }; n=${n%%\\*}; printf '{"id":%s,"reward":%s}\n' "$id" "$n""#;

#[test]
fn a_program_is_started_once_and_gives_each_sample_its_score() {
    let folder = TempDir::new().unwrap();
    let made = images(13);
    let expected: Vec<f32> = (0..13).map(|number| number as f32).collect();
    let mut settings = settings(NUMBER);
    settings.command[2] = format!("echo started >> starts; {}", settings.command[2]);
    let reward = reward(settings, folder.path());
    assert_eq!(
        lines(&folder, "starts").len(),
        0,
        "nothing is started before it is needed"
    );
    for _ in 0..2 {
        assert_eq!(reward.score(&samples(&made)), Ok(expected.clone()));
    }
    assert_eq!(lines(&folder, "starts").len(), 1);
}

#[test]
fn scores_are_the_same_for_any_number_of_processes() {
    let folder = TempDir::new().unwrap();
    let made = images(29);
    let expected: Vec<f32> = (0..29).map(|number| number as f32).collect();
    for processes in [1, 2, 5, 64] {
        let reward = reward(
            CommandSettings {
                processes,
                ..settings(NUMBER)
            },
            folder.path(),
        );
        assert_eq!(
            reward.score(&samples(&made)),
            Ok(expected.clone()),
            "{processes} processes"
        );
    }
}

#[test]
fn a_line_has_prompt_metadata_and_files_that_are_gone_afterwards() {
    let folder = TempDir::new().unwrap();
    let keep = r#"printf '%s\n' "$line" >> lines; printf '{"id":%s,"reward":1}\n' "$id""#;
    let copy = r#"image=${line##*'"image":"'}; image=${image%%'"'*}; cp "$image" "copy$id.png"; ls -ld "${image%/*}" > mode; "#;
    let reward = reward(settings(&format!("{copy}{keep}")), folder.path());
    let mut made = images(2);
    made.push(video(3, 4));
    reward.score(&samples(&made)).unwrap();

    let lines: Vec<Value> = lines(&folder, "lines")
        .iter()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(lines[1]["prompt"], json!(made[1].prompt.text));
    assert_eq!(lines[1]["metadata"], json!({ "count": 1 }));
    assert!(lines[1].get("frames").is_none());
    assert_eq!(lines[2]["frames"].as_array().unwrap().len(), 3);
    assert_eq!(lines[2]["frames"][0], lines[2]["image"]);
    for (id, it) in made.iter().enumerate() {
        let png = image::open(folder.path().join(format!("copy{id}.png")))
            .unwrap()
            .to_rgb8();
        assert_eq!(png.into_raw(), it.image.to_rgb8());
    }
    let mode = fs::read_to_string(folder.path().join("mode")).unwrap();
    assert!(mode.starts_with("drwx------"), "{mode}");
    let private = Path::new(lines[0]["image"].as_str().unwrap()).parent().unwrap();
    assert_eq!(fs::read_dir(private).unwrap().count(), 0);
    drop(reward);
    assert!(!private.exists());
}

#[test]
fn a_crash_is_followed_by_a_restart_with_the_same_scores() {
    let folder = TempDir::new().unwrap();
    let made = images(9);
    let expected: Vec<f32> = (0..9).map(|number| number as f32).collect();
    // At the sixth sample the first process ends in the middle of its answer.
    let crash =
        r#"if [ "$id" = 5 ] && [ ! -e crashed ]; then touch crashed; printf '{"id":5,"rew'; exit 3; fi; "#;
    let mut settings = settings(&format!("{crash}{NUMBER}"));
    settings.command[2] = format!("echo started >> starts; {}", settings.command[2]);
    let reward = reward(settings, folder.path());
    assert_eq!(reward.score(&samples(&made)), Ok(expected));
    assert_eq!(lines(&folder, "starts").len(), 2);
}

#[test]
fn a_program_that_always_crashes_is_reported_with_its_last_words() {
    let folder = TempDir::new().unwrap();
    let crash = r#"i=0; while [ $i -lt 15 ]; do i=$((i+1)); echo "word $i" >&2; done; exit 7"#;
    let mut settings = settings(crash);
    settings.retries = 2;
    let reward = reward(settings, folder.path());
    let (index, problem) = failure(&reward, &images(3));
    assert_eq!(index, 0);
    for words in ["3 attempts", "`sh -c", "exit status: 7", "word 15", "word 6\n"] {
        assert!(problem.contains(words), "{words}: {problem}");
    }
    assert!(!problem.contains("word 5\n"), "{problem}");
}

#[test]
fn a_program_that_says_nothing_is_ended_after_the_time_out() {
    let folder = TempDir::new().unwrap();
    let silent = r#"echo $$ >> processes; if [ "$id" = 0 ]; then printf '{"id":0,"reward":1}\n'; else exec sleep 60; fi"#;
    let reward = reward(
        CommandSettings {
            timeout_s: 0.2,
            start_timeout_s: 0.4,
            ..settings(silent)
        },
        folder.path(),
    );
    let start = Instant::now();
    let (index, problem) = failure(&reward, &images(2));
    assert_eq!(index, 1);
    assert!(
        problem.contains("2 attempts") && problem.contains("did not answer within"),
        "{problem}"
    );
    assert!(start.elapsed() < Duration::from_secs(15));
    for process in lines(&folder, "processes") {
        assert!(
            !Path::new("/proc").join(&process).exists(),
            "process {process} still runs"
        );
    }
}

#[test]
fn answers_that_are_not_one_number_for_the_sample_are_refused_and_not_asked_for_again() {
    let folder = TempDir::new().unwrap();
    for (answer, words) in [
        (r#"echo loading the model"#, "messages go to standard error"),
        (r#"printf '{"id":%s,"reward":null}\n' $id"#, "null"),
        (r#"printf '{"id":%s,"reward":NaN}\n' $id"#, "NaN"),
        (r#"printf '{"id":%s,"reward":"1"}\n' $id"#, "no number"),
        (r#"printf '{"id":%s}\n' $id"#, "without a `reward`"),
        (r#"printf '{"id":77,"reward":1}\n'"#, "was asked for"),
        (r#"printf '{"id":%s,"error":"no face"}\n' $id"#, "no face"),
        (
            r#"head -c 70000 /dev/zero | tr '\0' x; echo"#,
            "more than 65536 bytes",
        ),
        (r#"echo '<html>'"#, "an HTML page"),
    ] {
        let mut settings = settings(answer);
        settings.command[2] = format!("rm -f starts; echo started >> starts; {}", settings.command[2]);
        let reward = reward(settings, folder.path());
        let (index, problem) = failure(&reward, &images(1));
        assert_eq!(index, 0);
        assert!(
            problem.contains("1 attempt:") && problem.contains(words),
            "{answer}: {problem}"
        );
    }
}

#[test]
fn a_line_too_many_is_refused() {
    let folder = TempDir::new().unwrap();
    let twice = r#"printf '{"id":%s,"reward":1}\n{"id":%s,"reward":2}\n' $id $id"#;
    let reward = reward(settings(twice), folder.path());
    let (index, problem) = failure(&reward, &images(2));
    assert_eq!(index, 1);
    assert!(
        problem.contains("nobody asked for") || problem.contains("was asked for"),
        "{problem}"
    );
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let folder = TempDir::new().unwrap();
    let reward = reward(CommandSettings::new(["./no-such-program"]), folder.path());
    let (_, problem) = failure(&reward, &images(1));
    assert!(
        problem.contains("no-such-program") && problem.contains("cannot be started"),
        "{problem}"
    );
}

#[test]
fn an_image_without_a_number_reaches_no_program() {
    let folder = TempDir::new().unwrap();
    let mut made = images(4);
    made[2].image.pixels_chw[0] = f32::INFINITY;
    let (index, problem) = failure(&reward(settings(NUMBER), folder.path()), &made);
    assert_eq!(index, 2);
    assert!(problem.contains("inf"), "{problem}");
}

#[test]
fn a_config_builds_it_and_wrong_parameters_are_named() {
    let mut registry = RewardRegistry::new();
    flow_rewards_remote::register(&mut registry).unwrap();
    let build = |params: Value| {
        let built = registry.build("command", params.as_object().unwrap(), Path::new("."));
        built.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(build(json!({ "command": ["scorer"] })), Ok(()));
    for (params, words) in [
        (json!({}), "command"),
        (json!({ "command": [] }), "command"),
        (json!({ "command": [""] }), "no program"),
        (json!({ "command": "scorer" }), "command"),
        (json!({ "command": ["scorer"], "processes": 0 }), "processes"),
        (
            json!({ "command": ["scorer"], "start_timeout_s": 0 }),
            "start_timeout_s",
        ),
    ] {
        let problem = build(params.clone()).unwrap_err();
        assert!(problem.contains(words), "{params}: {problem}");
    }
}
