//! What a run has left decides how it goes on, whichever file is missing.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use flow_report::*;
use serde_json::json;

/// A run of four steps with checkpoints of the last two, as a trainer leaves it.
fn run(root: &Path, name: &str) -> RunStamp {
    let run = RunDirectory::open(root, name, OnExists::Error).unwrap();
    let manifest = Manifest::new(name, vec![], json!({"seed": 1}), root);
    run.write_manifest(&manifest).unwrap();
    let stamp = manifest.stamp();
    let mut metrics = run.metrics(MetricsStart::Fresh).unwrap();
    let mut timing = run.timing().unwrap();
    let mut checkpoints = run.checkpoints(NonZeroUsize::new(2).unwrap());
    for step in 1..=4 {
        metrics
            .append(&MetricRecord::new(step, "train").with("loss", 0.5))
            .unwrap();
        timing
            .append(&MetricRecord::new(step, "timing").with("rollout_s", 1.0))
            .unwrap();
        let meta = json!({"run": stamp, "metrics": metrics.position(), "timing": timing.position()});
        let mut writer = CheckpointWriter::new(step, meta);
        writer.section("weights", vec![step as u8]).unwrap();
        checkpoints.save(&writer).unwrap();
        timing
            .append(&MetricRecord::new(step, CHECKPOINT_RECORD).with("checkpoint_s", 0.5))
            .unwrap();
    }
    fs::write(run.weights().join("final.safetensors"), "weights").unwrap();
    stamp
}

/// How the run of this name goes on.
fn continuation(root: &Path, name: &str) -> Result<Continuation> {
    RunDirectory::resume(root, name)?.continuation()
}

#[test]
fn no_single_lost_file_makes_a_run_look_like_one_that_never_began() {
    let losses: [&[&str]; 8] = [
        &[],
        &["run.json"],
        &["run.lock"],
        &["metrics.jsonl", "timing.jsonl"],
        &["run.json", "run.lock"],
        &[
            "run.json",
            "metrics.jsonl",
            "timing.jsonl",
            "run.lock",
            "weights",
            "events",
            "images",
        ],
        &["checkpoints/step-000004.ckpt"],
        &["weights", "run.json", "summary.json"],
    ];
    for lost in losses {
        let root = tempfile::tempdir().unwrap();
        run(root.path(), "a");
        for name in lost {
            let path = root.path().join("a").join(name);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else if path.exists() {
                fs::remove_file(path).unwrap();
            }
        }
        let directory = RunDirectory::resume(root.path(), "a").unwrap();
        assert_eq!(directory.opened(), &Opened::Resumed, "{lost:?}");
        assert_eq!(
            directory.continuation().unwrap(),
            Continuation::FromCheckpoint,
            "{lost:?}"
        );
        // Nor can it be begun over.
        drop(directory);
        let error = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap_err();
        assert!(
            matches!(error, ReportError::RunExists { .. }),
            "{lost:?}: {error}"
        );
    }
}

#[test]
fn a_run_whose_checkpoints_are_gone_is_not_begun_again() {
    for also_lost in [
        &[][..],
        &["run.json"],
        &["timing.jsonl"],
        &["weights"],
        &["run.json", "timing.jsonl", "weights"],
    ] {
        let root = tempfile::tempdir().unwrap();
        run(root.path(), "a");
        let folder = root.path().join("a");
        fs::remove_dir_all(folder.join("checkpoints")).unwrap();
        for name in also_lost {
            let path = folder.join(name);
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .unwrap();
        }
        let text = continuation(root.path(), "a").unwrap_err().to_string();
        for part in [
            "4 iteration(s)",
            "no checkpoint",
            "--on-exists overwrite",
            "--resume PATH",
        ] {
            assert!(text.contains(part), "{also_lost:?}: {part} is missing in {text}");
        }
    }
}

#[test]
fn checkpoints_under_another_name_are_found_and_named() {
    for (from, to, named) in [
        ("checkpoints", "ckpts", "ckpts/step-000004.ckpt"),
        (
            "checkpoints/step-000004.ckpt",
            "checkpoints/last.ckpt",
            "checkpoints/last.ckpt",
        ),
        ("checkpoints/step-000004.ckpt", "000004.ckpt", "000004.ckpt"),
    ] {
        let root = tempfile::tempdir().unwrap();
        run(root.path(), "a");
        let folder = root.path().join("a");
        fs::rename(folder.join(from), folder.join(to)).unwrap();
        let older = folder.join("checkpoints/step-000003.ckpt");
        if older.exists() {
            fs::remove_file(older).unwrap();
        }
        let text = continuation(root.path(), "a").unwrap_err().to_string();
        assert!(text.contains(named) && text.contains("--resume "), "{text}");
    }
}

#[test]
fn checkpoints_of_two_runs_in_one_folder_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let stamps = [run(root.path(), "a"), run(root.path(), "b")];
    assert_ne!(stamps[0].id, stamps[1].id);
    let (a, b) = (root.path().join("a"), root.path().join("b"));
    fs::copy(
        b.join("checkpoints/step-000004.ckpt"),
        a.join("checkpoints/step-000006.ckpt"),
    )
    .unwrap();
    for lost in ["", "run.json"] {
        if !lost.is_empty() {
            fs::remove_file(a.join(lost)).unwrap();
        }
        let text = continuation(root.path(), "a").unwrap_err().to_string();
        for part in [stamps[0].id.short(), stamps[1].id.short(), "step 3, 4", "2 runs"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        // What is proposed is not refused: with a manifest, a checkpoint of its run; without, any.
        let proposed = if lost.is_empty() { "4" } else { "6" };
        let proposed = format!("checkpoints/step-00000{proposed}.ckpt`");
        assert!(text.contains(&proposed), "{proposed} is missing in {text}");
        let id = Traces::of(&a).unwrap().run_id().cloned();
        assert_eq!(id, lost.is_empty().then(|| stamps[0].id.clone()));
    }
    // One run's checkpoints beside another run's manifest.
    fs::remove_dir_all(b.join("checkpoints")).unwrap();
    fs::remove_file(a.join("checkpoints/step-000006.ckpt")).unwrap();
    fs::rename(a.join("checkpoints"), b.join("checkpoints")).unwrap();
    let text = continuation(root.path(), "b").unwrap_err().to_string();
    assert!(text.contains("the one of `run.json`"), "{text}");
    assert!(text.contains("step-000004.ckpt --set run.name=NAME`"), "{text}");
}

