//! Slots in the order of their experts, and sums over the rows of each expert.
//!
//! Slots are counted by expert in pieces of 256; the counts become the places where a piece's slots of an expert
//! begin; then each piece puts its slots there in order. No atomics, so the order is always the slots'.

// Loops over indices are what kernels have.
#![allow(clippy::needless_range_loop)]

use super::indices;
use crate::Element;
use crate::buffer::{Buffer, Refusal, address_type, at_least_one, grid, width, with_type};
use crate::columns::{Columns, THREADS, fold, place};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Slots that a thread goes through.
const PIECE: usize = 256;

/// Sizes of the sorting of slots by expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// `R`.
    pub slots: usize,
    /// `E`.
    pub experts: usize,
}

/// A thread for each piece and expert.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn count_slots(choices: &[i32], counts: &mut [u32], slots: usize, experts: usize, pieces: usize) {
    let at = ABSOLUTE_POS;
    if at < pieces * experts {
        let expert = (at % experts) as i32;
        let first = at / experts * PIECE;
        let mut count = 0u32;
        for slot in first..min(first + PIECE, slots) {
            count += select(choices[slot] == expert, 1u32, 0u32);
        }
        counts[at] = count;
    }
}

/// A thread for each expert: how many slots of it come before a piece, in the place of how many the piece has.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn add_up_pieces(counts: &mut [u32], totals: &mut [u32], experts: usize, pieces: usize) {
    let expert = ABSOLUTE_POS;
    if expert < experts {
        let mut before = 0u32;
        for piece in 0..pieces {
            let at = piece * experts + expert;
            let count = counts[at];
            counts[at] = before;
            before += count;
        }
        totals[expert] = before;
    }
}

/// One thread: experts are few.
#[cube(launch_unchecked)]
pub(crate) fn add_up_experts(totals: &[u32], offsets: &mut [u32], experts: usize) {
    if ABSOLUTE_POS == 0 {
        let mut before = 0u32;
        for expert in 0..experts {
            offsets[expert] = before;
            before += totals[expert];
        }
        offsets[experts] = before;
    }
}

/// A thread for each piece and expert.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn place_slots(
    choices: &[i32],
    counts: &[u32],
    offsets: &[u32],
    slot_of_row: &mut [u32],
    row_of_slot: &mut [u32],
    slots: usize,
    experts: usize,
    pieces: usize,
) {
    let at = ABSOLUTE_POS;
    if at < pieces * experts {
        let expert = at % experts;
        let first = at / experts * PIECE;
        let mut row = offsets[expert] + counts[at];
        for slot in first..min(first + PIECE, slots) {
            if choices[slot] == expert as i32 {
                slot_of_row[row as usize] = slot as u32;
                row_of_slot[slot] = row;
                row += 1;
            }
        }
    }
}

impl Grouping {
    /// Sorts the slots of `choices`, each of which is below `E`: gives the slot of each row `[R]`, the row of each slot
    /// `[R]`, and where each expert's rows begin and the last ones end `[E + 1]`.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn sort(
        &self,
        client: &Client,
        choices: &Handle,
        slots: &Handle,
        rows: &Handle,
        offsets: &Handle,
    ) -> Result<(), Refusal> {
        at_least_one("slots", self.slots)?;
        at_least_one("experts", self.experts)?;
        let pieces = self.slots.div_ceil(PIECE);
        let threads = pieces * self.experts;
        // Indices are as long as f32.
        let counts = Buffer::empty(client, threads, Element::F32);
        let totals = Buffer::empty(client, self.experts, Element::F32);
        let choices = || indices("choices", choices, self.slots);
        let offsets = || indices("offsets", offsets, self.experts + 1);
        let (slots, rows) = (
            indices("slots", slots, self.slots)?,
            indices("rows", rows, self.slots)?,
        );
        let address = address_type(&[&counts]).max(cubecl::ir::AddressType::from_len(self.slots));
        let block = CubeDim::new_1d(THREADS as u32);
        let blocks = |threads: usize| grid(client, threads.div_ceil(THREADS));
        // SAFETY: all lengths were checked.
        unsafe {
            count_slots::launch_unchecked(
                client,
                blocks(threads),
                block,
                address,
                choices()?,
                counts.argument(),
                self.slots,
                self.experts,
                pieces,
            );
            add_up_pieces::launch_unchecked(
                client,
                blocks(self.experts),
                block,
                address,
                counts.argument(),
                totals.argument(),
                self.experts,
                pieces,
            );
            add_up_experts::launch_unchecked(
                client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(1),
                totals.argument(),
                offsets()?,
                self.experts,
            );
            place_slots::launch_unchecked(
                client,
                blocks(threads),
                block,
                address,
                choices()?,
                counts.argument(),
                offsets()?,
                slots,
                rows,
                self.slots,
                self.experts,
                pieces,
            );
        }
        Ok(())
    }
}

/// A block for a group and some columns: threads go down the group's rows.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn sum_groups<F: Float, N: Size>(
    x: &[Vector<F, N>],
    offsets: &[u32],
    sums: &mut [Vector<f32, N>],
    groups: usize,
    #[comptime] columns: Columns,
) {
    let mut shared: Shared<[Vector<f32, N>]> = Shared::new_slice(THREADS);
    let blocks = comptime!(columns.blocks());
    let exists = CUBE_POS < groups * blocks;
    let group = select(exists, CUBE_POS / blocks, 0usize);
    let (column, first) = place(CUBE_POS % blocks, columns);
    let inside = column < columns.vectors;
    let at = select(inside, column, 0usize);
    let end = offsets[group + 1] as usize;
    let mut row = offsets[group] as usize + first;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    while row < end {
        sum += Vector::<f32, N>::cast_from(x[row * columns.vectors + at]);
        row += columns.down;
    }
    let folded = fold::<N>(sum, &mut shared, columns);
    if exists && inside && UNIT_POS < columns.across as u32 {
        sums[group * columns.vectors + column] = folded;
    }
}

/// `sums [groups, columns]`, f32, of the rows of each group of `x [R, columns]`; groups begin at `offsets [groups + 1]`, the
/// last of which is `R` at most. 0 for a group without rows.
///
/// # Errors
/// [`Refusal`] if a tensor does not fit.
pub fn group_sums(
    client: &Client,
    x: &Buffer,
    offsets: &Handle,
    [groups, columns]: [usize; 2],
    sums: &Buffer,
) -> Result<(), Refusal> {
    at_least_one("groups", groups)?;
    at_least_one("columns", columns)?;
    sums.expect_of("sums", groups * columns, Element::F32)?;
    x.expect("x", x.length / columns * columns)?;
    let offsets = indices("offsets", offsets, groups + 1)?;
    let width = width(columns, Element::F32).min(width(columns, x.element));
    let division = Columns::new(columns, width);
    // SAFETY: all lengths were checked, and groups are within `x` as the caller promises.
    with_type!(x.element, F => unsafe {
        sum_groups::launch_unchecked::<F>(
            client,
            grid(client, groups * division.blocks()),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[x, sums]),
            width,
            x.argument(),
            offsets,
            sums.argument(),
            groups,
            division,
        );
    });
    Ok(())
}
