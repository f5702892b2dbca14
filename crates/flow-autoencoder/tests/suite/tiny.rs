//! TAESD against plain f64 loops, with random weights in the format of its author.

use crate::common::{difference, host, noise, normal, with_exec};
use flow_autoencoder::{
    AutoencoderConfig, AutoencoderError, AutoencoderFolder, Latent, Options, Pictures, TinyConfig, open_tiny,
};
use flow_core::device::ComputeDevice;
use flow_core::{LatentShape, Weights};
use flow_models::{StoredDtype, weights::save_tensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WIDTH: usize = 4;
const LATENT: usize = 5;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Random weights of a half: convolutions by place, channels and whether they have a bias, and places of blocks.
fn half(convolutions: &[(usize, [usize; 2], bool)], blocks: &[usize], salt: u64) -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: String, [inputs, outputs]: [usize; 2], bias: bool| {
        let salt = salt + tensors.len() as u64;
        let scale = 0.6 / (inputs as f32).sqrt();
        let weight = noise(outputs * inputs * 9, salt)
            .iter()
            .map(|it| it * scale)
            .collect();
        tensors.insert(format!("{name}.weight"), (vec![outputs, inputs, 3, 3], weight));
        if bias {
            tensors.insert(
                format!("{name}.bias"),
                (vec![outputs], noise(outputs, salt + 500)),
            );
        }
    };
    for (place, channels, bias) in convolutions {
        add(place.to_string(), *channels, *bias);
    }
    for place in blocks {
        for index in [0, 2, 4] {
            add(format!("{place}.conv.{index}"), [WIDTH; 2], true);
        }
    }
    tensors
}

fn halves() -> [Tensors; 2] {
    let inner = [WIDTH; 2];
    let encoder = [
        (0, [3, WIDTH], true),
        (2, inner, false),
        (6, inner, false),
        (10, inner, false),
        (14, [WIDTH, LATENT], true),
    ];
    let decoder = [
        (1, [LATENT, WIDTH], true),
        (7, inner, false),
        (12, inner, false),
        (17, inner, false),
        (19, [WIDTH, 3], true),
    ];
    [
        half(&encoder, &[1, 3, 4, 5, 7, 8, 9, 11, 12, 13], 1000),
        half(&decoder, &[3, 4, 5, 8, 9, 10, 13, 14, 15, 18], 3000),
    ]
}

fn write(folder: &Path, name: &str, tensors: &Tensors) -> PathBuf {
    let path = folder.join(name);
    let list = tensors.iter().enumerate();
    let list = list
        .map(|(index, (name, (shape, _)))| (name.clone(), shape.clone(), index))
        .collect();
    let values: Vec<&Vec<f32>> = tensors.values().map(|(_, values)| values).collect();
    save_tensors(
        list,
        &|index| values[index].clone(),
        &path,
        StoredDtype::F32,
        &BTreeMap::new(),
    )
    .unwrap();
    path
}

/// A picture `[channels, side, side]` in f64.
#[derive(Clone)]
struct Plane {
    channels: usize,
    side: usize,
    values: Vec<f64>,
}

impl Plane {
    fn convolved(&self, tensors: &Tensors, name: &str, stride: usize) -> Self {
        let (shape, weight) = &tensors[&format!("{name}.weight")];
        let bias = tensors.get(&format!("{name}.bias"));
        let (outputs, side) = (shape[0], self.side / stride);
        let mut values = Vec::new();
        for output in 0..outputs {
            for at in 0..side * side {
                let (row, column) = (at / side * stride, at % side * stride);
                let mut sum = bias.map_or(0.0, |(_, bias)| f64::from(bias[output]));
                for tap in 0..9 * self.channels {
                    let (channel, tap) = (tap / 9, tap % 9);
                    let (row, column) = (
                        (row + tap / 3).wrapping_sub(1),
                        (column + tap % 3).wrapping_sub(1),
                    );
                    if row < self.side && column < self.side {
                        let value = self.values[(channel * self.side + row) * self.side + column];
                        sum += value * f64::from(weight[(output * self.channels + channel) * 9 + tap]);
                    }
                }
                values.push(sum);
            }
        }
        Self {
            channels: outputs,
            side,
            values,
        }
    }

    fn map(mut self, change: impl Fn(f64) -> f64) -> Self {
        self.values.iter_mut().for_each(|value| *value = change(*value));
        self
    }

    fn relu(self) -> Self {
        self.map(|value| value.max(0.0))
    }

    fn block(&self, tensors: &Tensors, place: usize) -> Self {
        let name = |index| format!("{place}.conv.{index}");
        let h = self.convolved(tensors, &name(0), 1).relu();
        let h = h.convolved(tensors, &name(2), 1).relu();
        let mut h = h.convolved(tensors, &name(4), 1);
        h.values.iter_mut().zip(&self.values).for_each(|(h, x)| *h += x);
        h.relu()
    }

    fn doubled(&self) -> Self {
        let side = 2 * self.side;
        let values = (0..self.channels * side * side).map(|at| {
            let (channel, row, column) = (at / (side * side), at / side % side, at % side);
            self.values[(channel * self.side + row / 2) * self.side + column / 2]
        });
        Self {
            channels: self.channels,
            side,
            values: values.collect(),
        }
    }
}

fn decoded(tensors: &Tensors, z: Plane) -> Plane {
    let z = z.map(|value| 3.0 * (value / 3.0).tanh());
    let mut x = z.convolved(tensors, "1", 1).relu();
    for (blocks, step) in [([3, 4, 5], "7"), ([8, 9, 10], "12"), ([13, 14, 15], "17")] {
        x = blocks.iter().fold(x, |x, place| x.block(tensors, *place));
        x = x.doubled().convolved(tensors, step, 1);
    }
    x.block(tensors, 18)
        .convolved(tensors, "19", 1)
        .map(|value| 2.0 * value - 1.0)
}

