//! Flow matching on a data set: how the small models that reinforcement learning starts from are made, and how a published one is
//! tuned to pictures.
//!
//! Loss: `mean |v(x_sigma, sigma, c) - (noise - data)|²` with `x_sigma = (1 - sigma) data + sigma noise` (Lipman et al.
//! 2022, arXiv:2210.02747) and `sigma` the sigmoid of a standard normal value (Esser et al. 2024, arXiv:2403.03206,
//! section 3.1), stratified over the batch. Some captions are wrong on purpose and some are dropped, for guidance.

mod encoded_images;
mod examples;
mod order;
mod state;

pub use encoded_images::EncodedImages;
pub(crate) use examples::FittedPictures;
pub use examples::{Examples, LatentExamples, PixelExamples};
pub use state::{Clock, Keeping, PretrainCheckpoint};

use crate::conditions::Conditioner;
use crate::distributed::{Distribution, on_some_rank};
use crate::error::TrainError;
use crate::observer::{IterationSummary, Observer, Phase};
use crate::optimizer::{Accumulated, AdamW, AdamWSettings, NonFiniteGradient, StepReport};
use crate::timesteps::standard_normal_quantile;
use burn::tensor::{DType, Tensor};
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Backends, CallContext, Exec, FlowModel, Kernels, ModelInput, Noise, ParamLayout, RawTensor, RegionKind,
    Stage, TrainingPass, Weights, cpu, tensors::plain,
};
use flow_data::Prompt;
use flow_models::{Trained, trained_mask};
use flow_report::Stopwatch;
use order::{BatchOrder, Places};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::{Deserialize, Serialize};
use state::{Savings, State, save};
use std::ops::Range;
use std::sync::Arc;

/// Numbers of a pretraining.
#[derive(Clone, Debug, PartialEq)]
pub struct PretrainSettings {
    /// Optimizer steps.
    pub steps: u64,
    /// Images per step.
    pub batch: usize,
    /// Share of captions replaced by wrong ones.
    pub label_noise: f64,
    /// Share of captions replaced by the empty one.
    pub condition_dropout: f64,
    /// Factor of the load balance of a model with experts in the loss.
    pub balance_weight: f64,
    /// Decay of the average that is returned, towards the end of training.
    pub average_decay: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// The optimizer. The learning rate falls along a cosine to a tenth.
    pub optimizer: AdamWSettings,
}

/// What a pretraining gives.
#[derive(Debug)]
pub struct Pretrained {
    /// Averaged weights.
    pub weights: Weights,
    /// Mean loss of the last hundredth of the steps, at least one.
    pub final_loss: f64,
    /// Loss of every step that was taken: fewer than asked for, if the observer was interrupted.
    pub losses: Vec<f32>,
}

/// One batch of images and captions.
struct Batch {
    /// Of which all of them are.
    bucket: usize,
    data: Vec<f32>,
    /// Where each row stands among all that are shown, which addresses its noise.
    positions: Vec<u64>,
    sigmas: Vec<f32>,
    captions: Vec<Option<Prompt>>,
}

/// An image and the caption it is shown with.
struct Row {
    data: Vec<f32>,
    caption: Option<Prompt>,
}

