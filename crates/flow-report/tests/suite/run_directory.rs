//! The run directory: policies, lock, leftovers, manifest.

use std::fs;
use std::path::Path;
use std::process::Command;

use flow_report::*;
use serde_json::json;

fn manifest(run: &RunDirectory) -> Manifest {
    let config = json!({"trainer": {"lr": 0.1, "layers": [1, 2]}, "seed": 3});
    Manifest::new(
        &run.name(),
        vec!["flow-train".into(), "train".into()],
        config,
        run.path(),
    )
}

/// A run with a manifest, closed again.
fn finished(root: &Path, name: &str) {
    let run = RunDirectory::open(root, name, OnExists::Error).unwrap();
    run.write_manifest(&manifest(&run)).unwrap();
}

#[test]
fn each_policy_does_what_it_says_with_a_run_that_exists() {
    let root = tempfile::tempdir().unwrap();
    let root = &root.path().join("deep").join("runs");
    finished(root, "a");
    fs::write(root.join("a/metrics.jsonl"), "old").unwrap();

    let error = RunDirectory::open(root, "a", OnExists::Error).unwrap_err();
    assert!(matches!(error, ReportError::RunExists { .. }), "{error}");
    for policy in ["resume", "new", "overwrite", "no checkpoint yet"] {
        assert!(error.to_string().contains(policy), "{error}");
    }

    let run = RunDirectory::open(root, "a", OnExists::Resume).unwrap();
    assert_eq!(run.opened(), &Opened::Resumed);
    drop(run);

    let names: Vec<String> = (0..2)
        .map(|_| RunDirectory::open(root, "a", OnExists::New).unwrap().name())
        .collect();
    assert_eq!(names, ["a-2", "a-3"]);

    for number in 1..=2 {
        let run = RunDirectory::open(root, "a", OnExists::Overwrite).unwrap();
        let moved_to = root.join(format!("a.replaced-{number}"));
        assert_eq!(
            run.opened(),
            &Opened::Replaced {
                moved_to: moved_to.clone()
            }
        );
        assert!(moved_to.join("run.json").is_file() && !run.path().join("metrics.jsonl").exists());
        run.write_manifest(&manifest(&run)).unwrap();
    }
    assert_eq!(
        fs::read_to_string(root.join("a.replaced-1/metrics.jsonl")).unwrap(),
        "old"
    );
}

