//! Small pipelines of random weights, put together of what this workspace's tests have; recorded tensors; how near is near.
#![allow(dead_code)]

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_core::{Backends, cpu, tensors::plain};
use flow_diffusers::safetensors::parse;
use flow_kernels::CpuKernels;
use flow_models::ModelRegistry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A pipeline's whole folder.
pub fn folder(name: &str) -> tempfile::TempDir {
    test_support::pipeline_folder(name)
}

pub fn plan() -> Arc<Backends> {
    Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ))
}

pub fn models() -> ModelRegistry {
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).unwrap();
    models
}

/// Values on the host.
pub fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    cpu::to_host(&plain(&tensor.clone().into_dispatch()))
}

/// Latents `[B, C, H, W]` as diffusers packs them, `[B, H/2 · W/2, 4 C]`.
pub fn pack(values: &[f32], [channels, height, width]: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for sample in values.chunks(channels * height * width) {
        for row in (0..height).step_by(2) {
            for column in (0..width).step_by(2) {
                for channel in 0..channels {
                    for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        out.push(sample[(channel * height + row + y) * width + column + x]);
                    }
                }
            }
        }
    }
    out
}

/// What diffusers computed, and from what.
pub struct Recorded {
    pub floats: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// How many ones each row of a mask has.
    pub lengths: BTreeMap<String, Vec<usize>>,
    pub settings: Value,
}

impl Recorded {
    pub fn read(pipeline: &str, oracle: &str) -> Self {
        let base = workspace().join("tests/pipelines").join(pipeline);
        let bytes = std::fs::read(base.join(format!("{oracle}.safetensors"))).unwrap();
        let (mut floats, mut lengths) = (BTreeMap::new(), BTreeMap::new());
        for tensor in parse(&bytes).unwrap().tensors {
            match tensor.to_f32() {
                Some(values) => {
                    floats.insert(tensor.name, (tensor.shape, values));
                }
                // A mask, in i64.
                None => {
                    let rows = tensor.bytes.chunks(8 * tensor.shape[1]);
                    let ones = |row: &[u8]| row.iter().map(|byte| usize::from(*byte)).sum();
                    lengths.insert(tensor.name, rows.map(ones).collect());
                }
            }
        }
        let settings = std::fs::read(base.join(format!("{oracle}.json"))).unwrap();
        Self {
            floats,
            lengths,
            settings: serde_json::from_slice(&settings).unwrap(),
        }
    }

    pub fn number(&self, key: &str) -> f64 {
        self.settings[key].as_f64().unwrap()
    }

    pub fn texts(&self, key: &str) -> Vec<String> {
        serde_json::from_value(self.settings[key].clone()).unwrap()
    }

    /// The largest difference to the recorded tensor `name`, and its largest value.
    fn off(&self, found: &[f32], name: &str) -> (f32, f32) {
        let (_, wanted) = &self.floats[name];
        assert_eq!(found.len(), wanted.len(), "{name}: number of values");
        assert!(
            found.iter().all(|value| value.is_finite()),
            "{name}: all values are finite"
        );
        let largest = wanted.iter().fold(0.0f32, |top, value| top.max(value.abs()));
        let each = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        (each.fold(0.0, f32::max), largest)
    }

    /// That `found` is it within `bound` of its largest value.
    pub fn near(&self, found: &[f32], name: &str, bound: f32) {
        let (off, largest) = self.off(found, name);
        assert!(
            off <= bound * largest,
            "{name}: off by {:e} of its largest value",
            off / largest
        );
    }

    /// That `found` is it within `bound`.
    pub fn within(&self, found: &[f32], name: &str, bound: f32) {
        let (off, _) = self.off(found, name);
        assert!(off <= bound, "{name}: off by {off:e}");
    }
}