fn encoded(tensors: &Tensors, x: Plane) -> Plane {
    let x = x.map(|value| value / 2.0 + 0.5);
    let mut x = x.convolved(tensors, "0", 1).block(tensors, 1);
    for (step, blocks) in [("2", [3, 4, 5]), ("6", [7, 8, 9]), ("10", [11, 12, 13])] {
        x = x.convolved(tensors, step, 2);
        x = blocks.iter().fold(x, |x, place| x.block(tensors, *place));
    }
    x.convolved(tensors, "14", 1)
}

fn plane(channels: usize, side: usize, values: &[f32]) -> Plane {
    Plane {
        channels,
        side,
        values: values.iter().map(|it| f64::from(*it)).collect(),
    }
}

fn opened(folder: &Path, [encoder, decoder]: &[Tensors; 2]) -> (flow_autoencoder::Autoencoder, Weights) {
    let encoder = write(folder, "taesd_encoder.safetensors", encoder);
    let decoder = write(folder, "taesd_decoder.safetensors", decoder);
    open_tiny(&encoder, &decoder, &ComputeDevice::cpu()).unwrap()
}

#[test]
fn both_directions_are_those_of_f64_loops() {
    let (folder, halves) = (tempfile::tempdir().unwrap(), halves());
    let (autoencoder, weights) = opened(folder.path(), &halves);
    assert_eq!(autoencoder.spec().latent_channels, LATENT);
    // Latents far beyond 3, which are held back.
    let latent = normal([1, LATENT, 1, 3, 3], 1) * 4.0;
    let picture = normal([1, 3, 1, 24, 24], 2);
    let (found, moments) = with_exec(&weights, |exec| {
        let options = Options::default();
        let pictures = autoencoder.decode(exec, Latent::new(latent.clone()), &options);
        let moments = autoencoder.encode(exec, Pictures::new(picture.clone()), &options);
        (host(pictures.unwrap().into_tensor()), moments.unwrap())
    });
    let as_f32 = |plane: Plane| -> Vec<f32> { plane.values.iter().map(|it| *it as f32).collect() };
    let expected = as_f32(decoded(&halves[1], plane(LATENT, 3, &host(latent))));
    let distance = difference(&found, &expected);
    assert!(distance < 1e-5, "{distance:e}");
    let expected = as_f32(encoded(&halves[0], plane(3, 24, &host(picture))));
    let distance = difference(&host(moments.mode().into_tensor()), &expected);
    assert!(distance < 1e-5, "{distance:e}");
    assert!(
        host(moments.deviation())
            .iter()
            .all(|deviation| *deviation < 1e-6)
    );
}

#[test]
fn files_that_are_no_halves_are_told_what_is_wrong() {
    let (folder, halves) = (tempfile::tempdir().unwrap(), halves());
    let encoder = write(folder.path(), "encoder.safetensors", &halves[0]);
    let decoder = write(folder.path(), "decoder.safetensors", &halves[1]);
    let device = ComputeDevice::cpu();
    let error = |encoder: &Path, decoder: &Path| open_tiny(encoder, decoder, &device).unwrap_err();
    let said = error(&decoder, &encoder).to_string();
    assert!(
        said.contains("encoder.safetensors") && said.contains("a decoder has a tensor `1.weight`"),
        "{said}"
    );
    let said = error(&decoder, &decoder).to_string();
    assert!(said.contains("encoder's tensor `0.weight` is missing"), "{said}");
    let mut more = halves[1].clone();
    more.insert("20.bias".into(), (vec![1], vec![0.0]));
    let more = write(folder.path(), "more.safetensors", &more);
    let said = error(&encoder, &more).to_string();
    assert!(said.contains("decoder has 67 tensors, the file 68"), "{said}");
    let pointer = folder.path().join("pointer.safetensors");
    std::fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert!(matches!(
        error(&pointer, &decoder),
        AutoencoderError::LfsPointer { .. }
    ));
    assert!(
        error(Path::new("nowhere"), &decoder)
            .to_string()
            .contains("cannot read `nowhere`")
    );
}

#[test]
fn a_folder_of_the_two_files_says_what_it_holds_before_its_weights_are_read() {
    let (folder, halves) = (tempfile::tempdir().unwrap(), halves());
    let (autoencoder, weights) = opened(folder.path(), &halves);
    let found = AutoencoderFolder::open(folder.path()).unwrap();
    let config = TinyConfig {
        width: WIDTH,
        latent_channels: LATENT,
    };
    assert_eq!(found.config(), &AutoencoderConfig::Tiny(config));
    assert_eq!(found.config().spec(), *autoencoder.spec());
    let files = found.weight_files().unwrap();
    let tensors = files.iter().flat_map(|file| file.parse().unwrap().tensors);
    let bytes: usize = tensors.map(|tensor| tensor.bytes.len()).sum();
    assert_eq!(bytes, 4 * autoencoder.layout().count_values(|_| true));
    // Input, output and sum of a layer at full size.
    let latent = LatentShape {
        channels: LATENT,
        frames: 1,
        height: 3,
        width: 5,
    };
    let decoding = found.config().decoding_bytes(latent, 2, 4, true);
    assert_eq!(decoding, 3 * (3 * 8) * (5 * 8) * WIDTH * 4);
    let (_, again) = found.load(&ComputeDevice::cpu()).unwrap();
    assert!((0..weights.layout().len()).all(|index| again.host(index) == weights.host(index)));
    std::fs::remove_file(folder.path().join("taesd_encoder.safetensors")).unwrap();
    let said = AutoencoderFolder::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("encoder.safetensors"), "{said}");
}
