//! The optimizer's state shared out over ranks, as in ZeRO-1 (Rajbhandari et al. 2020, arXiv:1910.02054, `P_os`).
//!
//! A rank has the moments of some weights, whole ones, and steps these alone; then every rank gives the others the weights that it
//! stepped. A weight's step reads its own sum of gradients, its own moments and the norm of all sums, which every rank has, so that it
//! has the same bits whoever takes it.
//!
//! Of a weight in two halves the rank that steps it may keep the lower one alone ([`Weights::keep_lower_halves`]): models read the upper one, so that
//! nothing else is given. What is stored in 16 bits travels in 16 bits, and everything else in f32.
//!
//! Of weights that ranks have parts of each rank has the moments of its part and steps that; nothing of it is given to the others.

use flow_core::device::ComputeDevice;
use flow_core::split_f32::SplitF32;
use flow_core::{BlockWeights, Kernels, ParamLayout, RawTensor, Weights, cpu};
use flow_exchange::{Exchange, Lost, ValueType, World};
use flow_exchange_cube::FlatTensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Values that are shared at a time: 256 MiB, of all ranks together.
const AT_ONCE: usize = 1 << 26;

/// Which rank has the moments of each weight, and steps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    own: usize,
    ranks: usize,
    /// By weight; nobody of one that is not trained, or in parts.
    owners: Vec<Option<usize>>,
    /// By weight, of those that are trained and in parts: how many values each rank has.
    counts: Vec<Option<Vec<usize>>>,
}

impl Shards {
    /// Shares out the `trained` weights (one flag each): the largest first, each to the rank that has the fewest values so far. Of equal
    /// weights the first in the layout goes first, of equal ranks the lowest takes it. So all ranks come to the same, and none has more
    /// than an even share and one weight (Graham 1969, longest processing time first).
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn new(layout: &ParamLayout, trained: &[bool], world: World) -> Self {
        assert_eq!(trained.len(), layout.len(), "one flag per weight");
        let mut largest_first: Vec<usize> = (0..trained.len()).filter(|index| trained[*index]).collect();
        largest_first.sort_by_key(|index| (std::cmp::Reverse(size(layout, *index)), *index));
        let mut values = vec![0; world.ranks];
        let mut owners = vec![None; trained.len()];
        for index in largest_first {
            let fewest = (0..world.ranks)
                .min_by_key(|rank| (values[*rank], *rank))
                .unwrap_or(0);
            values[fewest] += size(layout, index);
            owners[index] = Some(fewest);
        }
        Self {
            own: world.rank,
            ranks: world.ranks,
            counts: vec![None; owners.len()],
            owners,
        }
    }

