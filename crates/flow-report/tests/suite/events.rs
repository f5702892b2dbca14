//! TensorBoard event files, read back by a decoder written here from the formats' descriptions.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;

use flow_report::{
    EventWriter, ImageGrid, Manifest, MetricRecord, OnExists, RunDirectory, RunStatus, Tile, masked_crc32c,
};
use serde_json::json;

/// CRC32C bit by bit (reversed polynomial 0x82F63B78), independent of the library the writer uses.
fn crc32c_by_bits(data: &[u8]) -> u32 {
    !data.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg())
        })
    })
}

fn masked_by_bits(data: &[u8]) -> u32 {
    let crc = crc32c_by_bits(data);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = bytes;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(
            word(&rest[8..12]),
            masked_by_bits(&rest[..8]),
            "checksum of a length"
        );
        let data = &rest[12..12 + length];
        assert_eq!(
            word(&rest[12 + length..16 + length]),
            masked_by_bits(data),
            "checksum of the data"
        );
        records.push(data);
        rest = &rest[16 + length..];
    }
    records
}

/// A field of a message: number and value, fixed-size values as bytes.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Varint(u64, u64),
    Bytes(u64, &'a [u8]),
}

fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                found.push(Field::Varint(key >> 3, varint(&mut bytes)));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        found.push(Field::Bytes(key >> 3, &bytes[..length]));
        bytes = &bytes[length..];
    }
    found
}

fn bytes<'a>(fields: &[Field<'a>], number: u64) -> &'a [u8] {
    let find = |field: &Field<'a>| match field {
        Field::Bytes(found, value) if *found == number => Some(*value),
        _ => None,
    };
    fields
        .iter()
        .find_map(find)
        .unwrap_or_else(|| panic!("no field {number}"))
}

fn varint(fields: &[Field<'_>], number: u64) -> u64 {
    let find = |field: &Field<'_>| match field {
        Field::Varint(found, value) if *found == number => Some(*value),
        _ => None,
    };
    fields
        .iter()
        .find_map(find)
        .unwrap_or_else(|| panic!("no field {number}"))
}

#[test]
fn the_checksum_is_crc32c_with_the_mask_of_tfrecord() {
    // RFC 3720, B.4: CRC32C of 32 zero bytes and of 32 bytes of ones.
    assert_eq!(crc32c_by_bits(&[0; 32]), 0x8A91_36AA);
    assert_eq!(crc32c_by_bits(&[0xFF; 32]), 0x62A8_AB43);
    for data in [&b""[..], b"1", b"123456789", &[0; 333]] {
        assert_eq!(masked_crc32c(data), masked_by_bits(data));
    }
}

#[test]
fn scalars_images_and_texts_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path(), None).unwrap();
    let record = MetricRecord::new(300, "train")
        .with("loss", -0.25_f32)
        .with("text", "x")
        .with("count", 7_u64);
    writer.record(&record).unwrap();
    let mut grid = ImageGrid::new().scale(3);
    grid.row("", vec![Tile::new(1, 5, 7, vec![0.5; 35]).unwrap()]);
    writer.image("eval", 301, &grid.picture().unwrap()).unwrap();
    writer.text("config", 0, "größe = 1").unwrap();
    writer.sync().unwrap();

    let name = writer.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    let content = fs::read(writer.path()).unwrap();
    let events: Vec<_> = records(&content).into_iter().map(fields).collect();
    assert_eq!(events.len(), 5);
    assert_eq!(bytes(&events[0], 3), b"brain.Event:2");
    for (event, (tag, number)) in events[1..3]
        .iter()
        .zip([("train/loss", -0.25_f32), ("train/count", 7.0)])
    {
        assert_eq!(varint(event, 2), 300);
        assert!(
            f64::from_le_bytes(bytes(event, 1).try_into().unwrap()) > 1.7e9,
            "wall time"
        );
        let value = fields(bytes(&fields(bytes(event, 5)), 1));
        assert_eq!(bytes(&value, 1), tag.as_bytes());
        assert_eq!(f32::from_le_bytes(bytes(&value, 2).try_into().unwrap()), number);
    }
    let value = fields(bytes(&fields(bytes(&events[3], 5)), 1));
    let image = fields(bytes(&value, 4));
    let decoded = image::load(Cursor::new(bytes(&image, 4)), image::ImageFormat::Png)
        .unwrap()
        .to_rgb8();
    assert_eq!(
        (varint(&image, 2), varint(&image, 1)),
        (decoded.width().into(), decoded.height().into())
    );
    let value = fields(bytes(&fields(bytes(&events[4], 5)), 1));
    assert_eq!(bytes(&fields(bytes(&value, 8)), 8), "größe = 1".as_bytes());
    assert_eq!(bytes(&fields(bytes(&fields(bytes(&value, 9)), 1)), 1), b"text");
}

#[test]
fn a_resumed_process_opens_a_file_of_its_own_and_tells_viewers_where_it_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let first = EventWriter::create(directory.path(), None).unwrap();
    let second = EventWriter::create(directory.path(), Some(41)).unwrap();
    assert_ne!(first.path(), second.path());
    let content = fs::read(second.path()).unwrap();
    let start = fields(records(&content)[1]);
    assert_eq!(varint(&start, 2), 42);
    assert_eq!(varint(&fields(bytes(&start, 7)), 1), 1);
}