/// The rows `own` of the batch of a step, of the examples at `places`. Rows are made on the threads of the calling pool; each is a function of its position
/// alone.
fn batch(
    dataset: &dyn Examples,
    settings: &PretrainSettings,
    step: u64,
    (Places { bucket, rows: places }, own): (Places, Range<usize>),
) -> Result<Batch, TrainError> {
    let count = places.len();
    let stream = |purpose| Stream::new(settings.seed, purpose);
    let mut times = stream(Purpose::Timesteps).at(step, 0);
    // One draw per stratum of the batch keeps the noise of the loss down.
    let sigma = |row: usize| {
        let uniform = (row as f64 + times.uniform()) / count as f64;
        sigmoid(standard_normal_quantile(uniform.clamp(1e-6, 1.0 - 1e-6))) as f32
    };
    let sigmas: Vec<f32> = (0..count).map(sigma).collect();
    let (sigmas, places) = (sigmas[own.clone()].to_vec(), &places[own]);
    let rows = places.par_iter().map(|&(position, index)| {
        let (data, caption) = dataset.example(index)?;
        let dropped = stream(Purpose::Captions).at(position, 0).uniform() < settings.condition_dropout;
        let share = settings.label_noise as f32;
        let noisy = dataset.noisy_prompt(&caption, share, settings.seed, position)?;
        Ok(Row {
            data,
            caption: (!dropped).then_some(noisy),
        })
    });
    let rows: Vec<Row> = rows.collect::<Result<_, TrainError>>()?;
    Ok(Batch {
        bucket,
        data: rows.iter().flat_map(|row| &row.data).copied().collect(),
        positions: places.iter().map(|(position, _)| *position).collect(),
        sigmas,
        captions: rows.into_iter().map(|row| row.caption).collect(),
    })
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// What is trained, on what, and how it computes.
#[derive(Clone, Copy)]
pub struct Pretraining<'a> {
    /// The model at the size of each bucket of the examples, in their order: all with the same weights.
    pub models: &'a [Arc<dyn FlowModel>],
    /// Kernels and attention.
    pub plan: &'a Arc<Backends>,
    /// Images or latents, with captions.
    pub dataset: &'a dyn Examples,
    /// From captions to what the model takes.
    pub conditioner: &'a Conditioner,
    /// Where tensors live.
    pub device: &'a ComputeDevice,
    /// How a batch is spread over ranks.
    pub distribution: &'a Distribution,
}

impl Pretraining<'_> {
    /// That there is something to learn from, and a model for each bucket of it.
    fn fit(&self) -> Result<(), TrainError> {
        let (buckets, models) = (self.dataset.buckets(), self.models.len());
        if self.dataset.is_empty() {
            return Err(TrainError::setting("there is no example to learn from"));
        }
        let ranks = self.distribution.exchange.world().ranks;
        if let Some(refused) = flow_validate::sharded_pretraining(self.distribution.shard, ranks) {
            return Err(TrainError::refused(refused));
        }
        match buckets == models {
            true => Ok(()),
            false => Err(TrainError::setting(format!(
                "the examples have {buckets} sizes, and there are models of {models}"
            ))),
        }
    }

    /// Mean loss and gradients of some rows of a batch.
    fn unit(
        &self,
        weights: &Weights,
        trained: &Arc<[bool]>,
        batch: &Batch,
        rows: Range<usize>,
        settings: &PretrainSettings,
    ) -> (RawTensor, Vec<Option<RawTensor>>) {
        let model = &*self.models[batch.bucket];
        let values = model.spec().latent.values();
        let shape = [rows.len(), values];
        let elements = rows.start * values..rows.end * values;
        let data: Tensor<2> = self.device.tensor(batch.data[elements].to_vec(), shape);
        let noise = Noise {
            stream: Stream::new(settings.seed, Purpose::ForwardNoise),
            samples: &batch.positions[rows.clone()],
            step: 0,
            values,
        };
        let noise: Tensor<2> =
            Tensor::from_dispatch(self.plan.kernels.ops().sampler.noise(&noise, self.device));
        let sigma: Tensor<1> = self
            .device
            .tensor(batch.sigmas[rows.clone()].to_vec(), [rows.len()]);
        let sigma_b1: Tensor<2> = sigma.clone().unsqueeze_dim(1);
        let x = data.clone() + (noise.clone() - data.clone()) * sigma_b1;
        let target = plain(&(noise - data).into_dispatch());
        let pass = TrainingPass::new(weights, self.plan.clone(), trained.clone());
        let exec = pass.exec(CallContext::single(Stage::Training));
        let captions: Vec<Option<&Prompt>> = batch.captions[rows].iter().map(Option::as_ref).collect();
        let condition = self.conditioner.rows(&captions);
        let input = ModelInput { x, sigma, condition };
        let (v, balance_b) = velocity(model, &exec, input);
        let error_b = self
            .plan
            .kernels
            .ops()
            .loss
            .mean_squared_distance(&v.into_dispatch(), &target);
        let mut loss = Tensor::<1>::from_dispatch(error_b).mean_dim(0);
        if let Some(balance_b) = balance_b {
            loss = loss + balance_b.mean_dim(0) * settings.balance_weight as f32;
        }
        let value = plain(&loss.clone().into_dispatch());
        (value, pass.gradients(&loss))
    }
}

