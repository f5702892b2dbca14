//! What a run asks of memory, row by row, for people and programs.

use crate::companions::{Companion, Companions};
use crate::memory::{Load, MemoryEstimate, Stored, encoder_bytes};
use crate::phase::Phase;
use flow_config::{Config, Finetune};
use flow_core::{ModelSpec, ParamLayout};
use std::collections::BTreeSet;

/// What is in memory for one purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRow {
    /// What it is: `text_encoder_3`.
    pub part: String,
    /// How much of what: `T5EncoderModel, 4.76 G values in bf16`.
    pub what: String,
    /// Bytes.
    pub bytes: f64,
    /// When it is there; of text encoders one after the other.
    pub when: Vec<Phase>,
}

/// The memory of a run: parts, their sums at each time, and what the device has.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTable {
    /// The parts that take something.
    pub rows: Vec<MemoryRow>,
    /// The sums.
    pub phases: Vec<(Phase, f64)>,
    /// Memory of the device in bytes, if it is known.
    pub available: Option<u64>,
}

/// A model that is to be trained, and what it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Trained<'a> {
    /// Its weights' names and shapes, adapters included.
    pub layout: &'a ParamLayout,
    /// What it is.
    pub spec: &'a ModelSpec,
    /// How many of the layout's values are trained.
    pub values: usize,
    /// What a run asks of memory.
    pub load: &'a Load,
}

impl MemoryTable {
    /// Of a run of `config`, with the models beside the one that is trained, on a device with so many bytes `available`.
    pub fn new(
        config: &Config,
        model: Trained<'_>,
        companions: Option<&Companions>,
        available: Option<u64>,
    ) -> Self {
        let load = model.load;
        let plain = MemoryEstimate::new(model.layout, model.spec, model.values, load);
        let estimate = companions.map_or(plain, |all| plain.with_companions(all, load.stored));
        let mut rows = of_model(config, &model, &estimate);
        if let Some(companions) = companions {
            rows.extend(of_companions(companions, load.stored, &model.spec.latent));
        }
        rows.extend(of_iteration(config, &model, &estimate));
        rows.retain(|row| row.bytes > 0.0);
        let asked: BTreeSet<&str> = rows
            .iter()
            .flat_map(|row| &row.when)
            .map(|phase| phase.name())
            .collect();
        let phases = Phase::ALL
            .into_iter()
            .filter(|phase| asked.contains(phase.name()));
        Self {
            phases: phases.map(|phase| (phase, estimate.at(phase))).collect(),
            available,
            rows,
        }
    }

    /// When most is there, and how much, in bytes.
    pub fn peak(&self) -> (Phase, f64) {
        let largest = |a: (Phase, f64), b: (Phase, f64)| if b.1 >= a.1 { b } else { a };
        let first = (Phase::Update, 0.0);
        self.phases.iter().copied().fold(first, largest)
    }
}

const WITH_MODEL: [Phase; 3] = [Phase::Encoding, Phase::Rollout, Phase::Update];

/// Weights of the model and what grows with them.
fn of_model(config: &Config, model: &Trained<'_>, estimate: &MemoryEstimate) -> Vec<MemoryRow> {
    let mut rows = Vec::new();
    if estimate.loading > estimate.weights {
        rows.push(MemoryRow {
            part: "model, read".into(),
            what: format!(
                "{} values, of which {} that are trained in f32, before they are stored",
                count(model.layout.count_values(|_| true)),
                count(model.values)
            ),
            bytes: estimate.loading,
            when: vec![Phase::Loading],
        });
    }
    rows.extend(of_weights(config, model, estimate));
    rows.extend([of_whole_blocks(estimate), of_products(estimate)]);
    rows.extend(of_training(model, estimate));
    rows
}

/// The model's weights: frozen ones, those in low precision, trained ones.
fn of_weights(config: &Config, model: &Trained<'_>, estimate: &MemoryEstimate) -> [MemoryRow; 3] {
    let Stored { trained, frozen, .. } = model.load.stored;
    let all = model.layout.count_values(|_| true);
    let rest = all - model.values - model.load.low_precision.values;
    let of_trained = match config.model.finetune {
        Finetune::Lora => "adapters",
        Finetune::Full => "model",
    };
    let low_precision = of_low_precision(model.load);
    let of_blocks = |trained: bool| match model.load.weight_shards {
        shards if shards > 1 && model.load.shards_trained == trained => {
            format!(", those of blocks shared out over {shards} processes")
        }
        _ => String::new(),
    };
    let weights = estimate.weights - low_precision.bytes - estimate.trained_weights;
    [
        MemoryRow {
            part: "model".into(),
            what: format!(
                "{}, {} values, frozen, in {}{}",
                model.spec.architecture,
                count(rest),
                dtype(frozen),
                of_blocks(false)
            ),
            bytes: weights,
            when: WITH_MODEL.into(),
        },
        low_precision,
        MemoryRow {
            part: of_trained.into(),
            what: format!(
                "{} values, trained, in {}{}{}",
                count(model.values),
                dtype(trained),
                of_blocks(true),
                match model.load.lower_half_shards {
                    1 => String::new(),
                    shards => format!(", lower halves shared out over {shards} processes"),
                }
            ),
            bytes: estimate.trained_weights,
            when: WITH_MODEL.into(),
        },
    ]
}

