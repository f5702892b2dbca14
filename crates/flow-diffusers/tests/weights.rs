//! Weights of a folder: which files, which tensors, and their values when they are asked for.

mod common;

use common::*;
use flow_diffusers::safetensors::{Dtype, StoredDtype, write};
use flow_diffusers::{Tensors, WeightFiles, write_model};
use proptest::prelude::*;
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn open(folder: &Path) -> Result<Tensors, flow_diffusers::FolderError> {
    Tensors::open(&WeightFiles::find(folder, None)?)
}

fn refused(folder: &Path) -> String {
    open(folder).unwrap_err().to_string()
}

/// A model in four shards.
fn sharded(folder: &Path) {
    let tensors: Vec<_> = (0..4)
        .map(|key| (format!("blocks.{key}.weight"), vec![2, 3], key))
        .collect();
    let values = |key: usize| vec![key as f32; 6];
    let config = json!({ "_class_name": "FluxTransformer2DModel" })
        .as_object()
        .cloned()
        .unwrap();
    write_model(folder, &config, &tensors, &values, StoredDtype::F32, 24).unwrap();
}

#[test]
fn names_shapes_and_precisions_are_known_before_any_value() {
    for (dtype, stored) in [
        (StoredDtype::F32, Dtype::F32),
        (StoredDtype::Bf16, Dtype::BF16),
        (StoredDtype::F16, Dtype::F16),
    ] {
        let folder = tempfile::tempdir().unwrap();
        weights(&folder.path().join("model.safetensors"), dtype);
        let tensors = open(folder.path()).unwrap();
        assert_eq!((tensors.len(), tensors.parameters()), (2, 12));
        assert_eq!(tensors.bytes(), 12 * dtype.bytes());
        assert_eq!(tensors.usual_dtype(), Some(dtype));
        assert_eq!(tensors.metadata().get("format").map(String::as_str), Some("pt"));
        let info = tensors.info("to_q.weight").unwrap();
        assert_eq!(
            (info.dtype, info.shape, info.bytes),
            (stored, [2, 3].as_slice(), 6 * dtype.bytes())
        );
        assert!(info.file.ends_with("model.safetensors"));
        let names: Vec<&str> = tensors.infos().map(|info| info.name).collect();
        assert_eq!(names, ["norm.weight", "to_q.weight"]);
        // All values of the fixture are exact in each precision.
        let values = tensors.values("to_q.weight", &[2, 3]).unwrap();
        assert_eq!(values, [1.0, 1.125, 1.25, 1.375, 1.5, 1.625]);
        assert_eq!(
            tensors.tensor("norm.weight").unwrap().bytes.len(),
            6 * dtype.bytes()
        );
    }
}

#[test]
fn a_wrong_name_or_shape_is_told_with_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    weights(&folder.path().join("model.safetensors"), StoredDtype::F32);
    let tensors = open(folder.path()).unwrap();
    let words = tensors.values("to_q.weigth", &[2, 3]).unwrap_err().to_string();
    expect(
        &words,
        &["tensor `to_q.weigth`", "the nearest name is `to_q.weight`"],
    );
    let words = tensors.values("to_q.weight", &[3, 2]).unwrap_err().to_string();
    expect(
        &words,
        &["its shape is [2, 3], and [3, 2] is needed", "different models"],
    );
}

#[test]
fn shards_are_found_by_their_index_and_put_together() {
    let folder = tempfile::tempdir().unwrap();
    sharded(folder.path());
    let files = WeightFiles::find(folder.path(), None).unwrap();
    assert_eq!((files.files.len(), files.placed.len()), (4, 4));
    let tensors = Tensors::open(&files).unwrap();
    for key in 0..4 {
        let name = format!("blocks.{key}.weight");
        assert_eq!(tensors.values(&name, &[2, 3]).unwrap(), vec![key as f32; 6]);
        let file = format!("-0000{}-of-00004.safetensors", key + 1);
        assert!(
            tensors
                .info(&name)
                .unwrap()
                .file
                .to_string_lossy()
                .ends_with(&file)
        );
    }
    // A file that is left over beside the index does not count.
    weights(
        &folder.path().join("diffusion_pytorch_model.safetensors"),
        StoredDtype::F32,
    );
    assert_eq!(open(folder.path()).unwrap().len(), 4);
}

