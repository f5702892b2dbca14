//! Metrics: exact cuts on resume, torn lines, and values that come back.

use std::fs;

use flow_report::{MetricRecord, Metrics, MetricsFound, MetricsPosition, MetricsStart, MetricsWriter};
use proptest::prelude::*;

fn record(step: u64) -> MetricRecord {
    MetricRecord::new(step, "train")
        .with("loss", 0.1_f32 + step as f32)
        .with("note", "größer \"x\"\n")
}

fn write(
    path: &std::path::Path,
    start: MetricsStart,
    steps: std::ops::RangeInclusive<u64>,
) -> MetricsPosition {
    let mut writer = MetricsWriter::open(path, start).unwrap();
    for step in steps {
        writer.append(&record(step)).unwrap();
        if step.is_multiple_of(3) {
            writer
                .append(&MetricRecord::new(step, "eval").with("reward", step as f64 / 7.0))
                .unwrap();
        }
    }
    writer.position()
}

#[test]
fn a_resumed_run_writes_the_same_bytes_as_an_uninterrupted_one() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole.jsonl");
    write(&whole, MetricsStart::Fresh, 1..=12);
    let expected = fs::read(&whole).unwrap();
    for killed_at in 1..=12 {
        for saved_at in 0..=killed_at {
            for by_position in [false, true] {
                let path = directory
                    .path()
                    .join(format!("{killed_at}-{saved_at}-{by_position}.jsonl"));
                let position = write(&path, MetricsStart::Fresh, 1..=saved_at);
                write(&path, MetricsStart::AfterStep(saved_at), saved_at + 1..=killed_at);
                let start = if by_position {
                    MetricsStart::At(position)
                } else {
                    MetricsStart::AfterStep(saved_at)
                };
                write(&path, start, saved_at + 1..=12);
                assert_eq!(
                    fs::read(&path).unwrap(),
                    expected,
                    "{killed_at} {saved_at} {by_position}"
                );
            }
        }
    }
}

#[test]
fn a_line_torn_at_any_byte_is_cut_with_a_notice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    write(&path, MetricsStart::Fresh, 1..=2);
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in first..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let read = Metrics::read(&path).unwrap();
        assert_eq!(
            (read.records.len(), read.notices.len()),
            (1, usize::from(length > first)),
            "{length}"
        );
        let mut writer = MetricsWriter::open(&path, MetricsStart::AfterStep(5)).unwrap();
        assert_eq!(writer.notices().len(), usize::from(length > first), "{length}");
        writer.append(&record(2)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn records_that_are_cut_are_kept_beside_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    write(&path, MetricsStart::Fresh, 1..=4);
    let before = fs::read(&path).unwrap();
    let writer = MetricsWriter::open(&path, MetricsStart::AfterStep(2)).unwrap();
    assert!(
        writer.notices()[0].contains("cut 3 record(s)"),
        "{:?}",
        writer.notices()
    );
    let kept = fs::read(&path).unwrap();
    let cut = fs::read(directory.path().join("metrics.superseded.jsonl")).unwrap();
    assert_eq!([kept, cut].concat(), before);
}

#[test]
fn a_fresh_start_does_not_overwrite_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    write(&path, MetricsStart::Fresh, 1..=1);
    let before = fs::read(&path).unwrap();
    let text = MetricsWriter::open(&path, MetricsStart::Fresh)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("already holds records") && text.contains("help:"),
        "{text}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_position_of_another_file_is_refused_and_nothing_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let end = write(&path, MetricsStart::Fresh, 1..=4);
    let before = fs::read(&path).unwrap();
    for position in [
        MetricsPosition {
            bytes: end.bytes + 10,
            records: 6,
            last_step: Some(5),
            blake3: None,
        },
        MetricsPosition {
            bytes: end.bytes - 1,
            ..end
        },
        MetricsPosition {
            records: end.records - 1,
            blake3: None,
            ..end
        },
    ] {
        let text = MetricsWriter::open(&path, MetricsStart::At(position))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("is not the file that the checkpoint was saved with"),
            "{text}"
        );
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn another_file_of_the_same_length_is_not_taken_for_the_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let end = write(&path, MetricsStart::Fresh, 1..=4);
    assert_eq!(MetricsWriter::compare(&path, end).unwrap(), MetricsFound::Same);
    let text = fs::read_to_string(&path).unwrap();
    // As many bytes and records: a count sees nothing.
    let other = text.replacen("1.1", "1.2", 1);
    assert_eq!((other.len(), other == text), (text.len(), false));
    fs::write(&path, &other).unwrap();
    for (position, is_same) in [(end, false), (MetricsPosition { blake3: None, ..end }, true)] {
        let found = MetricsWriter::compare(&path, position).unwrap();
        assert_eq!(found == MetricsFound::Same, is_same, "{found:?}");
        assert_eq!(
            MetricsWriter::open(&path, MetricsStart::At(position)).is_ok(),
            is_same
        );
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
    fs::remove_file(&path).unwrap();
    assert_eq!(MetricsWriter::compare(&path, end).unwrap(), MetricsFound::Missing);
    // Without its records a log goes on at its step, and takes none before it.
    let mut writer = MetricsWriter::open(&path, MetricsStart::FreshAfter(4)).unwrap();
    assert!(writer.append(&record(3)).is_err());
    writer.append(&record(5)).unwrap();
    let again = writer.position();
    drop(writer);
    assert_eq!(MetricsWriter::compare(&path, again).unwrap(), MetricsFound::Same);
}