/// Tag and value of each event with a summary.
fn values(writer: &EventWriter) -> Vec<(String, Vec<u8>)> {
    let content = fs::read(writer.path()).unwrap();
    let mut found = Vec::new();
    for event in records(&content).into_iter().map(fields) {
        let Some(summary) = event.iter().find_map(|field| match field {
            Field::Bytes(5, summary) => Some(*summary),
            _ => None,
        }) else {
            continue;
        };
        let value = bytes(&fields(summary), 1).to_vec();
        let tag = String::from_utf8(bytes(&fields(&value), 1).to_vec()).unwrap();
        found.push((tag, value));
    }
    found
}

#[test]
fn the_ends_of_an_interval_are_drawn_around_their_value_and_are_no_charts_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path(), None).unwrap();
    let record = MetricRecord::new(3, "eval")
        .with("reward/a b", 0.5)
        .with("reward/a b/low", 0.25)
        .with("reward/a b/high", 0.75)
        .with("water/low", 1.0);
    writer.record(&record).unwrap();
    writer.by_prompt("a b", 3, &["x/y", "z"], &[0.125, 1.0]).unwrap();
    writer.layout(&["a b"], true).unwrap();
    let found = values(&writer);
    let tags: Vec<&str> = found.iter().map(|(tag, _)| tag.as_str()).collect();
    let expected = [
        "eval/reward/a b",
        "intervals/eval/reward/a b/low",
        "intervals/eval/reward/a b/high",
        "eval/water/low",
        "prompts/a b/01 x-y",
        "prompts/a b/02 z",
        "custom_scalars__config__",
    ];
    assert_eq!(tags, expected);
    let tensor = bytes(&fields(&found[6].1), 8).to_vec();
    let layout = bytes(&fields(&tensor), 8).to_vec();
    let category = bytes(&fields(&layout), 2).to_vec();
    let chart = bytes(&fields(&category), 2).to_vec();
    let margin = bytes(&fields(&chart), 3).to_vec();
    let series = bytes(&fields(&margin), 1).to_vec();
    for (field, tag) in (1..).zip(&expected[..3]) {
        assert_eq!(bytes(&fields(&series), field), tag.as_bytes());
    }
}

#[test]
fn the_configuration_is_a_text_and_hyperparameters() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path(), None).unwrap();
    let config = json!({"run": {"name": "a", "seed": 3}, "rate": 0.5, "on": true, "text": "x|y", "list": [1, 2], "no": null});
    let mut manifest = Manifest::new("a", vec![], config, directory.path());
    manifest.config_sources.insert("rate".into(), "a.toml:3".into());
    manifest.config_sources.insert("run".into(), "default".into());
    writer.configuration(&manifest).unwrap();
    writer.ended(&RunStatus::Finished).unwrap();
    let found = values(&writer);
    let text = bytes(&fields(bytes(&fields(&found[0].1), 8)), 8).to_vec();
    let text = String::from_utf8(text).unwrap();
    let (set, defaults) = text.split_once("**Defaults**").unwrap();
    assert!(
        set.contains("| rate | 0.5 | a.toml:3 |") && set.contains("| text | x\\|y |"),
        "{text}"
    );
    assert!(defaults.contains("| run.seed | 3 | default |"), "{text}");
    let metadata = bytes(&fields(&found[1].1), 9).to_vec();
    let plugin = bytes(&fields(&metadata), 1).to_vec();
    assert_eq!(bytes(&fields(&plugin), 1), b"hparams");
    let content = bytes(&fields(&plugin), 2).to_vec();
    let start = bytes(&fields(&content), 3).to_vec();
    let mut read = BTreeMap::new();
    for field in fields(&start) {
        let Field::Bytes(1, entry) = field else { continue };
        let entry = fields(entry);
        let key = String::from_utf8(bytes(&entry, 1).to_vec()).unwrap();
        let value = match fields(bytes(&entry, 2))[0] {
            Field::Bytes(2, number) => f64::from_le_bytes(number.try_into().unwrap()).to_string(),
            Field::Bytes(3, text) => String::from_utf8(text.to_vec()).unwrap(),
            Field::Varint(4, truth) => (truth == 1).to_string(),
            ref other => panic!("{other:?}"),
        };
        read.insert(key, value);
    }
    let expected = [
        ("list", "[1,2]"),
        ("on", "true"),
        ("rate", "0.5"),
        ("run.seed", "3"),
        ("text", "x|y"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(read, BTreeMap::from(expected));
    assert_eq!(found[2].0, "_hparams_/session_end_info");
}

#[test]
fn a_run_is_called_by_its_name_and_goes_on_where_it_has_events() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    assert_eq!(run.events(None).unwrap().path().parent(), Some(run.path()));
    fs::create_dir(run.path().join("events")).unwrap();
    EventWriter::create(&run.path().join("events"), None).unwrap();
    let earlier = run.path().join("events");
    assert_eq!(run.events(Some(1)).unwrap().path().parent(), Some(&*earlier));
}