#[test]
fn every_shard_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    sharded(folder.path());
    let shard = |number| {
        folder.path().join(format!(
            "diffusion_pytorch_model-0000{number}-of-00004.safetensors"
        ))
    };
    fs::remove_file(shard(2)).unwrap();
    fs::remove_file(shard(4)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../blobs/abc", shard(4)).unwrap();
    let words = refused(folder.path());
    expect(
        &words,
        &[
            "lacks 2 of 4 file(s)",
            "`diffusion_pytorch_model.safetensors.index.json` names",
            "-00002-of-00004.safetensors`, `diffusion_pytorch_model-00004-of-00004.safetensors`",
            "download it again",
        ],
    );
    // Without the index the names of the shards themselves say how many there are.
    fs::remove_file(
        folder
            .path()
            .join("diffusion_pytorch_model.safetensors.index.json"),
    )
    .unwrap();
    expect(
        &refused(folder.path()),
        &["lacks 2 of 4", "-00002-of-00004.safetensors"],
    );
}

#[test]
fn shards_without_an_index_make_one_model() {
    let folder = tempfile::tempdir().unwrap();
    sharded(folder.path());
    fs::remove_file(
        folder
            .path()
            .join("diffusion_pytorch_model.safetensors.index.json"),
    )
    .unwrap();
    assert_eq!(open(folder.path()).unwrap().len(), 4);
    weights(
        &folder.path().join("other-00001-of-00002.safetensors"),
        StoredDtype::F32,
    );
    expect(
        &refused(folder.path()),
        &["shards of several models and no index"],
    );
}

#[test]
fn an_index_of_another_download_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    sharded(folder.path());
    let first = folder
        .path()
        .join("diffusion_pytorch_model-00001-of-00004.safetensors");
    tensors(&first, StoredDtype::F32, &["blocks.9.weight"]);
    expect(
        &refused(folder.path()),
        &[
            "1 tensor(s) are not in the file",
            "`blocks.0.weight`",
            "different downloads",
        ],
    );
    tensors(&first, StoredDtype::F32, &["blocks.0.weight", "blocks.1.weight"]);
    expect(
        &refused(folder.path()),
        &["1 tensor(s) are in several", "`blocks.1.weight`"],
    );
    let index = folder
        .path()
        .join("diffusion_pytorch_model.safetensors.index.json");
    edit(&index, |index| {
        index["weight_map"]["blocks.0.weight"] = json!("../elsewhere.safetensors")
    });
    expect(
        &refused(folder.path()),
        &[
            "puts `blocks.0.weight` into `../elsewhere.safetensors`",
            "beside its index",
        ],
    );
    fs::write(&index, "{\"weight_map\": {").unwrap();
    expect(&refused(folder.path()), &["index.json", "cut off"]);
}

#[test]
fn variants_are_told_from_the_plain_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    weights(&at("model.fp16.safetensors"), StoredDtype::F16);
    tensors(
        &at("model.bf16-00001-of-00001.safetensors"),
        StoredDtype::Bf16,
        &["a"],
    );
    let index = json!({ "metadata": {}, "weight_map": { "a": "model.bf16-00001-of-00001.safetensors" } });
    fs::write(at("model.safetensors.index.bf16.json"), index.to_string()).unwrap();
    assert_eq!(WeightFiles::variants(folder.path()).unwrap(), ["bf16", "fp16"]);
    expect(
        &refused(folder.path()),
        &["the variant `bf16`, `fp16`", "none without a variant"],
    );
    let words = WeightFiles::find(folder.path(), Some("fp8"))
        .unwrap_err()
        .to_string();
    expect(&words, &["and not `fp8`"]);
    weights(&at("model.safetensors"), StoredDtype::F32);
    let dtype = |variant| {
        let files = WeightFiles::find(folder.path(), variant).unwrap();
        (
            files.variant.clone(),
            Tensors::open(&files).unwrap().usual_dtype().unwrap(),
        )
    };
    assert_eq!(dtype(None), (None, StoredDtype::F32));
    assert_eq!(dtype(Some("fp16")), (Some("fp16".into()), StoredDtype::F16));
    assert_eq!(dtype(Some("bf16")), (Some("bf16".into()), StoredDtype::Bf16));
    assert_eq!(dtype(Some("fp8")), (None, StoredDtype::F32));
}

/// Two shards of one tensor each, and the name of their index; without a name, there is none.
fn shards_of(folder: &Path, names: [&str; 2], index: Option<&str>) {
    for (name, tensor) in names.iter().zip(["a", "b"]) {
        tensors(&folder.join(name), StoredDtype::F16, &[tensor]);
    }
    if let Some(index) = index {
        let map = json!({ "metadata": {}, "weight_map": { "a": names[0], "b": names[1] } });
        fs::write(folder.join(index), map.to_string()).unwrap();
    }
}

