//! Checkpoints are verified before use, and no failure or kill costs the previous one.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use crate::common::{Fault, FaultyDisk};
use flow_report::{
    CheckpointError, CheckpointReader, CheckpointStore, CheckpointWriter, ReportError, WrittenCheckpoint,
    remove_leftovers,
};
use proptest::prelude::*;
use serde_json::json;

fn keep(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn small(step: u64) -> CheckpointWriter<'static> {
    let mut writer = CheckpointWriter::new(step, json!({"seed": 7, "lr": 0.1}));
    writer.section("weights", vec![step as u8; 13]).unwrap();
    writer.section("empty", Vec::new()).unwrap();
    writer.section("optimizer", vec![1, 2, 3]).unwrap();
    writer
}

/// The step of the newest valid checkpoint, whose content must be what was saved for that step.
fn latest_step(directory: &Path) -> Option<u64> {
    let found = CheckpointStore::new(directory, keep(1)).latest().unwrap().found?;
    assert_eq!(found.section("weights").unwrap(), vec![found.step() as u8; 13]);
    assert_eq!(found.section("empty").unwrap(), Vec::<u8>::new());
    assert_eq!(found.section("optimizer").unwrap(), [1, 2, 3]);
    Some(found.step())
}

#[test]
fn a_checkpoint_cut_at_any_byte_is_refused_and_the_one_before_it_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::new(directory.path(), keep(2));
    store.save(&small(10)).unwrap();
    let newest = store.save(&small(20)).unwrap().checkpoint;
    let whole = fs::read(&newest.path).unwrap();
    assert_eq!(whole.len() as u64, newest.bytes);
    for length in 0..whole.len() {
        fs::write(&newest.path, &whole[..length]).unwrap();
        let error = CheckpointReader::open(&newest.path).unwrap_err();
        let expected = match error {
            CheckpointError::Foreign { .. } => length == 0,
            CheckpointError::Length { problem, .. } => length > 0 && problem == "truncated",
            _ => false,
        };
        assert!(expected, "{length} bytes: {error}");
        let latest = store.latest().unwrap();
        assert_eq!(latest.found.unwrap().step(), 10);
        assert!(latest.skipped[0].to_string().contains("step-000020.ckpt"));
    }
    fs::write(&newest.path, [&whole[..], &[0]].concat()).unwrap();
    let error = CheckpointReader::open(&newest.path).unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Length {
                problem: "too long",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn any_flipped_bit_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.ckpt");
    small(3).write_to(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << (byte % 8);
        fs::write(&path, &damaged).unwrap();
        assert!(CheckpointReader::open(&path).is_err(), "byte {byte}");
    }
}

#[test]
fn a_disk_that_fills_up_at_any_byte_leaves_the_previous_checkpoint_and_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = CheckpointStore::new(directory.path(), keep(1))
        .save(&small(10))
        .unwrap()
        .checkpoint
        .bytes;
    for budget in 0..bytes as i64 {
        let disk = FaultyDisk::new(Fault::Full, budget);
        let mut store = CheckpointStore::with_storage(directory.path(), keep(1), Arc::new(disk));
        let text = store.save(&small(20)).unwrap_err().to_string();
        for part in [
            "step-000020.ckpt",
            "step-000010.ckpt` (step 10) is valid",
            "the disk is full",
            "help:",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
        assert_eq!(latest_step(directory.path()), Some(10));
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing may be left over"
        );
    }
}

#[test]
fn a_process_killed_at_any_byte_or_operation_leaves_a_valid_checkpoint() {
    let (mut kept_old, mut reached_new) = (0, 0);
    for budget in 0.. {
        let directory = tempfile::tempdir().unwrap();
        CheckpointStore::new(directory.path(), keep(1))
            .save(&small(10))
            .unwrap();
        let disk = FaultyDisk::new(Fault::Killed, budget);
        let mut store = CheckpointStore::with_storage(directory.path(), keep(1), Arc::new(disk));
        let saved = store.save(&small(20));
        match latest_step(directory.path()) {
            Some(10) => kept_old += 1,
            Some(20) => reached_new += 1,
            other => panic!("budget {budget}: {other:?}"),
        }
        let latest = CheckpointStore::new(directory.path(), keep(1)).latest().unwrap();
        assert!(
            latest.skipped.is_empty(),
            "a torn file stood under its final name"
        );
        remove_leftovers(directory.path()).unwrap();
        let left = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert!(
            left.into_iter()
                .all(|name| name.to_string_lossy().ends_with(".ckpt"))
        );
        if saved.is_ok() {
            break;
        }
    }
    assert!(kept_old > 100 && reached_new > 1, "{kept_old} {reached_new}");
}

