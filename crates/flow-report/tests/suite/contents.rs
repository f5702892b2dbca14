//! The hash of what a file holds is BLAKE3's, however large the file is and whatever hashes it.

use flow_report::ContentHash;
use std::path::Path;

/// Bytes that repeat nowhere near.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

fn of(path: &Path) -> String {
    ContentHash::of_path(path, "safetensors")
        .expect("it is readable")
        .to_string()
}

#[test]
fn a_file_of_any_size_has_the_hash_of_its_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.safetensors");
    // On both sides of a chunk, of what is mapped rather than read, and of what several threads share.
    for size in [0, 1, 1023, 1025, 16_383, 16_385, 131_071, 1_048_583, 9_437_199] {
        let bytes = bytes(size);
        std::fs::write(&path, &bytes).expect("it is written");
        assert_eq!(
            of(&path),
            blake3::hash(&bytes).to_hex().to_string(),
            "{size} bytes"
        );
        assert_eq!(of(&path), ContentHash::of(&bytes).to_string(), "{size} bytes");
    }
    // From BLAKE3's own test vectors.
    std::fs::write(&path, []).expect("it is written");
    assert_eq!(
        of(&path),
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    );
}

#[test]
fn a_folder_has_the_hash_of_its_weights_with_their_names_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (bytes(2_097_169), bytes(70_001));
    for (name, bytes) in [("b.safetensors", &two), ("a.safetensors", &one), ("c.json", &one)] {
        std::fs::write(folder.path().join(name), bytes).expect("it is written");
    }
    let whole = [&b"a.safetensors\0"[..], &one, b"b.safetensors\0", &two].concat();
    assert_eq!(of(folder.path()), blake3::hash(&whole).to_hex().to_string());
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let error =
        ContentHash::of_path(&folder.path().join("none.safetensors"), "safetensors").expect_err("none");
    assert!(error.to_string().contains("none.safetensors"), "{error}");
}
