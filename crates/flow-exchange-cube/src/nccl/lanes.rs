//! Sums in the order of the lanes: NCCL moves what each rank adds up, and the device adds it.

use super::{ALIGNMENT, NcclExchange, Transfer, WIDTH};
use crate::stream::Stream;
use burn::backend::{Dispatch, ops::FloatTensorOps};
use flow_core::RawTensor;
use flow_core::device::ComputeDevice;
use flow_exchange::{Exchange, Lanes, Lost, Partials, ValueType, World, portion};
use std::ops::Range;

impl<E: Exchange> NcclExchange<E> {
    /// As [`Exchange::sum`], of the rows of this rank's nodes, of `count` values each. They are on the device's way, not yet there.
    pub(super) fn sum_on_gpu(
        &self,
        lanes: &Lanes,
        parts: Vec<RawTensor>,
        (count, device): (usize, &ComputeDevice),
    ) -> Result<RawTensor, Lost> {
        let World { rank: own, ranks, .. } = self.control.world();
        let portions = (0..ranks).map(|rank| portion(count, rank, ranks, ALIGNMENT));
        let portions: Vec<Range<usize>> = portions.collect();
        let mark = self.next_mark()?;
        let (total, stream) = self.own_total(lanes, &parts, (&portions, device))?;
        let all = device.empty(&[count]);
        let (from, to) = (self.address(&total)?, self.address(&all)?);
        let mut transfers = Vec::new();
        for (rank, range) in portions.iter().enumerate() {
            transfers.push(Transfer::send(from, &(0..portions[own].len()), rank, WIDTH));
            transfers.push(Transfer::receive(to, range, rank, WIDTH));
        }
        transfers.retain(|transfer| transfer.bytes > 0);
        self.launch(stream, &transfers)?;
        self.end_at(mark, stream, parts)?;
        Ok(all)
    }

    /// As [`Exchange::reduce_scatter`], of the rows of this rank's nodes: a row of the values in this rank's of `ranges`, one if there are none.
    /// They are on the device's way, not yet there.
    pub(super) fn reduce_scatter_on_gpu(
        &self,
        lanes: &Lanes,
        parts: Vec<RawTensor>,
        of_ranks: (&[Range<usize>], &ComputeDevice),
    ) -> Result<RawTensor, Lost> {
        let mark = self.next_mark()?;
        let (total, stream) = self.own_total(lanes, &parts, of_ranks)?;
        self.end_at(mark, stream, parts)?;
        Ok(total)
    }

    /// Sends every rank what it adds up of `parts`, the rows of this rank's nodes, and adds up what comes for this one: a row, of one value if
    /// it adds up none, and the stream that it is on. `ranges` are the values of each rank.
    fn own_total(
        &self,
        lanes: &Lanes,
        parts: &[RawTensor],
        (ranges, device): (&[Range<usize>], &ComputeDevice),
    ) -> Result<(RawTensor, Stream), Lost> {
        let World { rank: own, ranks, .. } = self.control.world();
        self.agree(ranges.last().map_or(0, |range| range.end), ValueType::F32)?;
        self.gpu.bind().map_err(|problem| self.lost(problem))?;
        let mine = ranges[own].len();
        let mut transfers = Vec::new();
        for (rank, range) in ranges.iter().enumerate() {
            for part in parts {
                transfers.push(Transfer::send(self.address(part)?, range, rank, WIDTH));
            }
        }
        // One row for each node of every rank: what it has of this rank's values.
        let mut nodes = Vec::new();
        for rank in 0..ranks {
            for node in lanes.cover(lanes.of_rank(rank, ranks)) {
                let row = device.empty(&[mine.max(1)]);
                transfers.push(Transfer::receive(self.address(&row)?, &(0..mine), rank, WIDTH));
                nodes.push((node, row));
            }
        }
        let stream = self.gpu.stream().map_err(|problem| self.lost(problem))?;
        transfers.retain(|transfer| transfer.bytes > 0);
        self.launch(stream, &transfers)?;
        let mut sums: Partials<RawTensor> = Partials::new(*lanes);
        for (node, row) in nodes {
            sums.push(node, row, |sum, more| {
                *sum = Dispatch::float_add(sum.clone(), more);
            });
        }
        let (_, total) = sums.into_sums().swap_remove(0);
        Ok((total, stream))
    }
}
