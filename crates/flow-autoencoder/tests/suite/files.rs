//! Folders that are wrong, and inputs that do not fit: what is said of them.

use crate::common::{KL, fixture, fixture_autoencoder, normal, with_exec};
use flow_autoencoder::{AutoencoderError, Latent, Options, Pictures, Tiling, config_of, open};
use flow_core::device::ComputeDevice;
use flow_models::{StoredDtype, save};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

fn error_of(path: &Path) -> AutoencoderError {
    open(path, &ComputeDevice::cpu()).expect_err("it is wrong")
}

fn message(path: &Path) -> String {
    error_of(path).to_string()
}

/// A copy of the folder of a small `AutoencoderKL`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", WEIGHTS] {
        fs::copy(fixture(KL).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

#[test]
fn a_pipelines_folder_stands_for_its_autoencoder() {
    let device = ComputeDevice::cpu();
    let (outer, _) = open(&fixture("pipelines/sd3"), &device).unwrap();
    let (inner, _) = open(&fixture("pipelines/sd3/vae"), &device).unwrap();
    assert_eq!(outer.spec(), inner.spec());
    assert_eq!(
        config_of(&fixture(KL)).unwrap().scaling(),
        *fixture_autoencoder("kl").0.scaling()
    );
}

#[test]
fn weights_in_bf16_and_f16_are_read_and_widened() {
    let (_, weights) = fixture_autoencoder("kl");
    for dtype in [StoredDtype::Bf16, StoredDtype::F16] {
        let folder = folder();
        save(&weights, &folder.path().join(WEIGHTS), dtype, &BTreeMap::new()).unwrap();
        let (_, narrow) = open(folder.path(), &ComputeDevice::cpu()).unwrap();
        let difference = crate::common::difference(&narrow.host(0), &weights.host(0));
        assert!(difference > 0.0 && difference < 5e-3, "{dtype:?}: {difference:e}");
    }
}

#[test]
fn a_wrong_folder_is_told_what_it_is_and_where_to_look() {
    let empty = tempfile::tempdir().unwrap();
    let said = message(&empty.path().join("nowhere"));
    assert!(said.contains("there is nothing at this path"), "{said}");
    let said = message(empty.path());
    assert!(said.contains("it has no `config.json`"), "{said}");
    let said = message(&fixture(KL).join(WEIGHTS));
    assert!(
        said.contains("it is a file; name the folder that it lies in"),
        "{said}"
    );

    fs::write(empty.path().join("model_index.json"), "{}").unwrap();
    let said = message(empty.path());
    assert!(
        said.contains("its folder `vae` with `config.json` is missing"),
        "{said}"
    );

    let transformer = folder();
    let settings = r#"{"_class_name": "FluxTransformer2DModel"}"#;
    fs::write(transformer.path().join("config.json"), settings).unwrap();
    let said = message(transformer.path());
    assert!(said.contains("is `FluxTransformer2DModel`"), "{said}");
    assert!(said.contains("in the folder `vae`"), "{said}");

    let damaged = folder();
    fs::write(damaged.path().join("config.json"), "{").unwrap();
    assert!(message(damaged.path()).contains("is no JSON"));
}

#[test]
fn files_that_are_missing_or_only_pointers_are_named() {
    let without = folder();
    fs::remove_file(without.path().join(WEIGHTS)).unwrap();
    let said = message(without.path());
    assert!(said.contains("holds no `*.safetensors`"), "{said}");

    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 334172\n";
    for file in ["config.json", WEIGHTS] {
        let folder = folder();
        fs::write(folder.path().join(file), pointer).unwrap();
        let error = error_of(folder.path());
        assert!(matches!(error, AutoencoderError::LfsPointer { .. }), "{error}");
        assert!(
            error.to_string().contains(file) && error.to_string().contains("git lfs pull"),
            "{error}"
        );
    }

    let truncated = folder();
    let bytes = fs::read(fixture(KL).join(WEIGHTS)).unwrap();
    fs::write(truncated.path().join(WEIGHTS), &bytes[..bytes.len() / 2]).unwrap();
    let said = message(truncated.path());
    assert!(said.contains("it is truncated or damaged"), "{said}");
}

#[test]
fn weights_of_another_size_are_listed() {
    let folder = folder();
    let settings = fs::read_to_string(fixture(KL).join("config.json")).unwrap();
    let settings = settings.replacen("    12,", "    20,", 1);
    fs::write(folder.path().join("config.json"), settings).unwrap();
    let said = message(folder.path());
    assert!(said.contains("of another shape"), "{said}");
    assert!(
        said.contains("decoder.up_blocks.2.resnets.1.conv1.weight: the model has [20, 20, 3, 3]"),
        "{said}"
    );
}

#[test]
fn weights_of_eight_bits_are_refused_with_a_way_out() {
    let folder = folder();
    let header = r#"{"decoder.conv_in.bias":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 16]);
    fs::write(folder.path().join(WEIGHTS), bytes).unwrap();
    let said = message(folder.path());
    assert!(
        said.contains("holds weights in F8_E4M3, for instance `decoder.conv_in.bias`"),
        "{said}"
    );
    assert!(said.contains("Take the original folder"), "{said}");
}

#[test]
fn tensors_and_tiles_that_do_not_fit_are_refused() {
    let (pictures, weights) = fixture_autoencoder("kl");
    let (videos, video_weights) = fixture_autoencoder("wan");
    let plain = Options::default();
    let decode = |latent: [usize; 5], options: &Options| {
        with_exec(&weights, |exec| {
            let latent = Latent::new(normal(latent, 1));
            let decoded = pictures.decode(exec, latent, options);
            decoded.expect_err("it does not fit").to_string()
        })
    };
    let said = decode([1, 4, 1, 8, 8], &plain);
    assert!(
        said.contains("[1, 4, 1, 8, 8]: this autoencoder's latents have C = 16 channels"),
        "{said}"
    );
    let said = decode([1, 16, 2, 8, 8], &plain);
    assert!(
        said.contains("this autoencoder makes pictures, so F must be 1"),
        "{said}"
    );
    for (tile, stride, expected) in [
        (0, 0, "both must be at least 1"),
        (8, 9, "make the stride at most the tile"),
        (8, 3, "make the stride at least half of the tile"),
    ] {
        let options = Options {
            tiling: Some(Tiling { tile, stride }),
            ..Options::default()
        };
        let said = decode([1, 16, 1, 9, 9], &options);
        assert!(said.contains(expected), "{said}");
    }
    let encode = |size: [usize; 5]| {
        with_exec(&video_weights, |exec| {
            let video = Pictures::new(normal(size, 1));
            let moments = videos.encode(exec, video, &plain);
            moments.expect_err("it does not fit").to_string()
        })
    };
    let said = encode([1, 3, 4, 32, 32]);
    assert!(
        said.contains("F = 4 must be 1 and a multiple of 4 more, for instance 1 or 5"),
        "{said}"
    );
    let said = encode([1, 3, 1, 30, 32]);
    assert!(
        said.contains("H = 30 must be a multiple of 8, for instance 24 or 32"),
        "{said}"
    );
    let said = encode([1, 1, 1, 32, 32]);
    assert!(said.contains("reads 3 colours"), "{said}");
}