/// Velocity in f32 and, of a model with experts, their balance. Others are called as losses call them, so that accelerators may answer.
fn velocity(model: &dyn FlowModel, exec: &Exec<'_>, input: ModelInput) -> (Tensor<2>, Option<Tensor<1>>) {
    if !model.spec().regions.contains(&RegionKind::Moe) {
        return (exec.velocity(model, input), None);
    }
    let (v, balance_b) = model.velocity_and_balance(exec, input);
    match v.dtype() {
        DType::F32 => (v, balance_b),
        _ => (v.cast(DType::F32), balance_b),
    }
}

/// Equal pieces, as many in each lane, into which a batch is split: on a processor of at least 16 rows, where there are so many; a function
/// of the batch and the lanes alone, so that the bits are those of every machine. A GPU takes what it has of a lane as a whole: pieces
/// would follow one another there.
fn pieces(batch: usize, lanes: usize, device: &ComputeDevice) -> usize {
    let least = if device.is_processor() { 16 } else { batch };
    (1..=batch / least)
        .rev()
        .find(|pieces| batch.is_multiple_of(*pieces) && pieces.is_multiple_of(lanes))
        .unwrap_or(lanes)
}

/// What a rank has of a batch.
struct Share {
    /// Pieces of the whole batch.
    pieces: usize,
    /// Those of this rank.
    own: Range<usize>,
    /// Rows of a piece.
    rows: usize,
}

impl Share {
    /// # Errors
    /// [`TrainError::Setting`] if ranks, lanes and batch do not divide.
    fn of(batch: usize, distribution: &Distribution, device: &ComputeDevice) -> Result<Self, TrainError> {
        let (lanes, world) = (distribution.lanes.count(), distribution.exchange.world());
        if !batch.is_multiple_of(lanes) {
            return Err(TrainError::setting(format!(
                "`pretrain.batch = {batch}` cannot be cut into {lanes} equal lanes"
            ))
            .with_help(format!(
                "make it a multiple of {lanes}, or set `distributed.lanes`"
            ))
            .about("pretrain.batch"));
        }
        if let Some((problem, help)) = flow_validate::lanes(world.ranks, lanes, batch) {
            return Err(TrainError::setting(problem).with_help(help));
        }
        let pieces = pieces(batch, lanes, device);
        let own = distribution.lanes.of_rank(world.rank, world.ranks);
        Ok(Self {
            pieces,
            own: own.start * pieces / lanes..own.end * pieces / lanes,
            rows: batch / pieces,
        })
    }

    /// The rows of this rank.
    fn own_rows(&self) -> Range<usize> {
        self.own.start * self.rows..self.own.end * self.rows
    }
}

/// What a rank tells the others of a step: the bits of its pieces' losses, and which weights have a gradient.
#[derive(Serialize, Deserialize)]
struct Seen {
    losses: Vec<u32>,
    present: Vec<bool>,
}

/// A step's losses, piece by piece, with the gradients of all ranks; and which weights have one.
fn sum_over_ranks(
    distribution: &Distribution,
    losses: &[f32],
    accumulated: &mut Accumulated,
    (kernels, layout, device): (&dyn Kernels, &ParamLayout, &ComputeDevice),
) -> Result<(Vec<f32>, Vec<bool>), TrainError> {
    let all = distribution.gather(&Seen {
        losses: losses.iter().map(|loss| loss.to_bits()).collect(),
        present: accumulated.present(kernels),
    })?;
    let present = on_some_rank(all.iter().map(|seen| &seen.present));
    let exchange = (&*distribution.exchange, distribution.lanes);
    accumulated.exchange(exchange, layout, &present, (kernels, device, None))?;
    let losses = all.into_iter().flat_map(|seen| seen.losses);
    Ok((losses.map(f32::from_bits).collect(), present))
}

/// What stays the same from step to step.
struct Steps<'a> {
    parts: &'a Pretraining<'a>,
    settings: &'a PretrainSettings,
    trained: Arc<[bool]>,
    share: Share,
}

/// What a step leaves beside the state.
struct Taken {
    loss: f32,
    report: StepReport,
    /// The batch of the step after it, if there is to be one.
    next: Option<Result<Batch, TrainError>>,
}