#[test]
fn the_new_checkpoint_is_durable_before_an_old_one_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(Fault::Full, i64::MAX);
    let mut store = CheckpointStore::with_storage(directory.path(), keep(2), Arc::new(disk.clone()));
    for step in [5, 10, 15] {
        store.save(&small(step)).unwrap();
    }
    let log = disk.log.lock().unwrap().clone();
    let name = directory
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let end = [
        "sync file".into(),
        "rename step-000015.ckpt".into(),
        format!("sync-directory {name}"),
        "remove step-000005.ckpt".into(),
    ];
    assert!(log.ends_with(&end), "{log:?}");
    let steps: Vec<u64> = store.list().unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [15, 10]);
}

#[test]
fn a_file_in_the_place_of_the_directory_is_told_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("checkpoints");
    fs::write(&place, "precious").unwrap();
    let text = CheckpointStore::new(&place, keep(1))
        .save(&small(1))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("checkpoints") && text.contains("is a file where a directory is needed"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&place).unwrap(), "precious");
}

#[test]
fn a_file_of_another_format_is_named_for_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step-000001.ckpt");
    let mut safetensors = 64_u64.to_le_bytes().to_vec();
    safetensors.extend_from_slice(br#"{"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}  "#);
    for (content, name) in [
        (&safetensors[..], "safetensors"),
        (b"PK\x03\x04archive", "zip archive"),
        (b"\x80\x02pickle", "Python pickle"),
        (b"", "it is empty"),
        (b"something else", "not `FLOWCKPT`"),
    ] {
        fs::write(&path, content).unwrap();
        let error = CheckpointReader::open(&path).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Foreign { .. }) && error.to_string().contains(name),
            "{error}"
        );
    }
    assert!(CheckpointReader::open(directory.path()).is_err());
    let missing = CheckpointReader::open(&directory.path().join("no.ckpt")).unwrap_err();
    assert!(matches!(missing, CheckpointError::Unreadable { .. }), "{missing}");
}

#[test]
fn a_checkpoint_of_a_newer_version_is_told_from_a_corrupt_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.ckpt");
    small(3).write_to(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    fs::write(&path, &bytes).unwrap();
    let error = CheckpointReader::open(&path).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Newer { found: 9, .. }),
        "{error}"
    );
}

#[test]
fn a_missing_section_lists_the_ones_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.ckpt");
    small(3).write_to(&path).unwrap();
    let text = CheckpointReader::open(&path)
        .unwrap()
        .section("ema")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("\"ema\"") && text.contains("it has \"empty\", \"optimizer\", \"weights\""),
        "{text}"
    );
}

#[test]
fn a_repeated_section_or_one_of_another_length_than_announced_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.ckpt");
    let mut writer = small(1);
    let text = writer.section("weights", vec![]).err().unwrap().to_string();
    assert!(text.contains("is there twice"), "{text}");
    writer
        .section_streamed("short", 10, |out| out.write_all(&[0; 9]))
        .unwrap();
    let text = writer.write_to(&path).unwrap_err().to_string();
    assert!(text.contains("wrote 9 bytes but announced 10"), "{text}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_section_of_a_model_with_hundreds_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.ckpt");
    let mut writer = CheckpointWriter::new(1, json!(null));
    for layer in 0..300 {
        for set in ["current", "first", "second"] {
            writer
                .section(&format!("{set}/blocks.{layer}.weight"), vec![0; 4])
                .unwrap();
        }
    }
    writer.write_to(&path).unwrap();
    let error = CheckpointReader::open(&path)
        .unwrap()
        .section("average/x")
        .unwrap_err();
    assert!(error.problem().len() < 200, "{error}");
    assert!(error.problem().contains("300 below `first/`"), "{error}");
    assert!(!error.problem().contains("help"), "{error}");
}

#[test]
fn what_a_process_did_not_write_it_neither_removes_nor_writes_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut earlier = CheckpointStore::new(directory.path(), keep(2));
    for step in [10, 20, 30] {
        earlier.save(&small(step)).unwrap();
    }
    let before = fs::read(earlier.path_of(30)).unwrap();
    let mut store = CheckpointStore::new(directory.path(), keep(2));
    let mut pruned = Vec::new();
    for step in [25, 30, 40] {
        pruned.extend(store.save(&small(step)).unwrap().pruned);
    }
    // Of its own, two are left; the other process's are where they were, or aside.
    assert_eq!(pruned, [store.path_of(25)]);
    let steps: Vec<u64> = store.list().unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [40, 30, 20]);
    assert_eq!(
        fs::read(directory.path().join("superseded/step-000030.ckpt")).unwrap(),
        before
    );
}