#[test]
fn a_run_that_was_killed_before_it_saved_anything_begins_again_and_keeps_what_it_wrote() {
    let root = tempfile::tempdir().unwrap();
    let directory = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    let manifest = Manifest::new("a", vec![], json!({}), root.path());
    directory.write_manifest(&manifest).unwrap();
    let mut metrics = directory.metrics(MetricsStart::Fresh).unwrap();
    metrics
        .append(&MetricRecord::new(1, "train").with("loss", 0.5))
        .unwrap();
    directory
        .timing()
        .unwrap()
        .append(&MetricRecord::new(1, "timing").with("rollout_s", 1.0))
        .unwrap();
    drop(directory);
    let directory = RunDirectory::resume(root.path(), "a").unwrap();
    assert_eq!(directory.continuation().unwrap(), Continuation::FromStart);
    assert_eq!(directory.supersede_all().unwrap().len(), 3);
    for name in ["run.json", "metrics.jsonl", "timing.jsonl"] {
        assert!(!directory.path().join(name).exists(), "{name}");
        assert!(directory.path().join("superseded").join(name).exists(), "{name}");
    }
}

#[test]
fn a_lost_or_other_log_stops_nobody_and_is_kept() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a");
    let directory = RunDirectory::resume(root.path(), "a").unwrap();
    let latest = directory
        .checkpoints(NonZeroUsize::MIN)
        .latest()
        .unwrap()
        .found
        .unwrap();
    let position = |key: &str| serde_json::from_value::<MetricsPosition>(latest.meta()[key].clone()).unwrap();
    let timing = directory.continue_timing(Some(position("timing"))).unwrap();
    let kinds: Vec<&str> = timing.after.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(
        (kinds.as_slice(), timing.notices.len()),
        (&[CHECKPOINT_RECORD][..], 0)
    );
    let whole = directory.continue_metrics(position("metrics"), 4).unwrap();
    assert!(!whole.lost && whole.notices.is_empty());
    drop((timing, whole));

    for name in ["metrics.jsonl", "timing.jsonl"] {
        fs::write(directory.path().join(name), "{\"step\":9,\"kind\":\"train\"}\n").unwrap();
    }
    let timing = directory.continue_timing(Some(position("timing"))).unwrap();
    assert!(
        timing.after.is_empty() && timing.notices[0].contains("superseded"),
        "{:?}",
        timing.notices
    );
    let mut other = directory.continue_metrics(position("metrics"), 4).unwrap();
    assert!(
        other.lost && other.notices[0].contains("superseded"),
        "{:?}",
        other.notices
    );
    other.writer.append(&MetricRecord::new(5, "train")).unwrap();
    let aside = fs::read_to_string(directory.path().join("superseded/metrics.jsonl")).unwrap();
    assert!(aside.contains("\"step\":9"));

    fs::remove_file(directory.path().join("metrics.jsonl")).unwrap();
    fs::create_dir(directory.path().join("metrics.jsonl")).unwrap();
    let folder = directory.continue_metrics(position("metrics"), 4).unwrap();
    assert!(
        folder.lost && folder.notices[0].contains("is a folder"),
        "{:?}",
        folder.notices
    );
    drop(folder);

    fs::remove_file(directory.path().join("metrics.jsonl")).unwrap();
    let missing = directory.continue_metrics(position("metrics"), 4).unwrap();
    assert!(
        missing.lost && missing.notices[0].contains("after iteration 4"),
        "{:?}",
        missing.notices
    );
}

#[test]
fn a_damaged_manifest_is_told_from_a_missing_and_from_a_newer_one() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a");
    let path = root.path().join("a/run.json");
    fs::write(&path, "{\"manif").unwrap();
    let traces = Traces::of(&root.path().join("a")).unwrap();
    assert!(matches!(traces.manifest, ManifestFound::Damaged(_)));
    assert!(traces.run_id().is_some(), "the checkpoints say it");
    fs::write(&path, "{\"manifest_version\": 99}").unwrap();
    assert!(Traces::of(&root.path().join("a")).is_err());
}

#[test]
fn weights_of_an_earlier_process_are_kept_unless_the_same_are_written_again() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "a");
    let directory = RunDirectory::resume(root.path(), "a").unwrap();
    let folder = directory.weights();
    fs::create_dir(folder.join("adapter")).unwrap();
    fs::write(folder.join("adapter/a.json"), "1").unwrap();
    let write = |adapter: &str| {
        let moved = directory.supersede_weights().unwrap();
        fs::write(folder.join("final.safetensors"), "weights").unwrap();
        fs::create_dir(folder.join("adapter")).unwrap();
        fs::write(folder.join("adapter/a.json"), adapter).unwrap();
        directory.drop_same(&moved).unwrap();
    };
    write("1");
    assert!(!folder.join("superseded").exists());
    write("2");
    let kept: Vec<_> = fs::read_dir(folder.join("superseded")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        fs::read_to_string(folder.join("superseded/adapter/a.json")).unwrap(),
        "1"
    );
}