impl Steps<'_> {
    /// The rows of this rank of the batch of a step.
    fn batch(&self, step: u64, places: Places) -> Result<Batch, TrainError> {
        let own = self.share.own_rows();
        batch(self.parts.dataset, self.settings, step, (places, own))
    }

    /// Takes a step; the batch of the one after it, at `places`, is made beside it.
    ///
    /// # Errors
    /// A loss or gradient that is not finite, or a rank that is lost.
    fn take(&self, state: &mut State, current: &Batch, places: Option<Places>) -> Result<Taken, TrainError> {
        let (settings, step) = (self.settings, state.step);
        let State {
            weights, optimizer, ..
        } = state;
        optimizer.set_settings(AdamWSettings {
            learning_rate: settings.optimizer.learning_rate * cosine(step, settings.steps),
            ..settings.optimizer.clone()
        });
        let learn = || self.learn(weights, optimizer, current);
        let following = || places.map(|places| self.batch(step + 1, places));
        let (learnt, next) = rayon::join(learn, following);
        let (loss, report) = learnt?;
        if !loss.is_finite() {
            let position = "a pretraining step".into();
            return Err(TrainError::NonFiniteLoss {
                iteration: step + 1,
                micro_batch: 0,
                position,
                value: loss,
            });
        }
        let report = report.map_err(|source| TrainError::NonFiniteGradient {
            iteration: step + 1,
            source,
        })?;
        self.follow_average(state);
        state.losses.push(loss);
        state.step = step + 1;
        Ok(Taken { loss, report, next })
    }

    /// The mean loss of all ranks' rows, and what the optimizer did with their gradients.
    fn learn(
        &self,
        weights: &mut Weights,
        optimizer: &mut AdamW,
        current: &Batch,
    ) -> Result<(f32, Result<StepReport, NonFiniteGradient>), TrainError> {
        let Self { parts, share, .. } = self;
        let Pretraining {
            device, distribution, ..
        } = **parts;
        let kernels = &*parts.plan.kernels;
        // Beside one another, added up in order.
        let units = device.concurrently(share.own.len(), |index| {
            let rows = index * share.rows..(index + 1) * share.rows;
            parts.unit(weights, &self.trained, current, rows, self.settings)
        });
        let mut accumulated = Accumulated::in_lanes(share.pieces, distribution.lanes);
        let mut values = Vec::with_capacity(share.own.len());
        for (piece, (value, gradients)) in share.own.clone().zip(units) {
            values.push(value);
            let lane = piece * distribution.lanes.count() / share.pieces;
            accumulated.add_to(lane, kernels, gradients);
        }
        let read = |values: &[RawTensor]| -> Vec<f32> {
            values.iter().map(|value| cpu::to_host(value)[0]).collect()
        };
        let (losses, report) = match distribution.exchange.world().is_several() {
            true => {
                let layout = weights.layout().clone();
                let context = (kernels, &*layout, device);
                let (losses, present) =
                    sum_over_ranks(distribution, &read(&values), &mut accumulated, context)?;
                let report = optimizer.step(kernels, device, weights, accumulated);
                if report.is_ok() {
                    optimizer.share(&*distribution.exchange, weights, &present, (kernels, device))?;
                }
                (losses, report)
            }
            false => {
                let report = optimizer.step(kernels, device, weights, accumulated);
                // Read after all is launched: the device need not wait for the host.
                (read(&values), report)
            }
        };
        let sum: f32 = losses.iter().sum();
        Ok((sum / share.pieces as f32, report))
    }

    /// Moves the average of the weights towards those that the step at hand left.
    fn follow_average(&self, state: &mut State) {
        let (device, step) = (self.parts.device, state.step as f64);
        let kernels = &*self.parts.plan.kernels;
        // Follows closely at first, as in the power schedule of averages.
        let decay = self.settings.average_decay.min((1.0 + step) / (10.0 + step));
        let decay = device.plain(vec![decay as f32], &[1]);
        let State { weights, average, .. } = state;
        // What is not trained stays one copy, of both.
        let pairs = average
            .values_mut()
            .iter_mut()
            .zip(weights.stored())
            .zip(&*self.trained);
        let pairs = pairs.filter_map(|(pair, trained)| trained.then_some(pair));
        device.with_persistent_allocation(|| kernels.ops().optimizer.average_all(pairs.collect(), &decay));
    }
}

