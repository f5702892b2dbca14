//! One run on two processes that share no disk: which of them has the checkpoint, and who decides.

use super::distributed::{arguments, free_port, left, start_on_machine};
use super::support::{Outcome, Place, contains};
use std::process::Child;
use std::thread;

/// A folder for each of two processes, as on machines that share no disk.
fn own_disks() -> [Place; 2] {
    let first = Place::new();
    let second = Place::bare();
    std::fs::copy(first.path("tiny.safetensors"), second.path("tiny.safetensors")).unwrap();
    [first, second]
}

/// A run of two processes, each in its own folder; what they left.
fn on_own_disks(places: &[Place; 2], more: &[&str]) -> [Outcome; 2] {
    let port = free_port();
    let started: Vec<Child> = (0..2)
        .map(|rank| start_on_machine(&places[rank], (rank, 0, 2), &port, more))
        .collect();
    let ended = started.into_iter().map(|child| {
        // Both must be read at the same time: one that waits for the other says nothing more.
        thread::spawn(move || Outcome::of(child.wait_with_output().unwrap()))
    });
    let ended: Vec<_> = ended.collect();
    let mut outcomes = ended.into_iter().map(|outcome| outcome.join().unwrap());
    [outcomes.next().unwrap(), outcomes.next().unwrap()]
}

#[test]
fn a_run_goes_on_where_only_the_first_process_has_the_checkpoint_and_leaves_nothing_on_other_disks() {
    let places = own_disks();
    places[0].succeed(&arguments("1", &["--quiet", "--set", "run.name=alone"]));
    let before = places[1].files();
    for more in [
        &["--set", "run.steps=1"][..],
        &["--set", "run.steps=2", "--resume", "latest"],
    ] {
        let [first, second] = on_own_disks(&places, more);
        assert_eq!(first.code, Some(0), "{first:?}");
        assert_eq!(second.code, Some(0), "{second:?}");
        let is_resumed = more.len() > 2;
        assert_eq!(
            first.stderr.contains("was sent to 1 of 2 processes"),
            is_resumed,
            "{}",
            first.stderr
        );
    }
    assert!(left(&places[0], "tiny") == left(&places[0], "alone"));
    assert_eq!(places[1].files(), before);
    assert!(!places[1].path("runs").exists());
}

#[test]
fn a_checkpoint_on_the_disk_of_another_process_is_named_and_the_first_one_decides() {
    let places = own_disks();
    let [first, second] = on_own_disks(&places, &["--set", "run.steps=2"]);
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    // As if the first process had run on the other machine, and been ahead.
    let [own, other] = [0, 1].map(|index| places[index].path("runs/tiny/checkpoints"));
    std::fs::create_dir_all(&other).unwrap();
    std::fs::copy(own.join("step-000002.ckpt"), other.join("step-000002.ckpt")).unwrap();
    std::fs::remove_file(own.join("step-000002.ckpt")).unwrap();
    let goes_on = ["--set", "run.steps=3", "--on-exists", "resume"];
    let [first, second] = on_own_disks(&places, &goes_on);
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    contains(
        &first.stderr,
        &[
            "all go on with that of process 0, after iteration 1",
            "process 1 sees",
            "iteration 2",
        ],
    );
    // Where the first process has none, it does not begin anew beside a run that is there.
    let moved = places[0].path("runs/elsewhere");
    std::fs::rename(places[0].path("runs/tiny"), moved).unwrap();
    let [first, second] = on_own_disks(&places, &goes_on);
    assert_ne!(first.code, Some(0));
    assert_ne!(second.code, Some(0));
    contains(
        &first.stderr,
        &["process 1 sees the checkpoint", "of iteration 2"],
    );
    contains(
        &second.stderr,
        &["rank 0 stopped", "process 1 sees the checkpoint"],
    );
}

#[test]
fn a_process_that_cannot_keep_the_checkpoint_ends_the_run_with_its_words() {
    let places = own_disks();
    let [first, second] = on_own_disks(&places, &["--set", "run.steps=1"]);
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    // No folder can be made below a file.
    std::fs::write(places[1].path("runs"), "").unwrap();
    let [first, second] = on_own_disks(&places, &["--set", "run.steps=2", "--resume", "latest"]);
    assert_eq!(
        (first.code, second.code),
        (Some(1), Some(1)),
        "{first:?} {second:?}"
    );
    contains(&second.stderr, &["checkpoint", "received"]);
    contains(&first.stderr, &["rank 1 stopped", "received"]);
    // What was saved is whole.
    places[0].succeed(&arguments(
        "1",
        &["--quiet", "--set", "run.steps=2", "--resume", "latest"],
    ));
}
