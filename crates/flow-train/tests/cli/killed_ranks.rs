//! Several processes of which one is killed, whichever and at any moment, or hangs: the others end, and the run goes on to the same bytes.
#![cfg(target_os = "linux")]

use super::distributed::{arguments, free_port, left, start_on_machine};
use super::resume::{fraction, still_running};
use super::support::{Outcome, Place, contains};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often each of four ranks is killed.
const EACH: usize = 20;

/// Less than `launch` waits before it asks processes to end that do not end by themselves.
const SOON: Duration = Duration::from_secs(15);

/// The process of a rank among those that `launch` started.
fn process_of(launch: u32, rank: usize) -> Option<u32> {
    let wanted = format!("RANK={rank}");
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let folder = entry.ok()?.path();
        let process: u32 = folder.file_name()?.to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(folder.join("stat")).ok()?;
        // Behind the name, which ends with a bracket: the state, and who started it.
        let rest = status.rsplit(')').next()?;
        let parent: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
        let variables = std::fs::read(folder.join("environ")).ok()?;
        let mut variables = variables.split(|byte| *byte == 0);
        (parent == launch && variables.any(|variable| variable == wanted.as_bytes())).then_some(process)
    })
}

/// Whether a process was there to get the signal.
fn signal(process: u32, signal: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args([signal, &process.to_string()]).stderr(Stdio::null());
    kill.status().unwrap().success()
}

#[test]
fn whichever_process_is_killed_at_any_moment_the_others_end_and_the_run_goes_on_to_the_same_bytes() {
    let place = Place::new();
    let settings = [
        "--quiet",
        "--set",
        "run.steps=4",
        "--set",
        "evaluation.every=0",
        "--set",
    ];
    let begun = Instant::now();
    place.succeed(&arguments("4", &[&settings[..], &["run.name=whole"]].concat()));
    let length = begun.elapsed();
    let whole = left(&place, "whole");
    let (mut killed, mut starts, mut runs) = ([0; 4], 0u32, 0u32);
    while killed.iter().any(|kills| *kills < EACH) {
        runs += 1;
        assert!(runs < 400, "kills of each rank: {killed:?}");
        let name = format!("killed-{runs}");
        let setting = format!("run.name={name}");
        let more = [&settings[..], &[setting.as_str(), "--on-exists", "resume"]].concat();
        loop {
            // Each start has another number of processes than the one before.
            starts += 1;
            let processes = if starts % 2 == 1 { 2 } else { 4 };
            let launch = place
                .command(&arguments(&processes.to_string(), &more))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let outcome = match still_running(launch, length.mul_f64(fraction(starts))) {
                Err(outcome) => outcome,
                Ok(launch) => {
                    let rank = (0..processes).min_by_key(|rank| killed[*rank]).unwrap();
                    let is_hit =
                        process_of(launch.id(), rank).is_some_and(|process| signal(process, "-KILL"));
                    let since = Instant::now();
                    let outcome = Outcome::of(launch.wait_with_output().unwrap());
                    if is_hit && outcome.code != Some(0) {
                        assert!(since.elapsed() < SOON, "rank {rank} of {processes}: {outcome:#?}");
                        killed[rank] += 1;
                        continue;
                    }
                    outcome
                }
            };
            assert_eq!(
                outcome.code,
                Some(0),
                "kills of each rank: {killed:?}, {outcome:#?}"
            );
            break;
        }
        assert!(
            left(&place, &name) == whole,
            "run {runs}; kills of each rank: {killed:?}"
        );
    }
}

#[test]
fn a_process_that_hangs_is_named_when_the_time_is_over() {
    let place = Place::new();
    let port = free_port();
    let more = [
        "--quiet",
        "--set",
        "run.steps=2000",
        "--set",
        "evaluation.every=0",
        "--set",
        "distributed.timeout_s=10",
    ];
    let [first, mut second] = [0, 1].map(|rank| start_on_machine(&place, (rank, rank, 2), &port, &more));
    let until = Instant::now() + Duration::from_secs(60);
    let metrics = place.path("runs/tiny/metrics.jsonl");
    while std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 2 {
        assert!(Instant::now() < until, "the run did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(signal(second.id(), "-STOP"));
    let since = Instant::now();
    let Outcome { code, stderr, .. } = Outcome::of(first.wait_with_output().unwrap());
    // One that is stopped ends by nothing else.
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
    assert_eq!(code, Some(1), "{stderr}");
    contains(&stderr, &["for rank 1 of 2", "distributed.timeout_s"]);
}