/// The state before the first step, and which weights are trained.
fn begin(
    parts: &Pretraining<'_>,
    weights: Weights,
    settings: &PretrainSettings,
) -> Result<(State, Arc<[bool]>), TrainError> {
    let layout = weights.layout().clone();
    let trained = trained_mask(
        &layout,
        match layout.has_adapters() {
            true => Trained::Lora,
            false => Trained::Full,
        },
    )?;
    // In one piece, as its average is.
    let weights = weights.whole(&*parts.plan.kernels);
    let shards = parts.distribution.shards(&weights, &trained);
    let state = State {
        step: 0,
        average: weights.clone(),
        weights,
        optimizer: AdamW::sharded(
            settings.optimizer.clone(),
            &layout,
            trained.to_vec(),
            shards,
            parts.device,
        ),
        losses: Vec::new(),
    };
    Ok((state, trained))
}

/// Trains `weights`: the adapters if there are some, and all otherwise. What `keeping` goes on from takes their place; without it, nothing is written.
/// It is given on all ranks or on none; the first one writes.
///
/// # Errors
/// A loss or gradient that is not finite, an image that cannot be read, or a state that cannot be written (but for that after
/// the last step, which the observer hears of) or read.
pub fn pretrain(
    parts: &Pretraining<'_>,
    weights: Weights,
    settings: &PretrainSettings,
    keeping: Option<&Keeping>,
    observer: &mut dyn Observer,
) -> Result<Pretrained, TrainError> {
    let Pretraining {
        dataset,
        device,
        distribution,
        ..
    } = *parts;
    parts.fit()?;
    let (mut state, trained) = begin(parts, weights, settings)?;
    let contents = dataset.contents();
    if let Some(from) = keeping.and_then(|keeping| keeping.from.as_ref()) {
        from.expect_contents(contents.as_deref())?;
        from.restore(&mut state, &trained, device)?;
    }
    let steps = Steps {
        parts,
        settings,
        trained,
        share: Share::of(settings.batch, distribution, device)?,
    };
    observer.phase(Phase::Pretraining, settings.steps as usize);
    observer.advance(state.step as usize);
    let saves = keeping.filter(|_| distribution.is_first());
    let exchange = &*distribution.exchange;
    let mut savings = saves.map(|keeping| Savings::new(keeping, (&*steps.trained, exchange), contents));
    let mut order = BatchOrder::new(dataset, settings.batch, settings.seed);
    // What was shown before.
    (0..state.step).for_each(|_| drop(order.next_batch()));
    let mut upcoming = steps.batch(state.step, order.next_batch());
    while state.step < settings.steps {
        let watch = Stopwatch::start();
        let current = upcoming?;
        let places = (state.step + 1 < settings.steps).then(|| order.next_batch());
        let Taken { loss, report, next } = steps.take(&mut state, &current, places)?;
        observer.advance(1);
        observer.iteration(&IterationSummary {
            done: state.step,
            total: settings.steps,
            loss: f64::from(loss),
            gradient_norm: report.gradient_norm,
            learning_rate: report.learning_rate,
            images: settings.batch,
            wall_s: watch.wall_s(),
            ..IterationSummary::default()
        });
        let Some(next) = next else { break };
        let is_due = savings.as_ref().is_some_and(Savings::is_due);
        let said = distribution.gather(&(observer.interrupted(), is_due))?;
        let interrupted = said.iter().any(|(interrupted, _)| *interrupted);
        if keeping.is_some() && (interrupted || said.iter().any(|(_, is_due)| *is_due)) {
            save(savings.as_mut(), &state, exchange)?;
        }
        if interrupted {
            break;
        }
        upcoming = next;
    }
    if keeping.is_some()
        && state.step == settings.steps
        && let Err(error) = save(savings.as_mut(), &state, exchange)
    {
        // The weights are there, and worth more than what they could be made from once more.
        observer.notice(&format!("the state after the last step was not saved: {error}"));
    }
    Ok(Pretrained::of(state))
}

impl Pretrained {
    fn of(state: State) -> Self {
        let State { average, losses, .. } = state;
        let tail = &losses[losses.len() - (losses.len() / 100).max(1).min(losses.len())..];
        let final_loss = tail.iter().map(|loss| f64::from(*loss)).sum::<f64>() / tail.len().max(1) as f64;
        Self {
            weights: average,
            final_loss,
            losses,
        }
    }
}

/// Falls from 1 to 0.1 along half a cosine.
fn cosine(step: u64, steps: u64) -> f64 {
    let share = step as f64 / steps.max(1) as f64;
    0.1 + 0.45 * (1.0 + libm::cos(std::f64::consts::PI * share))
}