#[test]
fn a_run_that_is_being_written_is_left_alone_under_every_policy() {
    let root = tempfile::tempdir().unwrap();
    let holder = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    holder.write_manifest(&manifest(&holder)).unwrap();
    for policy in [OnExists::Resume, OnExists::Overwrite] {
        let error = RunDirectory::open(root.path(), "a", policy).unwrap_err();
        assert!(matches!(error, ReportError::RunLocked { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }
    assert!(RunDirectory::resume(root.path(), "a").is_err());
    assert!(holder.path().join("run.json").is_file());
    drop(holder);
    RunDirectory::resume(root.path(), "a").unwrap();
}

#[test]
fn a_lock_that_a_killed_process_left_is_taken_over_with_a_notice() {
    let root = tempfile::tempdir().unwrap();
    finished(root.path(), "a");
    let left = r#"{"pid":4194305,"host":"elsewhere","since":"2026-01-01T00:00:00Z"}"#;
    fs::write(root.path().join("a").join(LOCK_FILE), left).unwrap();
    let run = RunDirectory::resume(root.path(), "a").unwrap();
    assert!(
        run.notices()[0].contains("process 4194305 on elsewhere"),
        "{:?}",
        run.notices()
    );
    drop(run);
    let run = RunDirectory::resume(root.path(), "a").unwrap();
    assert_eq!(
        run.notices(),
        [] as [&str; 0],
        "a lock that was given back is not stale"
    );
    drop(run);
    fs::write(root.path().join("a").join(LOCK_FILE), [0xFF, 0x00, 0x12]).unwrap();
    RunDirectory::resume(root.path(), "a").unwrap();
}

#[test]
fn leftovers_of_a_killed_process_are_removed_and_other_files_are_not() {
    let root = tempfile::tempdir().unwrap();
    finished(root.path(), "a");
    let run = root.path().join("a");
    let leftovers = ["checkpoints/.step-000010.ckpt.4242.7.tmp", ".run.json.17.0.tmp"];
    let others = [
        "checkpoints/notes.tmp",
        ".hidden.tmp",
        ".x.12.tmp",
        "images/.eval.png.1.2.tmp.keep",
    ];
    for name in leftovers.iter().chain(&others) {
        fs::write(run.join(name), "x").unwrap();
    }
    let opened = RunDirectory::resume(root.path(), "a").unwrap();
    assert_eq!(opened.notices().len(), 2);
    for name in leftovers {
        assert!(
            !run.join(name).exists() && opened.notices().iter().any(|notice| notice.contains(name)),
            "{name}"
        );
    }
    assert!(others.iter().all(|name| run.join(name).exists()));
}

#[test]
fn resuming_a_run_that_is_not_there_lists_the_ones_that_are() {
    let root = tempfile::tempdir().unwrap();
    finished(root.path(), "digits-grpo");
    finished(root.path(), "shapes");
    let text = RunDirectory::resume(root.path(), "digits-gpro")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("digits-gpro") && text.contains("digits-grpo, shapes"),
        "{text}"
    );
    let text = RunDirectory::resume(&root.path().join("none"), "a")
        .unwrap_err()
        .to_string();
    assert!(text.contains("there are no runs beside it"), "{text}");
}

#[test]
fn a_directory_that_is_no_run_is_never_taken_for_one() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("thesis")).unwrap();
    fs::write(root.path().join("thesis/chapter-1.tex"), "precious").unwrap();
    for policy in [OnExists::Error, OnExists::Resume, OnExists::Overwrite] {
        let text = RunDirectory::open(root.path(), "thesis", policy)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("is not a run directory") && text.contains("chapter-1.tex"),
            "{text}"
        );
    }
    assert_eq!(
        RunDirectory::open(root.path(), "thesis", OnExists::New)
            .unwrap()
            .name(),
        "thesis-2"
    );
    assert_eq!(
        fs::read_to_string(root.path().join("thesis/chapter-1.tex")).unwrap(),
        "precious"
    );
    assert_eq!(fs::read_dir(root.path().join("thesis")).unwrap().count(), 1);

    fs::create_dir(root.path().join("empty")).unwrap();
    let run = RunDirectory::open(root.path(), "empty", OnExists::Error).unwrap();
    assert_eq!(run.opened(), &Opened::Created);
    fs::write(root.path().join("file"), "x").unwrap();
    assert!(RunDirectory::open(root.path(), "file", OnExists::Error).is_err());
}

#[test]
fn names_that_would_leave_the_runs_directory_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let long = "x".repeat(201);
    for name in ["", ".", "..", "../b", "a/b", "a\\b", "-rf", "a\nb", ".git", &long] {
        let error = RunDirectory::open(root.path(), name, OnExists::New).unwrap_err();
        assert!(matches!(error, ReportError::RunName { .. }), "{name:?}: {error}");
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    RunDirectory::open(root.path(), "größe 1.5_b", OnExists::Error).unwrap();
}

#[test]
fn a_runs_directory_that_cannot_be_made_says_what_stands_in_the_way() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("runs");
    fs::write(&file, "x").unwrap();
    let text = RunDirectory::open(&file.join("below"), "a", OnExists::Error)
        .unwrap_err()
        .to_string();
    assert!(text.contains("is a file where a directory is needed"), "{text}");
}