/// What training adds: the optimizer's moments, copies of weights, teachers, gradients.
fn of_training(model: &Trained<'_>, estimate: &MemoryEstimate) -> [MemoryRow; 4] {
    let Stored {
        frozen,
        moment,
        gradient,
        ..
    } = model.load.stored;
    let values = count(model.values);
    [
        MemoryRow {
            part: "optimizer".into(),
            what: format!(
                "two moments of {values} values in {}{}{}",
                dtype(moment),
                match model.load.moment_shards {
                    1 => String::new(),
                    shards => format!(", shared out over {shards} processes"),
                },
                match model.load.networks {
                    0 => String::new(),
                    1 => ", and as many of the fake score".to_owned(),
                    others => format!(", and as many of each of {others} networks beside it"),
                }
            ),
            bytes: estimate.moments,
            when: WITH_MODEL.into(),
        },
        MemoryRow {
            part: "copies".into(),
            what: format!(
                "{} of {values} values: averages, references, earlier weights, further networks",
                model.load.copies + model.load.networks
            ),
            bytes: estimate.copies,
            when: WITH_MODEL.into(),
        },
        MemoryRow {
            part: "teachers".into(),
            what: format!(
                "{} whole models and {} adapters that the algorithm learns from, frozen, in {}",
                model.load.teachers.models,
                model.load.teachers.adapters,
                dtype(frozen)
            ),
            bytes: estimate.teachers,
            when: WITH_MODEL.into(),
        },
        MemoryRow {
            part: "gradients".into(),
            what: format!("of {values} values in {}, and their sum in f32", dtype(gradient)),
            bytes: estimate.gradients + estimate.sums,
            when: vec![Phase::Update],
        },
    ]
}

/// Frozen weights in low precision, and room for the largest matrix of them.
fn of_low_precision(load: &Load) -> MemoryRow {
    let low = load.low_precision;
    let bits = |bytes: usize| 8.0 * bytes as f64 / low.values.max(1) as f64;
    let copies = match low.transposed {
        0 => String::new(),
        bytes => format!(", {:.2} of them for a transposed copy", bits(bytes)),
    };
    MemoryRow {
        part: "model, low precision".into(),
        what: format!(
            "{} values, frozen, in {:.2} bits each with their scales{copies}, and the largest matrix of them widened",
            count(low.values),
            bits(low.bytes)
        ),
        bytes: low.bytes as f64 + load.stored.activation as f64 * low.largest as f64,
        when: WITH_MODEL.into(),
    }
}

/// What a product in FP8 takes: the one that takes most, since one computes at a time.
fn of_products(estimate: &MemoryEstimate) -> MemoryRow {
    MemoryRow {
        part: "products in FP8".into(),
        what:
            "of the largest, codes of its activations or gradients, and of trained weights, and these widened"
                .into(),
        bytes: estimate.products,
        when: vec![Phase::Rollout, Phase::Update],
    }
}

/// The block that is whole while it computes and the next one, where processes have parts of them.
fn of_whole_blocks(estimate: &MemoryEstimate) -> MemoryRow {
    MemoryRow {
        part: "whole blocks".into(),
        what: "the largest, while it computes and the next one comes, and rows on their way".into(),
        bytes: estimate.whole_blocks,
        when: vec![Phase::Rollout, Phase::Update],
    }
}

fn of_companions(companions: &Companions, stored: Stored, latent: &flow_core::LatentShape) -> Vec<MemoryRow> {
    let row = |model: &Companion, when: Vec<Phase>| MemoryRow {
        part: model.name.clone(),
        what: format!(
            "{}, {} values in {}{}",
            model.class,
            count(model.values),
            dtype(stored.frozen),
            if model.passing > 0 {
                ", and what passes through it"
            } else {
                ""
            }
        ),
        bytes: encoder_bytes(model, stored),
        when,
    };
    let encoders = companions.encoders.iter();
    let mut rows: Vec<MemoryRow> = encoders.map(|model| row(model, vec![Phase::Encoding])).collect();
    rows.extend(
        companions
            .autoencoder
            .iter()
            .map(|model| row(model, WITH_MODEL.into())),
    );
    let rewards = companions.rewards.iter();
    rows.extend(rewards.map(|model| row(model, WITH_MODEL.into())));
    rows.push(MemoryRow {
        part: "decoding".into(),
        what: format!("latents of {} by {}", latent.width, latent.height),
        bytes: companions.decoding_bytes,
        when: vec![Phase::Rollout],
    });
    rows
}

/// What an iteration keeps.
fn of_iteration(config: &Config, model: &Trained<'_>, estimate: &MemoryEstimate) -> Vec<MemoryRow> {
    let load = model.load;
    vec![
        MemoryRow {
            part: "trajectories".into(),
            what: format!(
                "{} images, {} recorded steps",
                load.images,
                load.records + load.states
            ),
            bytes: estimate.trajectories,
            when: vec![Phase::Rollout, Phase::Update],
        },
        MemoryRow {
            part: "activations".into(),
            what: format!(
                "a micro-batch of {} in {}, checkpointing \"{}\"",
                config.sampling.micro_batch,
                dtype(load.stored.activation),
                crate::checkpoint_policy(config).name()
            ),
            bytes: estimate.activations,
            when: vec![Phase::Update],
        },
        MemoryRow {
            part: "calls".into(),
            what: match load.recorded {
                true => "what passes through a call of a rollout, which its recording keeps".into(),
                false => "what passes through a call of a rollout".into(),
            },
            bytes: estimate.calls,
            when: match load.recorded {
                true => vec![Phase::Rollout, Phase::Update],
                false => vec![Phase::Rollout],
            },
        },
    ]
}

/// A number of values with a decimal prefix: `2.47 G`.
fn count(values: usize) -> String {
    match values as f64 {
        values if values >= 1e9 => format!("{:.2} G", values / 1e9),
        values if values >= 1e6 => format!("{:.2} M", values / 1e6),
        values if values >= 1e4 => format!("{:.1} k", values / 1e3),
        values => values.to_string(),
    }
}

/// The precision of values of so many bytes.
fn dtype(bytes: usize) -> &'static str {
    if bytes == 2 { "bf16" } else { "f32" }
}
