//! Sums of gradients of weights in parts: each rank gets its own part of every sum (reduce-scatter), and the squares of all.
//!
//! The norm of all gradients has one order: squares are added up within pieces of a weight, whose length is the kernels', and then over pieces.
//! So a rank is sent its part and the rest of the last piece that begins in it, and adds up the squares of the pieces that begin in its part.
//! These sums, one for thousands of values, the ranks give one another; put together they are those of the whole weight.

use super::accumulated::Sums;
use crate::shards::Shards;
use flow_core::device::ComputeDevice;
use flow_core::tensors::{row_part, stacked};
use flow_core::{Kernels, ParamLayout, RawTensor, Squares};
use flow_exchange::{Exchange, Lanes, Lost, Values, World};
use flow_exchange_cube::FlatTensor;
use std::collections::BTreeMap;
use std::ops::Range;

/// Alignment within a row of what a rank is sent of each weight, in values: what begins so is read where it is.
const ALIGNMENT: usize = 128;

/// Squares of sums in parts, by weight that has a gradient on some rank: those of the pieces that begin in this rank's part, in order, if any do.
pub(super) type OwnSquares = BTreeMap<usize, Option<Squares>>;

/// Who gets what of the sums of weights in parts.
#[derive(Clone, Copy)]
pub(super) struct Scatter<'a> {
    layout: &'a ParamLayout,
    shards: &'a Shards,
    kernels: &'a dyn Kernels,
    device: &'a ComputeDevice,
}

impl<'a> Scatter<'a> {
    /// Of the weights of `layout`, if ranks share something out.
    pub fn of(
        layout: &'a ParamLayout,
        (kernels, device, shards): (&'a dyn Kernels, &'a ComputeDevice, Option<&'a Shards>),
    ) -> Option<Self> {
        shards.map(|shards| Self {
            layout,
            shards,
            kernels,
            device,
        })
    }

    /// Values of the weight at `index`.
    fn length(&self, index: usize) -> usize {
        self.layout.specs()[index].shape.iter().product()
    }

    /// Values of a piece.
    fn piece(&self) -> usize {
        self.kernels.ops().optimizer.squares_piece()
    }

    /// A rank's part of the weight at `index`.
    fn part(&self, index: usize, rank: usize) -> Range<usize> {
        self.shards.part_of(index, rank).unwrap_or_default()
    }

    /// The pieces of the weight at `index` that begin in a rank's part, by number.
    fn pieces(&self, index: usize, rank: usize) -> Range<usize> {
        let (part, piece) = (self.part(index, rank), self.piece());
        part.start.div_ceil(piece)..part.end.div_ceil(piece)
    }

    /// What a rank is sent of the sum of the weight at `index`.
    fn sent(&self, index: usize, rank: usize) -> Range<usize> {
        let part = self.part(index, rank);
        if part.is_empty() {
            return part;
        }
        let end = part.end.next_multiple_of(self.piece());
        part.start..end.min(self.length(index))
    }

    /// The sums of one node as a row: what is sent to rank 0 of each of `weights`, then what is sent to rank 1, and so on. They are taken out
    /// of `sums`.
    fn row(&self, weights: &[usize], sums: &mut Sums, ranks: usize) -> FlatTensor {
        let mut pieces: Vec<(Option<RawTensor>, [usize; 1])> = Vec::new();
        for rank in 0..ranks {
            for index in weights {
                let range = self.sent(*index, rank);
                let (count, padded) = (range.len(), padded_len(&range));
                let sum = sums[*index].as_ref().filter(|_| count > 0);
                pieces.push((sum.map(|sum| row_part(sum, range)), [count]));
                pieces.push((None, [padded - count]));
            }
        }
        let given = pieces.iter().map(|(piece, count)| (piece.as_ref(), &count[..]));
        let row = FlatTensor::pack(self.device, given);
        // Their memory is free for what comes back.
        weights.iter().for_each(|index| sums[*index] = None);
        row
    }

    /// Sums `weights` over all lanes, of which `nodes` are those of this rank; puts this rank's part of each sum into `total`, as one row, and the
    /// squares of it into `squares`.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn sum(
        &self,
        (exchange, lanes): (&dyn Exchange, Lanes),
        weights: &[usize],
        nodes: &mut [Sums],
        (total, squares): (&mut Sums, &mut OwnSquares),
    ) -> Result<(), Lost> {
        let World { rank: own, ranks, .. } = exchange.world();
        let count = |rank: usize| -> usize {
            let lengths = weights.iter().map(|index| padded_len(&self.sent(*index, rank)));
            lengths.sum()
        };
        let counts: Vec<usize> = (0..ranks).map(count).collect();
        let mut row = FlatTensor::pack(self.device, [(None, &counts[own..=own])]);
        let rows = nodes.iter_mut().map(|sums| self.row(weights, sums, ranks));
        let mut rows: Vec<FlatTensor> = rows.collect();
        let mut values: Vec<&mut dyn Values> = Vec::new();
        values.extend(rows.iter_mut().map(|row| row as &mut dyn Values));
        exchange.reduce_scatter(&lanes, &mut values, &counts, &mut row)?;
        drop(rows);
        let shapes = weights.iter().flat_map(|index| {
            let sent = self.sent(*index, own);
            [[sent.len()], [padded_len(&sent) - sent.len()]]
        });
        let shapes: Vec<[usize; 1]> = shapes.collect();
        let sums = row.unpack(shapes.iter().map(|shape| &shape[..]));
        for (index, sum) in weights.iter().zip(sums.iter().step_by(2)) {
            let (part, sent) = (self.part(*index, own), self.sent(*index, own));
            total[*index] = (!part.is_empty()).then(|| match part == sent {
                true => sum.clone(),
                false => row_part(sum, 0..part.len()),
            });
            squares.insert(*index, self.squares(*index, sum, (part.start, own)));
        }
        Ok(())
    }