#[test]
fn the_manifest_comes_back_as_written_and_keeps_fields_it_does_not_know() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    let mut manifest = manifest(&run);
    manifest.device.insert("backend".into(), "flex".into());
    manifest
        .config_sources
        .insert("trainer".into(), "a.toml:3".into());
    manifest.fallbacks.push(Fallback {
        what: "w".into(),
        wanted: "x".into(),
        used: "y".into(),
        why: "z".into(),
    });
    manifest.extra.insert("added_later".into(), json!([1, null]));
    let resumed = json!({"trainer": {"lr": 0.2, "layers": [1, 2]}, "new": true});
    manifest.add_resume(
        7,
        "checkpoints/step-000007.ckpt",
        vec![],
        &resumed,
        root.path(),
        vec!["n".into()],
    );
    run.write_manifest(&manifest).unwrap();
    assert_eq!(run.read_manifest().unwrap(), manifest);
    let changes: Vec<_> = manifest.resumes[0]
        .config_changes
        .iter()
        .map(|change| change.key.as_str())
        .collect();
    assert_eq!(changes, ["trainer.lr", "seed", "new"]);
    let text = fs::read_to_string(run.path().join("run.json")).unwrap();
    assert!(text.contains("\"added_later\"") && text.ends_with("}\n"));
    assert!(manifest.host.cpu_threads > 0 && manifest.started_at.ends_with('Z'));
}

#[test]
fn a_source_covers_the_keys_below_it_unless_they_have_their_own() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    let mut manifest = manifest(&run);
    for (key, source) in [("a", "file"), ("a.b", "cli"), ("a.c[1]", "preset")] {
        manifest.config_sources.insert(key.into(), source.into());
    }
    let sources = ["a.b", "a.b.d", "a.x.y", "a.c[1].z", "a.c[0].z", "ab"].map(|key| manifest.source_of(key));
    assert_eq!(
        sources,
        [
            Some("cli"),
            Some("cli"),
            Some("file"),
            Some("preset"),
            Some("file"),
            None
        ]
    );
}

#[test]
fn a_manifest_that_is_damaged_or_newer_is_an_error_that_says_so() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run.json");
    for (content, expected) in [
        (
            "{\"manifest_version\": 99}",
            "has version 99, this build reads up to 1",
        ),
        ("{\"manifest_version\": 1}", "is not complete"),
        ("{\"manif", "is not valid"),
    ] {
        fs::write(&path, content).unwrap();
        let text = Manifest::read(&path).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_state_of_git_is_clean_dirty_or_absent_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let identity = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "commit.gpgsign=false",
        ];
        let status = Command::new("git")
            .arg("-C")
            .arg(root.path())
            .args(identity)
            .args(arguments)
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
    };
    let GitState::Absent { why } = GitState::detect(root.path()) else {
        panic!("no repository yet")
    };
    assert!(why.contains("not a git repository"), "{why}");
    git(&["init", "-q"]);
    assert!(
        matches!(GitState::detect(root.path()), GitState::Absent { .. }),
        "no commit yet"
    );
    fs::write(root.path().join("a"), "1").unwrap();
    git(&["add", "a"]);
    git(&["commit", "-q", "-m", "m"]);
    let GitState::Clean { commit } = GitState::detect(root.path()) else {
        panic!("clean")
    };
    assert_eq!(commit.len(), 40);
    fs::write(root.path().join("a"), "2").unwrap();
    fs::write(root.path().join("b"), "2").unwrap();
    let state = GitState::detect(root.path());
    assert_eq!(state.text(), format!("{commit} and 2 uncommitted changes"));
    let GitState::Dirty { changes, .. } = state else {
        panic!("dirty")
    };
    assert_eq!(changes, [" M a", "?? b"]);
}

#[test]
fn policies_are_read_from_their_names() {
    for policy in [
        OnExists::Error,
        OnExists::Resume,
        OnExists::Overwrite,
        OnExists::New,
    ] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        assert_eq!(serde_json::to_value(policy).unwrap(), policy.to_string());
    }
    assert!(
        "ask"
            .parse::<OnExists>()
            .unwrap_err()
            .contains("error, resume, overwrite, new")
    );
}

#[test]
fn writing_over_a_file_keeps_the_old_one_until_the_new_one_is_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.json");
    atomic_write(&path, "thing", |out| out.write_all(b"first")).unwrap();
    let error = atomic_write(&path, "thing", |out| {
        out.write_all(&[0; 100_000])?;
        Err(std::io::Error::other("the caller gave up"))
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("cannot write thing") && text.contains("(5 bytes) is intact"),
        "{text}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    let text = atomic_write(&root.path().join("no/b"), "thing", |_| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(text.contains("there is no"), "{text}");
}
