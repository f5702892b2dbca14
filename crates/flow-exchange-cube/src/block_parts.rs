//! Which rank keeps what of the weights of a model's blocks, and the parts of one rank.
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// The parts of a set of weights, by place in the layout.
type Parts = BTreeMap<usize, RawTensor>;

/// The weights of a model's blocks of which each rank keeps a part, and this rank's parts of every set of them.
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
    /// By the number of the set; of those that are shown.
    shown: Mutex<BTreeMap<usize, Parts>>,
    /// Sets that were opened.
    opened: AtomicUsize,
}

impl BlockParts {
    /// Shares out the weights of a model of `spec` that belong to a block. What is outside of blocks, adapters and constants every rank has
    /// whole.
    pub fn new(spec: &ModelSpec, layout: &ParamLayout, (world, device): (World, &ComputeDevice)) -> Self {
        let mut parts = Self {
            device: device.clone(),
            world,
            rows: Vec::new(),
            of_block: BTreeMap::new(),
            of_weight: BTreeMap::new(),
            shown: Mutex::default(),
            opened: AtomicUsize::new(0),
        };
        for (index, weight) in layout.specs().iter().enumerate() {
            let Some((stack, block)) = spec.block_of(&weight.name) else {
                continue;
            };
            if weight.kind != ParamKind::Base {
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
        self.part(index, self.world.rank)
    }

    /// How many values of the weight at `index` each rank keeps; `None` of a weight that is not shared out.
    pub fn counts_of(&self, index: usize) -> Option<Vec<usize>> {
        let ranks = 0..self.world.ranks;
        ranks.map(|rank| Some(self.part(index, rank)?.len())).collect()
    }

    fn part(&self, index: usize, rank: usize) -> Option<Range<usize>> {
        let (number, place) = *self.of_weight.get(&index)?;
        let (row, weight) = (&self.rows[number], &self.rows[number].weights[place]);
        let part = common(&weight.range, &self.portion(row, rank));
        Some(part.start - weight.range.start..part.end - weight.range.start)
    }

    /// The number of a new set.
    pub(crate) fn open(&self) -> usize {
        self.opened.fetch_add(1, Ordering::Relaxed)
    }

    /// Shows this rank's part of the weight at `index` in a set, as one row.
    pub(crate) fn show(&self, set: usize, index: usize, part: RawTensor) {
        self.shown().entry(set).or_default().insert(index, part);
    }

    /// Lets go of the parts of a set.
    pub(crate) fn hide(&self, set: usize) {
        let hidden = self.shown().remove(&set);
        // Not under the lock: a device may be asked to free them.
        drop(hidden);
    }

    /// Whether the parts of a set are shown.
    pub(crate) fn is_shown(&self, set: usize) -> bool {
        self.shown().contains_key(&set)
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<usize, Parts>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Row `number` of a set as far as this rank has it.
    pub(crate) fn pack(&self, set: usize, number: usize) -> FlatTensor {
        let row = &self.rows[number];
        let own = self.portion(row, self.world.rank);
        let shown = self.shown();
        let parts = shown.get(&set);
        let mut pieces: Vec<(Option<RawTensor>, [usize; 1])> = Vec::new();
        let mut at = 0;
        for weight in &row.weights {
            let part = common(&weight.range, &own);
            if !part.is_empty() {
                pieces.push((None, [part.start - at]));
                let shown = parts.and_then(|parts| parts.get(&weight.index)).cloned();
                pieces.push((shown, [part.len()]));
                at = part.end;
            }
        }
        pieces.push((None, [row.count - at]));
        drop(shown);
        // As models compute with them: frozen ones are stored so, and trained ones travel so.
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

    /// The weights of row `number`, whole, by their places in the layout, in the type that models compute with.
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
