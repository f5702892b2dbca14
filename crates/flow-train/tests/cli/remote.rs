//! Runs whose rewards are scored by servers over loopback, the example in Python. Servers are killed in the middle; no byte changes.

use crate::distributed::{arguments, left};
use crate::support::{Place, contains};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../flow-rewards-remote/examples/reward_server.py"
);

/// Iterations of a run, so many that one is far from its end when three are done.
const STEPS: usize = 40;

/// Whether there is a Python; a test that leaves something out says so.
fn has_python() -> bool {
    let version = Command::new("python3").arg("--version").output();
    let has = version.is_ok_and(|it| it.status.success());
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
            .args([EXAMPLE, "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
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

/// `rewards=[…]`, scored by these servers.
fn rewards(servers: &[&Server]) -> String {
    let urls: Vec<String> = servers
        .iter()
        .map(|server| format!("\"{}\"", server.url))
        .collect();
    format!(
        "rewards=[{{ kind = \"remote\", name = \"brightness\", servers = [{}], batch = 3, retries = 1, backoff_s = 0.01 }}]",
        urls.join(", ")
    )
}

/// `--set` before each of the values, for a run of [`STEPS`] iterations.
fn set(values: &[&str]) -> Vec<String> {
    let steps = format!("run.steps={STEPS}");
    let values = [&[steps.as_str()][..], values].concat();
    let words = values.iter().flat_map(|value| ["--set", *value]);
    words.map(str::to_owned).collect()
}

/// The arguments of a run on so many processes.
fn run<'a>(processes: &'a str, set: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let mut words: Vec<&str> = set.iter().map(String::as_str).collect();
    words.extend(more);
    arguments(processes, &words)
}

/// The run, once three of its iterations are done, and what it said until then.
fn begun(place: &Place, arguments: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
    let mut child = place
        .command(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains(&format!("iteration 3/{STEPS}")) {
        assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
    }
    (child, lines, said)
}

#[test]
fn a_reward_server_that_is_killed_in_the_middle_of_a_run_changes_no_byte() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let (mut first, second) = (Server::start(), Server::start());
    let rewards = rewards(&[&first, &second]);
    let set = set(&[rewards.as_str(), "evaluation.every=20"]);
    place.succeed(&run("1", &set, &["--set", "run.name=unharmed", "--quiet"]));
    let unharmed = left(&place, "unharmed");
    assert!(unharmed.0.contains("reward/brightness"), "{}", unharmed.0);

    let arguments = run("1", &set, &["--set", "run.name=harmed"]);
    let (mut child, mut lines, mut said) = begun(&place, &arguments);
    first.kill();
    lines.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(left(&place, "harmed") == unharmed, "{said}");
}

#[test]
fn a_run_whose_only_server_is_killed_stops_with_a_checkpoint_and_goes_on_to_the_same_bytes() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let other = Server::start();
    // Nothing is saved in between but what rewards that fail leave.
    let rare = ["evaluation.every=40", "checkpoints.every=1000"];
    let with_other = rewards(&[&other]);
    let unharmed = set(&[&[with_other.as_str()][..], &rare].concat());
    place.succeed(&run("1", &unharmed, &["--set", "run.name=unharmed", "--quiet"]));
    let whole = left(&place, "unharmed");

    for processes in ["1", "2"] {
        let name = format!("run.name=harmed-{processes}");
        let mut only = Server::start();
        let with_only = rewards(&[&only]);
        let harmed = set(&[&[with_only.as_str()][..], &rare].concat());
        let arguments = run(processes, &harmed, &["--set", name.as_str()]);
        let (mut child, mut lines, mut said) = begun(&place, &arguments);
        only.kill();
        lines.read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
        contains(
            &said,
            &["brightness", "no scores after", "is saved, and `--resume latest`"],
        );
        let checkpoints = place.path(format!("runs/harmed-{processes}/checkpoints"));
        // That of the first evaluation, and the one of the iteration before the failure.
        assert_eq!(std::fs::read_dir(checkpoints).unwrap().count(), 2, "{said}");

        // On the servers that there are.
        let resumed = run(
            processes,
            &unharmed,
            &["--set", name.as_str(), "--resume", "latest", "--quiet"],
        );
        place.succeed(&resumed);
        assert!(
            left(&place, &format!("harmed-{processes}")) == whole,
            "{processes} processes"
        );
    }
}