#[test]
fn shards_of_a_variant_are_found_by_every_name_that_is_in_use() {
    for stem in ["diffusion_pytorch_model", "model"] {
        let now = [1, 2].map(|number| format!("{stem}.fp16-0000{number}-of-00002.safetensors"));
        let before = [1, 2].map(|number| format!("{stem}-0000{number}-of-00002.fp16.safetensors"));
        let now = [now[0].as_str(), now[1].as_str()];
        let before = [before[0].as_str(), before[1].as_str()];
        let cases = [
            (now, Some(format!("{stem}.safetensors.index.fp16.json"))),
            (now, Some(format!("{stem}.fp16.safetensors.index.json"))),
            (before, Some(format!("{stem}.safetensors.fp16.index.json"))),
            (now, None),
            (before, None),
        ];
        for (names, index) in cases {
            let folder = tempfile::tempdir().unwrap();
            shards_of(folder.path(), names, index.as_deref());
            assert_eq!(
                WeightFiles::variants(folder.path()).unwrap(),
                ["fp16"],
                "{names:?}"
            );
            expect(&refused(folder.path()), &["the variant `fp16`"]);
            // Plain weights beside it are others.
            weights(
                &folder.path().join(format!("{stem}.safetensors")),
                StoredDtype::F32,
            );
            let found = |variant| WeightFiles::find(folder.path(), variant).unwrap();
            let files = found(Some("fp16"));
            assert_eq!(files.variant.as_deref(), Some("fp16"));
            let paths = names.map(|name| folder.path().join(name));
            assert_eq!(files.files, paths, "{index:?}");
            let named = index.as_ref().map(|index| folder.path().join(index));
            assert_eq!(files.path(), named.as_deref());
            assert_eq!(Tensors::open(&files).unwrap().len(), 2);
            assert_eq!(found(None).variant, None);
            if let Some(index) = named {
                assert!(WeightFiles::is_index(&index));
                assert_eq!(WeightFiles::of_index(&index).unwrap().files, paths);
            }
            // One that is missing is named, with an index and without.
            fs::remove_file(&paths[1]).unwrap();
            let words = WeightFiles::find(folder.path(), Some("fp16"))
                .unwrap_err()
                .to_string();
            expect(&words, &["lacks 1 of 2", names[1]]);
        }
    }
}

#[test]
fn files_that_are_no_weights_are_told_by_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let with = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        refused(folder.path())
    };
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9787\n";
    expect(&with(pointer), &["pointer of Git LFS", "git lfs pull"]);
    expect(&with(b""), &["has 0 bytes"]);
    expect(
        &with(b"<!doctype html><title>401</title> Unauthorized, log in"),
        &["it is a web page", "logged in"],
    );
    expect(&with(b"<HTML>"), &["it is a web page"]);
    expect(&with(b"PK\x03\x04 and more"), &["`torch.save`", "save_file"]);
    expect(&with(b"GGUF\x03\0\0\0 and more"), &["GGUF"]);
    expect(&with(b"\x89PNG\r\n\x1a\n and more"), &["no safetensors file"]);
    weights(&path, StoredDtype::F32);
    let whole = fs::read(&path).unwrap();
    expect(&with(&whole[..whole.len() - 3]), &["truncated or damaged"]);
    fs::remove_file(&path).unwrap();
    expect(
        &refused(folder.path()),
        &["it has no `*.safetensors`; the weights were not downloaded"],
    );
    fs::write(folder.path().join("model.gguf"), "").unwrap();
    expect(&refused(folder.path()), &["`model.gguf` holds quantised weights"]);
    fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    expect(
        &refused(folder.path()),
        &["`pytorch_model.bin` are pickles", "safe_serialization=True"],
    );
    for name in ["one.safetensors", "two.safetensors"] {
        weights(&folder.path().join(name), StoredDtype::F32);
    }
    expect(
        &refused(folder.path()),
        &[
            "several weight files",
            "name one of `one.safetensors`, `two.safetensors`",
        ],
    );
    fs::remove_file(folder.path().join("two.safetensors")).unwrap();
    fs::write(folder.path().join("._one.safetensors"), "of macOS").unwrap();
    assert_eq!(open(folder.path()).unwrap().len(), 2);
}

