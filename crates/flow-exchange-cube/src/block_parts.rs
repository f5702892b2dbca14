//! Which rank keeps what of the frozen weights of a model's blocks, and the parts of one rank.
//!
//! The weights of a block lie behind one another in a row, and each rank keeps a portion of the row, about as long as that of the others,
//! wherever it begins and ends. So blocks of any weights are shared out evenly, and one exchange makes a block whole.

use crate::flat_tensor::FlatTensor;
use burn::tensor::FloatDType;
use flow_core::device::ComputeDevice;
use flow_core::tensors::cast;
use flow_core::{ModelSpec, ParamKind, ParamLayout, RawTensor};
use flow_exchange::{ValueType, World, portion};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Alignment of weights and portions within a row, in values: kernels read whole lines of memory.
const ALIGNMENT: usize = 128;

/// One weight of a row.
#[derive(Debug)]
struct InRow {
    /// Its place in the layout.
    index: usize,
    shape: Vec<usize>,
    /// Where its values lie in the row.
    range: Range<usize>,
}

/// The weights of a block, behind one another with gaps between them.
#[derive(Debug, Default)]
struct Row {
    weights: Vec<InRow>,
    count: usize,
}

/// The frozen weights of a model's blocks of which each rank keeps a part, and this rank's parts.
#[derive(Debug)]
pub struct BlockParts {
    device: ComputeDevice,
    world: World,
    /// In the order of their first weights in the layout.
    rows: Vec<Row>,
    /// Rows by stack and block.
    of_block: BTreeMap<(String, usize), usize>,
    /// Row and place in it, by place in the layout.
    of_weight: BTreeMap<usize, (usize, usize)>,
    kept: Mutex<BTreeMap<usize, RawTensor>>,
}

impl BlockParts {
    /// Shares out the weights of a model of `spec` that are not `trained` (one flag each) and belong to a block. What is outside of blocks,
    /// and constants, every rank has whole.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn new(
        spec: &ModelSpec,
        layout: &ParamLayout,
        trained: &[bool],
        (world, device): (World, &ComputeDevice),
    ) -> Self {
        assert_eq!(trained.len(), layout.len(), "one flag per weight");
        let mut parts = Self {
            device: device.clone(),
            world,
            rows: Vec::new(),
            of_block: BTreeMap::new(),
            of_weight: BTreeMap::new(),
            kept: Mutex::default(),
        };
        for (index, weight) in layout.specs().iter().enumerate() {
            let Some((stack, block)) = spec.block_of(&weight.name) else {
                continue;
            };
            if trained[index] || weight.kind != ParamKind::Base {
                continue;
            }
            let number = *(parts.of_block)
                .entry((stack.to_owned(), block))
                .or_insert(parts.rows.len());
            if number == parts.rows.len() {
                parts.rows.push(Row::default());
            }
            let row = &mut parts.rows[number];
            let begin = row.count.next_multiple_of(ALIGNMENT);
            row.count = begin + weight.shape.iter().product::<usize>();
            parts.of_weight.insert(index, (number, row.weights.len()));
            row.weights.push(InRow {
                index,
                shape: weight.shape.clone(),
                range: begin..row.count,
            });
        }
        parts
    }

    /// The number of a block's row, if it has one.
    pub(crate) fn number(&self, stack: &str, block: usize) -> Option<usize> {
        self.of_block.get(&(stack.to_owned(), block)).copied()
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Which values of the weight at `index` this rank keeps; `None` of a weight that is not shared out.
    pub fn own_part(&self, index: usize) -> Option<Range<usize>> {
        let (number, place) = *self.of_weight.get(&index)?;
        let (row, weight) = (&self.rows[number], &self.rows[number].weights[place]);
        let part = common(&weight.range, &self.portion(row, self.world.rank));
        Some(part.start - weight.range.start..part.end - weight.range.start)
    }

    /// Keeps this rank's part of the weight at `index`, as one row.
    pub fn keep(&self, index: usize, part: RawTensor) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(index, part);
    }

    /// Values of all weights that this rank keeps.
    pub fn kept_values(&self) -> usize {
        let parts = self.of_weight.keys().filter_map(|index| self.own_part(*index));
        parts.map(|part| part.len()).sum()
    }

    /// The portion of a row that a rank keeps.
    fn portion(&self, row: &Row, rank: usize) -> Range<usize> {
        portion(row.count, rank, self.world.ranks, ALIGNMENT)
    }

    /// Values of row `number` that each rank keeps.
    pub(crate) fn counts(&self, number: usize) -> Vec<usize> {
        let ranks = 0..self.world.ranks;
        ranks
            .map(|rank| self.portion(&self.rows[number], rank).len())
            .collect()
    }

    /// Row `number` as far as this rank has it.
    pub(crate) fn pack(&self, number: usize) -> FlatTensor {
        let row = &self.rows[number];
        let own = self.portion(row, self.world.rank);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pieces: Vec<(Option<RawTensor>, [usize; 1])> = Vec::new();
        let mut at = 0;
        for weight in &row.weights {
            let part = common(&weight.range, &own);
            if !part.is_empty() {
                pieces.push((None, [part.start - at]));
                pieces.push((kept.get(&weight.index).cloned(), [part.len()]));
                at = part.end;
            }
        }
        pieces.push((None, [row.count - at]));
        drop(kept);
        // As they are stored, so that they travel so.
        let of = match self.device.compute_dtype() {
            Some(FloatDType::BF16) => ValueType::Bf16,
            _ => ValueType::F32,
        };
        FlatTensor::pack_as(
            &self.device,
            of,
            pieces.iter().map(|(piece, count)| (piece.as_ref(), &count[..])),
        )
    }

    /// The weights of row `number`, whole, by their places in the layout, in the type in which frozen weights are stored.
    pub(crate) fn unpack(&self, number: usize, values: FlatTensor) -> Vec<(usize, RawTensor)> {
        let row = &self.rows[number];
        let mut pieces: Vec<(Option<usize>, Vec<usize>)> = Vec::new();
        let mut at = 0;
        for weight in &row.weights {
            if weight.range.start > at {
                pieces.push((None, vec![weight.range.start - at]));
            }
            pieces.push((Some(weight.index), weight.shape.clone()));
            at = weight.range.end;
        }
        let dtype = self.device.compute_dtype().unwrap_or(FloatDType::F32);
        let tensors = values.unpack(pieces.iter().map(|(_, shape)| &shape[..]));
        let weights = pieces.iter().zip(tensors);
        weights
            .filter_map(|((index, _), tensor)| Some(((*index)?, cast(&tensor, dtype))))
            .collect()
    }
}

/// The intersection of two ranges; an empty range at the beginning of the first if they do not meet.
fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    match start < end {
        true => start..end,
        false => one.start..one.start,
    }
}
