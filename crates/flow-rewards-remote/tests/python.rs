//! The examples in Python, against the brightness of the pixels.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Made, brightnesses, images, samples, video};
use flow_rewards::Reward;
use flow_rewards_remote::{CommandReward, CommandSettings, RemoteReward, RemoteSettings};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Whether there is a Python; a test that leaves something out says so.
fn has_python() -> bool {
    let has = Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|it| it.status.success());
    if !has {
        test_support::skipped("there is no python3");
    }
    has
}

/// A server that is ended with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new("python3")
            .arg(examples().join("reward_server.py"))
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut url = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("a line");
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn made() -> Vec<Made> {
    let mut made = images(9);
    made.push(video(3, 2));
    made
}

#[test]
fn the_server_of_the_example_gives_the_brightness_and_may_be_killed() {
    if !has_python() {
        return;
    }
    let (mut first, second) = (Server::start(), Server::start());
    let settings = RemoteSettings {
        batch: 2,
        backoff_s: 0.01,
        ..RemoteSettings::new([&first.url, &second.url].map(String::as_str))
    };
    let reward = RemoteReward::new(settings, &|_| None).unwrap();
    let made = made();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    first.kill();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
}

#[test]
fn the_program_of_the_example_gives_the_brightness() {
    if !has_python() {
        return;
    }
    let settings = CommandSettings {
        processes: 2,
        ..CommandSettings::new(["python3", "reward_command.py"])
    };
    let reward = CommandReward::new(settings, &examples()).unwrap();
    let made = made();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
}
