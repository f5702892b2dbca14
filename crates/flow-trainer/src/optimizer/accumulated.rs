//! Sums of gradients over the loss terms of an optimizer step, in lanes and over ranks.

use super::scatter::{OwnSquares, Scatter};
use crate::shards::Shards;
use flow_core::device::ComputeDevice;
use flow_core::tensors::shape;
use flow_core::{Kernels, ParamLayout, RawTensor, Squares};
use flow_exchange::{Exchange, Lanes, Lost, Partials, Values};
use flow_exchange_cube::FlatTensor;
use std::collections::BTreeMap;

/// Values that are exchanged at a time: 256 MiB. More would only need more memory.
const BUCKET: usize = 1 << 26;

/// Gradients by weight; none where there is none.
pub(super) type Sums = Vec<Option<RawTensor>>;

/// Sums of gradients over the loss terms of one optimizer step: within lanes one after another, and over lanes by their tree.
#[derive(Debug)]
pub struct Accumulated {
    /// The lane that is summed now, and its sums.
    lane: usize,
    sums: Sums,
    /// Sums of the lanes before.
    partials: Partials<Sums>,
    loss_terms: usize,
    expected: usize,
    /// Of weights in parts, as far as this rank adds them up.
    own_squares: OwnSquares,
    /// Of weights in parts, once ranks gave them to one another.
    squares: BTreeMap<usize, Squares>,
    /// Sums of weights that have none here, over all lanes.
    beside: Vec<Sums>,
}

impl Default for Accumulated {
    fn default() -> Self {
        Self::of(0)
    }
}

/// Sums over all loss terms of a step.
#[derive(Debug)]
pub(super) struct Summed {
    /// By weight; of one in parts this rank's part as one row, none if it is empty.
    pub sums: Sums,
    /// Of the whole sums of weights in parts.
    pub squares: BTreeMap<usize, Squares>,
}

impl Summed {
    /// The squares of every sum, whole, with its weight, in order.
    pub fn squares<'a>(&'a self, kernels: &'a dyn Kernels) -> impl Iterator<Item = (usize, Squares)> + 'a {
        let of_sum = move |sum: &RawTensor| {
            let length = shape(sum).iter().product();
            kernels.ops().optimizer.squares(sum, length)
        };
        let of_weight = move |(index, sum): (usize, &Option<RawTensor>)| {
            let of_whole = self.squares.get(&index).cloned();
            Some((index, of_whole.or_else(|| sum.as_ref().map(of_sum))?))
        };
        self.sums.iter().enumerate().filter_map(of_weight)
    }
}

impl Accumulated {
    /// Nothing yet, of so many loss terms.
    pub fn of(loss_terms: usize) -> Self {
        Self::in_lanes(loss_terms, Lanes::new(1))
    }

    /// Nothing yet, of so many loss terms over all ranks, in lanes.
    pub fn in_lanes(loss_terms: usize, lanes: Lanes) -> Self {
        Self {
            lane: 0,
            sums: Vec::new(),
            partials: Partials::new(lanes),
            loss_terms: 0,
            expected: loss_terms,
            own_squares: BTreeMap::new(),
            squares: BTreeMap::new(),
            beside: Vec::new(),
        }
    }

    /// Adds one loss term's gradients, all in one lane.
    pub fn add(&mut self, kernels: &dyn Kernels, gradients: Vec<Option<RawTensor>>) {
        self.add_to(0, kernels, gradients);
    }

    /// Adds one loss term's gradients to a lane: the one of the loss term before or the next one that has loss terms here.
    pub fn add_to(&mut self, lane: usize, kernels: &dyn Kernels, gradients: Vec<Option<RawTensor>>) {
        if lane != self.lane {
            self.end_lane(kernels);
            self.lane = lane;
        }
        self.loss_terms += 1;
        if self.sums.is_empty() {
            // A recorded backward pass writes the next loss term's gradients where it wrote these.
            let recorder = kernels.recorder().filter(|_| self.expected > 1);
            self.sums = match recorder {
                Some(recorder) => {
                    let copied = |gradient: RawTensor| recorder.copied(&gradient);
                    gradients
                        .into_iter()
                        .map(|gradient| gradient.map(copied))
                        .collect()
                }
                None => gradients,
            };
            return;
        }
        accumulate(kernels, &mut self.sums, gradients);
    }

    /// A lane in which there are no loss terms, of so many weights: it takes its place in the tree and adds nothing.
    pub(crate) fn add_none_to(&mut self, lane: usize, kernels: &dyn Kernels, weights: usize) {
        self.end_lane(kernels);
        self.lane = lane;
        self.sums = vec![None; weights];
    }

    /// Adds the lane that is summed now to the tree.
    fn end_lane(&mut self, kernels: &dyn Kernels) {
        if self.sums.is_empty() {
            return;
        }
        let sums = std::mem::take(&mut self.sums);
        let node = self.lane..self.lane + 1;
        let add = |left: &mut Sums, right: Sums| accumulate(kernels, left, right);
        self.partials.push(node, sums, add);
    }

    /// Which weights have a gradient in some lane of this rank.
    pub(crate) fn present(&mut self, kernels: &dyn Kernels) -> Vec<bool> {
        self.end_lane(kernels);
        let mut present = Vec::new();
        for (_, sums) in self.partials.sums() {
            present.resize(sums.len(), false);
            for (present, sum) in present.iter_mut().zip(sums) {
                *present |= sum.is_some();
            }
        }
        present
    }