    /// As [`new`](Self::new), where ranks have parts of some weights, and the moments of these parts.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn beside_parts(
        layout: &ParamLayout,
        trained: &[bool],
        blocks: &dyn BlockWeights,
        world: World,
    ) -> Self {
        let counts = trained.iter().enumerate();
        let counts = counts.map(|(index, trained)| trained.then(|| blocks.counts(index)).flatten());
        let counts: Vec<Option<Vec<usize>>> = counts.collect();
        let whole = trained.iter().zip(&counts);
        let whole: Vec<bool> = whole
            .map(|(trained, counts)| *trained && counts.is_none())
            .collect();
        Self {
            counts,
            ..Self::new(layout, &whole, world)
        }
    }

    /// How many values of the weight at `index` each rank has, in order, if it is trained and in parts.
    pub fn counts(&self, index: usize) -> Option<&[usize]> {
        self.counts[index].as_deref()
    }

    /// Which values of the weight at `index` a rank has, if it is trained and in parts.
    pub(crate) fn part_of(&self, index: usize, rank: usize) -> Option<Range<usize>> {
        let counts = self.counts(index)?;
        let begin: usize = counts[..rank].iter().sum();
        Some(begin..begin + counts[rank])
    }

    /// Those of this rank.
    pub(crate) fn own_part(&self, index: usize) -> Option<Range<usize>> {
        self.part_of(index, self.own)
    }

    /// The shape of the moments that this rank has of a weight of `shape` at `index`; none if it has none.
    pub(crate) fn shape_of_moments(&self, index: usize, shape: &[usize]) -> Option<Vec<usize>> {
        match self.own_part(index) {
            Some(part) => (!part.is_empty()).then(|| vec![part.len()]),
            None => self.is_own(index).then(|| shape.to_vec()),
        }
    }

    /// The rank that has the moments of the weight at `index`; none if it is not trained, or in parts.
    pub fn owner(&self, index: usize) -> Option<usize> {
        self.owners[index]
    }

    /// Whether this rank has the moments of the whole weight at `index`.
    pub fn is_own(&self, index: usize) -> bool {
        self.owners[index] == Some(self.own)
    }

    /// Whether this rank keeps the lower half of each weight, one flag each: of those that it has the moments of.
    pub(crate) fn kept_lower_halves(&self) -> Arc<[bool]> {
        let weights = 0..self.owners.len();
        weights
            .map(|index| self.is_own(index) || self.counts(index).is_some())
            .collect()
    }

    /// Gives every rank the weights that were `stepped` (one flag each, the same on all ranks), from the ranks that stepped them.
    ///
    /// # Errors
    /// If a rank is lost; some weights may be of before the step then.
    pub(crate) fn share(
        &self,
        exchange: &dyn Exchange,
        weights: &mut Weights,
        stepped: &[bool],
        on: (&dyn Kernels, &ComputeDevice),
    ) -> Result<(), Lost> {
        // Alike on all ranks.
        let is_narrow: Vec<bool> = (0..stepped.len())
            .map(|index| weights.is_narrow_everywhere(index))
            .collect();
        for (of, narrow) in [(ValueType::F32, false), (ValueType::Bf16, true)] {
            let of_type = stepped.iter().zip(&is_narrow);
            let of_type: Vec<bool> = of_type
                .map(|(stepped, is_narrow)| *stepped && *is_narrow == narrow)
                .collect();
            self.share_as(of, exchange, weights, &of_type, on)?;
        }
        exchange.settle()
    }

    /// Gives every rank the weights that were `stepped`, in a type: f32, which is the whole of them, or the 16 bits that are stored.
    fn share_as(
        &self,
        of: ValueType,
        exchange: &dyn Exchange,
        weights: &mut Weights,
        stepped: &[bool],
        (kernels, device): (&dyn Kernels, &ComputeDevice),
    ) -> Result<(), Lost> {
        let layout = weights.layout().clone();
        let shape = |index: usize| &layout.specs()[index].shape[..];
        for batch in self.batches(&layout, stepped, AT_ONCE) {
            let stored = |index: &usize| weights.stored()[*index].clone();
            let values = match of {
                ValueType::F32 => weights.values(&batch[self.own], kernels),
                ValueType::Bf16 => batch[self.own].iter().map(stored).collect(),
            };
            let counts = batch.iter().map(|of_rank| count(&layout, of_rank));
            let counts: Vec<usize> = counts.collect();
            let all = batch.concat();
            let mut own = values.iter();
            let parts = all.iter().map(|index| match self.is_own(*index) {
                true => (own.next(), shape(*index)),
                false => (None, shape(*index)),
            });
            let mut row = FlatTensor::pack_as(device, of, parts);
            drop(values);
            exchange.share(&mut row, &counts)?;
            let shared = row.unpack(all.iter().map(|index| shape(*index)));
            let theirs = all.into_iter().zip(shared);
            let theirs = theirs.filter(|(index, _)| !self.is_own(*index));
            put(weights, theirs.collect(), (kernels, device));
        }
        Ok(())
    }

    /// The weights that are shared at a time, by their owner: of each rank about as many values as of the others, at least one weight of a
    /// rank that has some left, and otherwise not more than `at_once` values together.
    fn batches(&self, layout: &ParamLayout, stepped: &[bool], at_once: usize) -> Vec<Vec<Vec<usize>>> {
        let each = at_once / self.ranks;
        let mut of_ranks: Vec<Vec<Vec<usize>>> = vec![Vec::new(); self.ranks];
        for (index, owner) in self.owners.iter().enumerate() {
            let (Some(owner), Some(true)) = (owner, stepped.get(index)) else {
                continue;
            };
            let pieces = &mut of_ranks[*owner];
            match pieces.last_mut() {
                Some(piece) if count(layout, piece) + size(layout, index) <= each => piece.push(index),
                _ => pieces.push(vec![index]),
            }
        }
        let most = of_ranks.iter().map(Vec::len).max().unwrap_or(0);
        let piece = |pieces: &Vec<Vec<usize>>, at: usize| pieces.get(at).cloned().unwrap_or_default();
        let batch =
            |at: usize| -> Vec<Vec<usize>> { of_ranks.iter().map(|pieces| piece(pieces, at)).collect() };
        (0..most).map(batch).collect()
    }
}

/// Values of a weight.
fn size(layout: &ParamLayout, index: usize) -> usize {
    layout.specs()[index].shape.iter().product()
}

/// Values of weights.
fn count(layout: &ParamLayout, indices: &[usize]) -> usize {
    indices.iter().map(|index| size(layout, *index)).sum()
}

/// Puts values in the places of weights, as these are stored, in halves those in f32: what recorded calls read stays where it is.
fn put(
    weights: &mut Weights,
    values: BTreeMap<usize, RawTensor>,
    (kernels, device): (&dyn Kernels, &ComputeDevice),
) {
    // On a processor a part of a row keeps the whole row.
    let alone = |value: &RawTensor| match device.is_processor() {
        true => device.plain(cpu::to_host(value), &flow_core::tensors::shape(value)),
        false => value.clone(),
    };
    let copy = |to: &mut RawTensor, value: &RawTensor| kernels.ops().weights.copy_all(vec![(to, value)]);
    let mut update = weights.update();
    device.with_persistent_allocation(|| {
        for (index, changing) in update.each().enumerate() {
            let Some(value) = values.get(&index).map(alone) else {
                continue;
            };
            let Some(lower) = changing.lower else {
                copy(changing.value, &value);
                if let Some(narrow) = changing.copy {
                    copy(narrow, changing.value);
                }
                continue;
            };
            let halves: SplitF32 = kernels.ops().weights.split(&value);
            copy(changing.value, &halves.upper);
            // Bits, which nothing but the optimizer reads: a copy would go through numbers.
            *lower = halves.lower;
        }
    });
}

#[cfg(test)]
mod tests;