#[test]
fn weights_of_few_bits_are_refused_and_counters_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("diffusion_pytorch_model.safetensors");
    for (dtype, bits, part) in [
        ("F8_E4M3", 8, "of few bits"),
        ("F8_E5M2", 8, "of few bits"),
        ("U8", 8, "quantised"),
        ("I8", 8, "quantised"),
        ("F64", 64, "model.float()"),
    ] {
        raw(
            &path,
            &[
                ("blocks.0.weight", dtype, &[4, 4], bits),
                ("norm.weight", "F32", &[4], 32),
            ],
        );
        expect(
            &refused(folder.path()),
            &["1 of 2 tensors are", dtype, "`blocks.0.weight`", part],
        );
    }
    raw(
        &path,
        &[
            ("position_ids", "I64", &[1, 4], 64),
            ("norm.weight", "F32", &[4], 32),
        ],
    );
    let tensors = open(folder.path()).unwrap();
    assert_eq!((tensors.len(), tensors.parameters()), (2, 4));
    let words = tensors.values("position_ids", &[1, 4]).unwrap_err().to_string();
    expect(&words, &["it is I64; weights are F32, BF16 or F16"]);
}

#[test]
fn a_value_that_the_precision_cannot_hold_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = vec![("bias".to_owned(), vec![1], 0)];
    let config = Map::new();
    let error = write_model(
        folder.path(),
        &config,
        &tensors,
        &|_| vec![7e4],
        StoredDtype::F16,
        1 << 30,
    )
    .unwrap_err();
    expect(&error.to_string(), &["`bias` holds 7e4, beyond the range of F16"]);
    assert!(!folder.path().join("diffusion_pytorch_model.safetensors").exists());
}

proptest! {
    #[test]
    fn what_is_written_in_shards_of_any_size_is_read_back(
        shapes in prop::collection::vec(prop::collection::vec(0usize..5, 0..4), 1..8),
        shard_bytes in 0usize..200,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let tensors: Vec<_> = shapes.iter().enumerate().map(|(key, shape)| (format!("t.{key}"), shape.clone(), key)).collect();
        let values = |key: usize| -> Vec<f32> {
            let count: usize = shapes[key].iter().product();
            (0..count).map(|at| (key * 100 + at) as f32).collect()
        };
        write_model(folder.path(), &Map::new(), &tensors, &values, StoredDtype::F32, shard_bytes).unwrap();
        let read = open(folder.path()).unwrap();
        prop_assert_eq!(read.len(), shapes.len());
        for (key, shape) in shapes.iter().enumerate() {
            prop_assert_eq!(read.values(&format!("t.{key}"), shape).unwrap(), values(key));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), header in "[\\[\\]{}:,\"a-f0-9]{0,60}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, &bytes).unwrap();
        let _ = open(folder.path());
        let mut framed = (header.len() as u64).to_le_bytes().to_vec();
        framed.extend(header.as_bytes());
        framed.extend(&bytes);
        fs::write(&path, &framed).unwrap();
        let _ = open(folder.path());
        fs::write(folder.path().join("model.safetensors.index.json"), &header).unwrap();
        prop_assert!(open(folder.path()).is_err() || header.is_empty());
    }
}

#[test]
fn writing_twice_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |name: &str| {
        let path = folder.path().join(name);
        let tensors = vec![("b".to_owned(), vec![2], 1), ("a".to_owned(), vec![2], 0)];
        let metadata = BTreeMap::from([("x".to_owned(), "1".to_owned()), ("y".to_owned(), "2".to_owned())]);
        write(
            tensors,
            &|key| vec![key as f32; 2],
            &path,
            StoredDtype::Bf16,
            &metadata,
        )
        .unwrap();
        fs::read(path).unwrap()
    };
    assert_eq!(bytes("one.safetensors"), bytes("two.safetensors"));
}

#[test]
fn values_that_are_not_finite_are_found_and_counted_wherever_they_are_in_a_long_tensor() {
    for dtype in [StoredDtype::F32, StoredDtype::Bf16, StoredDtype::F16] {
        for (count, places) in [
            (9001, vec![0]),
            (9001, vec![4095, 4096, 9000]),
            (8192, vec![8191]),
            (3, vec![]),
        ] {
            let mut bytes = dtype.encode(&vec![-1.5; count]).expect("it is finite");
            for place in &places {
                let at = (place + 1) * dtype.bytes();
                // Sign, exponent and the upper bits of the mantissa: NaN in each.
                bytes[at - 2..at].fill(0xFF);
            }
            let expected = places.first().map(|first| (*first, places.len()));
            assert_eq!(dtype.not_finite(&bytes), expected, "{dtype:?} {count} {places:?}");
        }
    }
}
