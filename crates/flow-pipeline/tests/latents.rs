//! Pictures as latents: the encoder's means in the transformer's units, and a cache of them.

mod common;

use common::{folder, host, plan};
use flow_autoencoder::{Options, Pictures};
use flow_core::LatentShape;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_pipeline::{
    LatentCache, PictureBuckets, PictureEncoder, PictureSource, Pipeline, PipelineError, Size,
};
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: Size = Size::picture(48, 64);

/// Waves in [-1, 1].
fn waves(phase: usize) -> Vec<f32> {
    waves_of(phase, SIZE)
}

fn waves_of(phase: usize, size: Size) -> Vec<f32> {
    (0..3 * size.width * size.height)
        .map(|index| ((index % size.width + index / size.width) as f32 * 0.13 + phase as f32).sin())
        .collect()
}

#[test]
fn latents_are_the_means_of_the_encoder_in_the_units_of_the_folders_config() {
    let device = ComputeDevice::cpu();
    for name in ["sd3", "flux-dev", "qwen-image", "wan"] {
        let place = folder(name);
        let pipeline = Pipeline::open(place.path(), None).unwrap();
        let values = [waves(1), waves(2)].concat();
        let encoder = PictureEncoder::load(&pipeline, &device, &plan()).unwrap();
        let found = host(&encoder.encode(values.clone(), SIZE).unwrap());
        // The network's moments, and the formulas of diffusers' pipelines in f64.
        let (autoencoder, weights) = pipeline.autoencoder(&device).unwrap();
        let pass = InferencePass::new(&weights, plan());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let pictures = Pictures::new(device.tensor(values, [2, 3, 1, 64, 48]));
        let moments = autoencoder.encode(&exec, pictures, &Options::default()).unwrap();
        let moments = host(moments.tensor());
        let config = std::fs::read(place.path().join("vae/config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let plane = 8 * 6;
        let of_sample = 2 * 16 * plane;
        for (index, found) in found.iter().enumerate() {
            let (sample, channel, place) = (index / (16 * plane), index / plane % 16, index % plane);
            let mean = f64::from(moments[sample * of_sample + channel * plane + place]);
            let number = |value: &Value| value.as_f64().unwrap();
            let wanted = match config["latents_mean"].as_array() {
                Some(means) => (mean - number(&means[channel])) / number(&config["latents_std"][channel]),
                None => (mean - number(&config["shift_factor"])) * number(&config["scaling_factor"]),
            };
            assert!(
                (f64::from(*found) - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()),
                "{name}, value {index}: {found} for {wanted}"
            );
        }
        let wrong = encoder.encode(vec![0.0; 7], SIZE).unwrap_err();
        assert!(matches!(wrong, PipelineError::Size { .. }), "{wrong}");
    }
}

/// Pictures that are known by one byte each; counts how often one is decoded.
struct Source {
    phases: Vec<u8>,
    decoded: AtomicUsize,
}

impl Source {
    fn new(phases: &[u8]) -> Self {
        Self {
            phases: phases.to_vec(),
            decoded: AtomicUsize::new(0),
        }
    }
}

impl PictureSource for Source {
    fn len(&self) -> u64 {
        self.phases.len() as u64
    }

    fn bytes(&self, index: u64) -> Result<Vec<u8>, String> {
        match self.phases[index as usize] {
            99 => Err("picture 99 is gone".into()),
            phase => Ok(vec![phase]),
        }
    }

    fn values(&self, _: u64, bytes: &[u8], size: Size) -> Result<Vec<f32>, String> {
        self.decoded.fetch_add(1, Ordering::Relaxed);
        Ok(waves_of(usize::from(bytes[0]), size))
    }
}

#[test]
fn a_picture_is_encoded_once_and_found_by_its_bytes() {
    let device = ComputeDevice::cpu();
    let place = folder("sd3");
    let pipeline = Pipeline::open(place.path(), None).unwrap();
    let cache = LatentCache::new(place.path().join("latents"));
    let encode = |source: &Source| {
        let mut seen = Vec::new();
        let buckets = PictureBuckets::single(SIZE, source.len());
        let made = cache.encode(&pipeline, source, &buckets, (&device, &plan()), &mut |count| {
            seen.push(count)
        });
        assert!(made.is_err() || seen == (1..=source.len()).collect::<Vec<_>>());
        made
    };
    let source = Source::new(&[1, 2, 1]);
    let (encoded, used) = encode(&source).unwrap();
    assert_eq!((used.encoded, used.found, encoded.len()), (2, 0, 3));
    assert_eq!(source.decoded.load(Ordering::Relaxed), 2);
    let shape = LatentShape {
        channels: 16,
        frames: 1,
        height: 8,
        width: 6,
    };
    assert_eq!(encoded.shape(2), shape);
    let alone = PictureEncoder::load(&pipeline, &device, &plan()).unwrap();
    assert_eq!(
        encoded.get(0).unwrap(),
        host(&alone.encode(waves(1), SIZE).unwrap())
    );
    assert_eq!(encoded.get(2).unwrap(), encoded.get(0).unwrap());
    assert_ne!(encoded.get(1).unwrap(), encoded.get(0).unwrap());

    // Pictures are known by their bytes, whatever their order, and those that are there are not decoded.
    let source = Source::new(&[3, 2, 1]);
    let (other, used) = encode(&source).unwrap();
    assert_eq!((used.encoded, used.found), (1, 2));
    assert_eq!(source.decoded.load(Ordering::Relaxed), 1);
    assert_eq!(other.get(1).unwrap(), encoded.get(1).unwrap());
    assert_ne!(other.contents(), encoded.contents());
    let (same, _) = encode(&Source::new(&[1, 2, 1])).unwrap();
    assert_eq!(same.contents(), encoded.contents());

    // An entry that is cut off is made again; one whose values changed is refused.
    let files = std::fs::read_dir(cache.folder()).unwrap();
    let entries = files.map(|file| file.unwrap().path());
    let entries: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
        .collect();
    assert_eq!(entries.len(), 3);
    for path in &entries {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() - 3]).unwrap();
    }
    let (again, used) = encode(&Source::new(&[1, 2])).unwrap();
    assert_eq!((used.encoded, used.damaged.len()), (2, 2));
    assert_eq!(again.get(0).unwrap(), encoded.get(0).unwrap());
    for path in &entries {
        let mut bytes = std::fs::read(path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let damaged = again.get(0).unwrap_err().to_string();
    assert!(damaged.contains("not those that were written"), "{damaged}");

    // What is wrong with a picture is said in its words, and a video is no picture.
    let gone = encode(&Source::new(&[4, 99])).unwrap_err();
    assert_eq!(gone.to_string(), "picture 99 is gone");
}

#[test]
fn pictures_of_several_sizes_are_encoded_as_each_would_be_by_itself() {
    let device = ComputeDevice::cpu();
    let wide = Size::picture(80, 32);
    let sizes = [SIZE, wide, wide, SIZE, Size::picture(32, 32)];
    for name in ["sd3", "flux-dev", "qwen-image", "wan"] {
        let place = folder(name);
        let pipeline = Pipeline::open(place.path(), None).unwrap();
        let cache = LatentCache::new(place.path().join("latents"));
        let encode = |phases: &[u8], buckets: &PictureBuckets| {
            let source = Source::new(phases);
            cache.encode(&pipeline, &source, buckets, (&device, &plan()), &mut |_| ())
        };
        let buckets = PictureBuckets::of(sizes);
        assert_eq!(buckets.counts(), [2, 2, 1]);
        // The second and the third are one picture.
        let phases = [1, 2, 2, 3, 2];
        let (encoded, used) = encode(&phases, &buckets).unwrap();
        assert_eq!((used.encoded, used.found, encoded.len()), (4, 0, 5), "{name}");
        let alone = PictureEncoder::load(&pipeline, &device, &plan()).unwrap();
        for (index, (size, phase)) in sizes.into_iter().zip(phases).enumerate() {
            let shape = pipeline.latent(size).unwrap();
            assert_eq!(encoded.shape(index as u64), shape);
            let values = waves_of(usize::from(phase), size);
            let wanted = host(&alone.encode(values, size).unwrap());
            let found = encoded.get(index as u64).unwrap();
            assert_eq!(found.len(), shape.values());
            assert!(found == wanted, "{name}, picture {index}");
        }
        // Another size of one picture is another entry, and other contents; those of before are there.
        let other = PictureBuckets::of([SIZE, wide, wide, wide, Size::picture(32, 32)]);
        let (changed, used) = encode(&phases, &other).unwrap();
        assert_eq!((used.encoded, used.found), (1, 3));
        assert_ne!(changed.contents(), encoded.contents());
        // What does not fit is said before anything is encoded.
        let few = encode(&phases[..4], &buckets).unwrap_err().to_string();
        assert!(few.contains("5 pictures have a size, and there are 4"), "{few}");
        let odd = PictureBuckets::of([SIZE, Size::picture(50, 64)]);
        let odd = encode(&phases[..2], &odd).unwrap_err().to_string();
        assert!(odd.contains("nearest: 48 or 64"), "{odd}");
    }
}

#[test]
fn another_autoencoder_or_size_is_another_latent() {
    let device = ComputeDevice::cpu();
    let place = folder("wan");
    let cache = LatentCache::new(place.path().join("latents"));
    let encoded = |size: Size| {
        let pipeline = Pipeline::open(place.path(), None).unwrap();
        let source = Source::new(&[1]);
        let buckets = PictureBuckets::single(size, 1);
        let made = cache.encode(&pipeline, &source, &buckets, (&device, &plan()), &mut |_| ());
        made.map(|(_, used)| used.encoded)
    };
    assert_eq!(encoded(SIZE).unwrap(), 1);
    assert_eq!(encoded(SIZE).unwrap(), 0);
    let video = encoded(Size { frames: 5, ..SIZE }).unwrap_err().to_string();
    assert!(video.contains("model.frames = 1"), "{video}");
    // Other settings of the autoencoder, with the same weights.
    let config = place.path().join("vae/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n")).unwrap();
    assert_eq!(encoded(SIZE).unwrap(), 1);
}

#[test]
fn latents_of_another_variant_of_the_autoencoder_are_others() {
    let device = ComputeDevice::cpu();
    let place = folder("sd3");
    let weights = |name: &str| place.path().join("vae").join(name);
    let plain = std::fs::read(weights("diffusion_pytorch_model.safetensors")).unwrap();
    std::fs::write(weights("diffusion_pytorch_model.half.safetensors"), &plain).unwrap();
    let cache = LatentCache::new(place.path().join("latents"));
    let encode = || {
        let pipeline = Pipeline::open(place.path(), Some("half")).unwrap();
        let made = cache.encode(
            &pipeline,
            &Source::new(&[1]),
            &PictureBuckets::single(SIZE, 1),
            (&device, &plan()),
            &mut |_| (),
        );
        let (encoded, used) = made.unwrap();
        (encoded.get(0).unwrap(), used.encoded)
    };
    let (before, made) = encode();
    assert_eq!((made, encode().1), (1, 0));
    // The sign of the last value, of weights that the plain ones know nothing of.
    let mut other = plain;
    *other.last_mut().unwrap() ^= 0x80;
    std::fs::write(weights("diffusion_pytorch_model.half.safetensors"), &other).unwrap();
    let (after, made) = encode();
    assert_eq!(made, 1);
    assert_eq!(before.len(), after.len());
}