#[test]
fn saving_after_going_back_keeps_the_new_checkpoint_and_sets_the_abandoned_future_aside() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::new(directory.path(), keep(1));
    for step in [10, 20] {
        small(step).write_to(&store.path_of(step)).unwrap();
    }
    // Without setting it aside, the later checkpoint is neither removed nor does it push out the new one.
    let saved = store.save(&small(15)).unwrap();
    assert!(saved.pruned.is_empty());
    assert!(store.path_of(15).exists() && store.path_of(20).exists());
    let moved = store.supersede_after(15).unwrap();
    assert_eq!(
        moved,
        [directory.path().join("superseded").join("step-000020.ckpt")]
    );
    assert_eq!(latest_step(directory.path()), Some(15));
    small(20).write_to(&store.path_of(20)).unwrap();
    let again = store.supersede_after(15).unwrap();
    assert!(moved[0].exists() && again[0].exists() && again != moved);
}

#[test]
fn steps_are_ordered_as_numbers_and_other_files_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = CheckpointStore::new(directory.path(), keep(9));
    for step in [999_999, 1_000_000, 7] {
        store.save(&small(step)).unwrap();
    }
    for name in [
        "step-.ckpt",
        "step-5.ckpt.bak",
        "step-+5.ckpt",
        "step-99999999999999999999999.ckpt",
        "notes.txt",
    ] {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    let steps: Vec<u64> = store.list().unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [1_000_000, 999_999, 7]);
}

#[test]
fn equal_states_give_equal_files_and_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str| small(4).write_to(&directory.path().join(name)).unwrap();
    let (WrittenCheckpoint { blake3: a, .. }, WrittenCheckpoint { blake3: b, .. }) = (write("a"), write("b"));
    assert_eq!(a, b);
    assert_eq!(
        fs::read(directory.path().join("a")).unwrap(),
        fs::read(directory.path().join("b")).unwrap()
    );
    assert_eq!(
        CheckpointReader::open(&directory.path().join("a"))
            .unwrap()
            .blake3(),
        a
    );
}

#[test]
fn no_checkpoint_at_all_is_not_an_error_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let latest = CheckpointStore::new(directory.path().join("none"), keep(1))
        .latest()
        .unwrap();
    assert!(latest.found.is_none() && latest.skipped.is_empty());
    let unreadable = directory.path().join("file");
    fs::write(&unreadable, "").unwrap();
    let error = CheckpointStore::new(&unreadable, keep(1)).latest().unwrap_err();
    assert!(matches!(error, ReportError::Read { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_sections_come_back_as_they_were_and_start_aligned(
        sections in prop::collection::btree_map("\\PC{1,12}", prop::collection::vec(any::<u8>(), 0..200), 0..6),
        step in any::<u64>(),
        note in ".*",
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.ckpt");
        let mut writer = CheckpointWriter::new(step, json!({"note": note}));
        for (index, (name, bytes)) in sections.iter().enumerate() {
            if index % 2 == 0 {
                writer.section(name, &bytes[..]).unwrap();
            } else {
                writer.section_streamed(name, bytes.len() as u64, move |out| out.write_all(bytes)).unwrap();
            }
        }
        writer.write_to(&path).unwrap();
        let reader = CheckpointReader::open(&path).unwrap();
        prop_assert_eq!(reader.step(), step);
        prop_assert_eq!(&reader.meta()["note"], &note);
        prop_assert_eq!(reader.sections().len(), sections.len());
        for entry in reader.sections() {
            prop_assert_eq!(entry.offset % 64, 0);
            prop_assert_eq!(&reader.section(&entry.name).unwrap(), &sections[&entry.name]);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        tail in prop::collection::vec(any::<u8>(), 0..300),
        sizes in any::<(u64, u64)>(),
        small in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.ckpt");
        let mut bytes = b"FLOWCKPT\x01\0\0\0\0\0\0\0".to_vec();
        let length = tail.len() as u64 + 32;
        let (total, header) = if small { (length, sizes.1 % 300) } else { sizes };
        bytes.extend_from_slice(&total.to_le_bytes());
        bytes.extend_from_slice(&header.to_le_bytes());
        bytes.extend_from_slice(&tail);
        fs::write(&path, &bytes).unwrap();
        prop_assert!(CheckpointReader::open(&path).is_err());
    }
}