#[test]
fn a_damaged_line_is_named_by_its_number_and_nothing_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let damaged = "{\"step\":1,\"kind\":\"train\"}\n{\"step\":2,\"ki\n{\"step\":3,\"kind\":\"train\"}\n";
    fs::write(&path, damaged).unwrap();
    for text in [
        Metrics::read(&path).unwrap_err().to_string(),
        MetricsWriter::open(&path, MetricsStart::AfterStep(3))
            .unwrap_err()
            .to_string(),
    ] {
        assert!(text.contains("line 2"), "{text}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
}

#[test]
fn falling_steps_and_repeated_keys_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, MetricsStart::Fresh).unwrap();
    writer.append(&record(5)).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(
        writer
            .append(&record(4))
            .unwrap_err()
            .to_string()
            .contains("below the last one, 5")
    );
    for key in ["loss", "step", "kind"] {
        let text = writer
            .append(&record(6).with(key, 1.0_f32))
            .unwrap_err()
            .to_string();
        assert!(text.contains(&format!("{key:?} is there twice")), "{text}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    writer.append(&record(5)).unwrap();
    assert_eq!(writer.position().records, 2);
}

#[test]
fn timing_may_start_again_at_a_lower_step_in_a_later_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("timing.jsonl");
    write(&path, MetricsStart::Append, 1..=4);
    write(&path, MetricsStart::Append, 3..=4);
    let steps: Vec<u64> = Metrics::read(&path)
        .unwrap()
        .series("train", "loss")
        .iter()
        .map(|(s, _)| *s)
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 3, 4]);
}

#[test]
fn series_and_bands_are_read_by_kind_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, MetricsStart::Fresh).unwrap();
    for record in [
        MetricRecord::new(0, "eval")
            .with("reward", 0.5)
            .with("low", 0.4)
            .with("high", 0.6)
            .with("name", "a"),
        MetricRecord::new(1, "train")
            .with("loss", f32::NAN)
            .with("ok", true)
            .with("counts", vec![1.0, f64::INFINITY]),
        MetricRecord::new(2, "eval").with("reward", -0.0),
    ] {
        writer.append(&record).unwrap();
    }
    let metrics = Metrics::read(&path).unwrap();
    assert_eq!(metrics.kinds(), ["eval", "train"]);
    assert_eq!(metrics.keys("eval"), ["reward", "low", "high"]);
    assert_eq!(metrics.series("eval", "reward"), [(0, 0.5), (2, -0.0)]);
    assert_eq!(metrics.band("eval", "low", "high"), [(0, 0.4, 0.6)]);
    assert!(metrics.records[1].number("loss").unwrap().is_nan());
    assert_eq!(
        metrics.records[1].numbers("counts").unwrap(),
        [1.0, f64::INFINITY]
    );
    assert_eq!(metrics.records[1].number("ok"), None);
}

proptest! {
    #[test]
    fn every_number_reads_back_to_the_same_bits(narrow in any::<u32>(), wide in any::<u64>(), whole in any::<u64>()) {
        let (narrow, wide) = (f32::from_bits(narrow), f64::from_bits(wide));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, MetricsStart::Fresh).unwrap();
        let record = MetricRecord::new(whole, "train").with("narrow", narrow).with("wide", wide).with("whole", whole);
        writer.append(&record).unwrap();
        let read = &Metrics::read(&path).unwrap().records[0];
        let same_narrow = read.number("narrow").unwrap() as f32;
        let same_wide = read.number("wide").unwrap();
        prop_assert!(same_narrow.to_bits() == narrow.to_bits() || (same_narrow.is_nan() && narrow.is_nan()));
        prop_assert!(same_wide.to_bits() == wide.to_bits() || (same_wide.is_nan() && wide.is_nan()));
        prop_assert_eq!(read.step, whole);
        prop_assert_eq!(read.values["whole"].as_u64(), Some(whole));
    }
}