    /// The squares of the pieces that begin in this rank's part of the weight at `index`, if any do. `sum` is what it was sent of the sum, which
    /// begins at value `start` of it.
    fn squares(&self, index: usize, sum: &RawTensor, (start, own): (usize, usize)) -> Option<Squares> {
        let (length, piece) = (self.length(index), self.piece());
        let pieces = self.pieces(index, own);
        let (begin, end) = (pieces.start * piece, (pieces.end * piece).min(length));
        (!pieces.is_empty()).then(|| {
            let whole = row_part(sum, begin - start..end - start);
            self.kernels.ops().optimizer.squares(&whole, length)
        })
    }

    /// The squares of whole sums, put together of what each rank has of them. What is on a GPU may be on its way, as after
    /// [`Exchange::sum`].
    ///
    /// # Errors
    /// If a rank is lost, or has squares of other weights.
    pub fn whole_squares(
        &self,
        exchange: &dyn Exchange,
        own: &OwnSquares,
    ) -> Result<BTreeMap<usize, Squares>, Lost> {
        match self.device.is_processor() {
            _ if own.is_empty() => Ok(BTreeMap::new()),
            true => self.gathered_squares(exchange, own),
            false => self.shared_squares(exchange, own),
        }
    }

    /// As [`whole_squares`](Self::whole_squares), on the host.
    fn gathered_squares(
        &self,
        exchange: &dyn Exchange,
        own: &OwnSquares,
    ) -> Result<BTreeMap<usize, Squares>, Lost> {
        let world = exchange.world();
        let mut said = Vec::new();
        for squares in own.values().flatten() {
            let Squares::Host(pieces) = squares else {
                panic!("kernels of processors leave squares on the host");
            };
            said.extend(pieces.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        let mut whole: BTreeMap<usize, Vec<f64>> = own.keys().map(|index| (*index, Vec::new())).collect();
        for (rank, theirs) in exchange.gather(&said)?.iter().enumerate() {
            let (words, rest) = theirs.as_chunks::<8>();
            let counts: Vec<usize> = own.keys().map(|index| self.pieces(*index, rank).len()).collect();
            if !rest.is_empty() || words.len() != counts.iter().sum::<usize>() {
                return Err(Lost::OutOfStep {
                    rank,
                    own: world.rank,
                    problem: "it has squares of another number of gradients".into(),
                });
            }
            let mut sums = words.iter().map(|word| f64::from_le_bytes(*word));
            for (pieces, count) in whole.values_mut().zip(counts) {
                pieces.extend(sums.by_ref().take(count));
            }
        }
        let whole = whole.into_iter();
        Ok(whole
            .map(|(index, pieces)| (index, Squares::Host(pieces)))
            .collect())
    }

    /// As [`whole_squares`](Self::whole_squares), on a device.
    fn shared_squares(
        &self,
        exchange: &dyn Exchange,
        own: &OwnSquares,
    ) -> Result<BTreeMap<usize, Squares>, Lost> {
        let world = exchange.world();
        let of_rank = |rank: usize| own.keys().map(move |index| [self.pieces(*index, rank).len()]);
        let counts: Vec<usize> = (0..world.ranks)
            .map(|rank| of_rank(rank).flatten().sum())
            .collect();
        let mut given: Vec<(Option<&RawTensor>, &[usize])> = Vec::new();
        let own_counts: Vec<[usize; 1]> = of_rank(world.rank).collect();
        for rank in 0..world.ranks {
            if rank != world.rank {
                given.push((None, &counts[rank..=rank]));
                continue;
            }
            for (squares, count) in own.values().zip(&own_counts) {
                let pieces = squares.as_ref().map(|squares| match squares {
                    Squares::Device(pieces) => &**pieces,
                    Squares::Host(_) => panic!("kernels of devices leave squares there"),
                });
                given.push((pieces, &count[..]));
            }
        }
        let mut row = FlatTensor::pack(self.device, given);
        exchange.share(&mut row, &counts)?;
        let shapes: Vec<[usize; 1]> = (0..world.ranks).flat_map(of_rank).collect();
        let tensors = row.unpack(shapes.iter().map(|shape| &shape[..]));
        let mut whole: BTreeMap<usize, Vec<RawTensor>> = BTreeMap::new();
        // Rank by rank, of every rank all weights.
        let places = own.keys().cycle().zip(shapes.iter().zip(tensors));
        for (index, (_, pieces)) in places.filter(|(_, (shape, _))| shape[0] > 0) {
            whole.entry(*index).or_default().push(pieces);
        }
        let joined = |mut pieces: Vec<RawTensor>| match pieces.len() {
            1 => pieces.remove(0),
            _ => stacked(pieces),
        };
        let whole = whole.into_iter();
        Ok(whole
            .map(|(index, pieces)| (index, Squares::Device(Box::new(joined(pieces)))))
            .collect())
    }
}

/// Values that a rank's share of a weight takes in a row, with those behind it that align the next.
fn padded_len(sent: &Range<usize>) -> usize {
    sent.len().next_multiple_of(ALIGNMENT)
}