    /// Adds what the other ranks summed; `present` says which weights have a gradient on some rank. Of weights in parts, where ranks have some, this
    /// rank's part is left. Everything is there afterwards, what was [begun](Self::begin_exchange) and put [beside](Self::put_beside), too.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(crate) fn exchange(
        &mut self,
        (exchange, lanes): (&dyn Exchange, Lanes),
        layout: &ParamLayout,
        present: &[bool],
        on: (&dyn Kernels, &ComputeDevice, Option<&Shards>),
    ) -> Result<(), Lost> {
        if !exchange.world().is_several() {
            return Ok(());
        }
        self.begin_exchange((exchange, lanes), layout, present, on)?;
        if let Some(scatter) = Scatter::of(layout, on) {
            self.squares = scatter.whole_squares(exchange, &self.own_squares)?;
        }
        exchange.settle()
    }

    /// As [`exchange`](Self::exchange), of sums alone. What is on a GPU may be on its way, and the host counts on it after an
    /// [`exchange`](Self::exchange).
    ///
    /// # Errors
    /// If a rank is lost.
    pub(crate) fn begin_exchange(
        &mut self,
        (exchange, lanes): (&dyn Exchange, Lanes),
        layout: &ParamLayout,
        present: &[bool],
        on: (&dyn Kernels, &ComputeDevice, Option<&Shards>),
    ) -> Result<(), Lost> {
        if !exchange.world().is_several() {
            return Ok(());
        }
        let (_, device, shards) = on;
        let partials = std::mem::replace(&mut self.partials, Partials::new(lanes));
        let shape_of = |index: usize| &layout.specs()[index].shape[..];
        let mut parts: Vec<Sums> = partials.into_sums().into_iter().map(|(_, sums)| sums).collect();
        parts.iter_mut().for_each(|part| part.resize(present.len(), None));
        let mut total: Sums = vec![None; present.len()];
        let is_in_parts = |index: usize| shards.is_some_and(|shards| shards.counts(index).is_some());
        let given = (0..layout.len()).filter(|index| present.get(*index) == Some(&true));
        let (in_parts, whole): (Vec<usize>, Vec<usize>) = given.partition(|index| is_in_parts(*index));
        for bucket in buckets(layout, whole) {
            let pack = |part: &mut Sums| {
                let packed = bucket
                    .iter()
                    .map(|index| (part[*index].as_ref(), shape_of(*index)));
                let flat = FlatTensor::pack(device, packed);
                // Their memory is free for what comes back.
                bucket.iter().for_each(|index| part[*index] = None);
                flat
            };
            let mut flats: Vec<FlatTensor> = parts.iter_mut().map(pack).collect();
            let mut values: Vec<&mut dyn Values> = Vec::new();
            values.extend(flats.iter_mut().map(|flat| flat as &mut dyn Values));
            exchange.sum(&lanes, &mut values)?;
            let sums = flats
                .swap_remove(0)
                .unpack(bucket.iter().map(|index| shape_of(*index)));
            for (index, sum) in bucket.into_iter().zip(sums) {
                total[index] = Some(sum);
            }
        }
        if let Some(scatter) = Scatter::of(layout, on) {
            for bucket in buckets(layout, in_parts) {
                let into = (&mut total, &mut self.own_squares);
                scatter.sum((exchange, lanes), &bucket, &mut parts, into)?;
            }
        }
        self.partials.push(0..lanes.count(), total, |_, _| {});
        self.loss_terms = self.expected;
        Ok(())
    }

    /// The sums over all lanes.
    pub(super) fn total(mut self, kernels: &dyn Kernels) -> Summed {
        self.end_lane(kernels);
        let sums = self.partials.into_sums().into_iter();
        let all = sums.map(|(_, sums)| sums).reduce(|mut all, more| {
            accumulate(kernels, &mut all, more);
            all
        });
        let mut summed = Summed {
            sums: all.unwrap_or_default(),
            squares: self.squares,
        };
        for more in self.beside {
            summed.sums.resize(summed.sums.len().max(more.len()), None);
            for (sum, other) in summed.sums.iter_mut().zip(more) {
                *sum = sum.take().or(other);
            }
        }
        summed
    }

    /// Takes sums over all lanes of weights that have none here, whose exchange [began](Self::begin_exchange).
    pub(super) fn put_beside(&mut self, mut sums: Self, kernels: &dyn Kernels) {
        self.own_squares.append(&mut sums.own_squares);
        self.beside.push(sums.total(kernels).sums);
    }

    /// Number of loss terms added.
    pub fn loss_terms(&self) -> usize {
        self.loss_terms
    }
}

/// `weights` in order, cut where more than [`BUCKET`] values would come together. Where the cuts are changes no sum.
fn buckets(layout: &ParamLayout, weights: Vec<usize>) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut size = 0;
    for index in weights {
        let more: usize = layout.specs()[index].shape.iter().product();
        match buckets.last_mut() {
            Some(bucket) if size + more <= BUCKET => {
                bucket.push(index);
                size += more;
            }
            _ => {
                buckets.push(vec![index]);
                size = more;
            }
        }
    }
    buckets
}

/// Adds gradients to sums, by weight.
fn accumulate(kernels: &dyn Kernels, sums: &mut Sums, gradients: Sums) {
    for (sum, gradient) in sums.iter_mut().zip(gradients) {
        match (sum.as_mut(), gradient) {
            (Some(sum), Some(gradient)) => kernels.ops().optimizer.accumulate(sum, &gradient),
            (None, Some(gradient)) => *sum = Some(gradient),
            (_, None) => {}
        }
    }
}
