//! What a workload's model is called with: functions of the workload alone.

use crate::workloads::{Reads, Workload};
use flow_core::Condition;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use std::collections::BTreeMap;

/// A guidance scale that models embed: that of FLUX.1-dev's pipeline.
const GUIDANCE: f32 = 3.5;

/// What the model is called with, on the host.
pub struct Inputs {
    /// Latents, `[B, N]`.
    pub x: Vec<f32>,
    /// Noise levels, `[B]`.
    pub sigma: Vec<f32>,
    /// What the velocity is compared with, `[B, N]`.
    pub target: Vec<f32>,
    /// Advantages, `[B]`.
    pub advantages: Vec<f32>,
    pub classes: Vec<i64>,
    pub null_classes: Vec<i64>,
    /// Named `text`, `pooled`, `null_text`, `null_pooled` and `guidance`, as far as they are read.
    pub text: BTreeMap<&'static str, (Vec<usize>, Vec<f32>)>,
}

/// Normal values; `salt` tells draws apart.
pub fn normal(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(0, Purpose::Test).at(salt, 0).fill_normal(&mut values);
    values
}

impl Inputs {
    pub fn new(workload: &Workload, values: usize) -> Self {
        let batch = workload.batch;
        let (mut classes, mut null_classes, mut text) = (Vec::new(), Vec::new(), BTreeMap::new());
        match workload.reads {
            Reads::Class { classes: count } => {
                classes = (0..batch).map(|row| (row * 7 % (count - 1)) as i64).collect();
                null_classes = vec![count as i64 - 1; batch];
            }
            Reads::Text {
                tokens,
                channels,
                pooled,
                guidance,
            } => {
                let mut add = |name, shape: Vec<usize>, salt| {
                    let values = normal(shape.iter().product(), salt);
                    text.insert(name, (shape, values));
                };
                add("text", vec![batch, tokens, channels], 10);
                add("null_text", vec![batch, tokens, channels], 11);
                if let Some(pooled) = pooled {
                    add("pooled", vec![batch, pooled], 12);
                    add("null_pooled", vec![batch, pooled], 13);
                }
                if guidance {
                    text.insert("guidance", (vec![batch], vec![GUIDANCE; batch]));
                }
            }
        }
        Self {
            x: normal(batch * values, 1),
            sigma: (0..batch)
                .map(|row| (row as f32 + 0.6) / (batch as f32 + 0.5))
                .collect(),
            target: normal(batch * values, 2),
            advantages: (0..batch).map(|row| 1.0 - 0.3 * (row % 5) as f32).collect(),
            classes,
            null_classes,
            text,
        }
    }

    pub fn condition(&self, device: &ComputeDevice, empty: bool) -> Condition {
        let classes = if empty { &self.null_classes } else { &self.classes };
        let text = |names: [&str; 2]| self.text.get(names[usize::from(empty)]);
        Condition {
            tokens: (!classes.is_empty()).then(|| device.int_tensor(classes.clone(), [classes.len(), 1])),
            text: text(["text", "null_text"])
                .map(|(shape, values)| device.tensor(values.clone(), [shape[0], shape[1], shape[2]])),
            pooled: text(["pooled", "null_pooled"])
                .map(|(shape, values)| device.tensor(values.clone(), [shape[0], shape[1]])),
            guidance: (self.text.get("guidance"))
                .map(|(shape, values)| device.tensor(values.clone(), [shape[0]])),
            ..Condition::default()
        }
    }
}
