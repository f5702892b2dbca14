//! TensorBoard event files, read back by a decoder written here from the formats' descriptions.

use std::fs;
use std::io::Cursor;

use flow_report::{EventWriter, ImageGrid, MetricRecord, Tile, masked_crc32c};

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
