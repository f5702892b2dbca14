//! An f32 split into two halves of 16 bits: a bf16 that models compute with, and the bits that it lacks.
//!
//! The high half is the nearest bf16 (ties away from zero). The low half is the difference of the bits, from -2^15 to 2^15 - 1.
//! Together they are the f32, bit for bit, in 4 bytes instead of the 6 of an f32 with a bf16 copy.

use crate::Element;
use crate::buffer::{Buffer, Refusal, address_type, grid, width};
use crate::multi_tensor::{address_of, groups};
use cubecl::prelude::*;

/// Threads of a block.
const THREADS: usize = 256;
/// Buffers of one tensor.
const BUFFERS: usize = 3;

/// The f32 of two halves.
#[cube]
pub(crate) fn joined(high: u16, low: u16) -> f32 {
    let low = u32::cast_from(low);
    // The low half has a sign.
    f32::reinterpret((u32::cast_from(high) << 16u32) + low - ((low & 0x8000u32) << 1u32))
}

/// The high half of an f32's bits.
#[cube]
pub(crate) fn high_of(bits: u32) -> u16 {
    rounded(bits, 0x8000u32)
}

/// The bf16 of an f32's bits, rounded up where what it lacks and `share` of 2^16 make a whole. Carried so far, the largest NaN
/// would become minus zero: a NaN stays one, of the same sign.
#[cube]
pub(crate) fn rounded(bits: u32, share: u32) -> u16 {
    let is_nan = (bits & 0x7FFF_FFFFu32) > 0x7F80_0000u32;
    let high = select(is_nan, (bits >> 16u32) | 0x40u32, (bits + share) >> 16u32);
    u16::cast_from(high)
}

/// The low half of an f32's bits.
#[cube]
pub(crate) fn low_of(bits: u32) -> u16 {
    u16::cast_from(bits & 0xFFFFu32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn split_kernel<N: Size>(
    values: &[Vector<f32, N>],
    highs: &mut [Vector<u16, N>],
    lows: &mut [Vector<u16, N>],
    vectors: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (mut high, mut low) = (Vector::<u16, N>::empty(), Vector::<u16, N>::empty());
        #[unroll]
        for lane in 0..N::value() {
            let bits = u32::reinterpret(values[at].extract(lane));
            high.insert(lane, high_of(bits));
            low.insert(lane, low_of(bits));
        }
        highs[at] = high;
        lows[at] = low;
    }
}

/// Each block works on one tensor: the first blocks on the first, and so on.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn join_kernel<N: Size>(
    highs: &Sequence<Box<[Vector<u16, N>]>>,
    lows: &Sequence<Box<[Vector<u16, N>]>>,
    values: &mut Sequence<Box<[Vector<f32, N>]>>,
    vectors: &Sequence<usize>,
) {
    let mut begin = 0usize.runtime();
    #[unroll]
    for i in 0..values.len() {
        let length = *vectors.index(i);
        let end = begin + length.div_ceil(comptime!(THREADS));
        let at = (CUBE_POS - begin) * comptime!(THREADS) + UNIT_POS as usize;
        if CUBE_POS >= begin && CUBE_POS < end && at < length {
            let (high, low) = (highs.index(i)[at], lows.index(i)[at]);
            let mut value = Vector::<f32, N>::empty();
            #[unroll]
            for lane in 0..N::value() {
                value.insert(lane, joined(high.extract(lane), low.extract(lane)));
            }
            values.index_mut(i)[at] = value;
        }
        begin = end;
    }
}

/// The halves of an f32 tensor, both of 16 bits a value.
#[derive(Clone, Copy, Debug)]
pub struct SplitF32<'a> {
    /// The nearest bf16.
    pub high: &'a Buffer,
    /// What it lacks: bits, not numbers, though their type is bf16.
    pub low: &'a Buffer,
}

impl SplitF32<'_> {
    fn check(&self, value: &Buffer) -> Result<(), Refusal> {
        let length = value.length;
        value.expect_of("value", length, Element::F32)?;
        self.high.expect_of("high", length, Element::Bf16)?;
        self.low.expect_of("low", length, Element::Bf16)?;
        Ok(())
    }

    /// Writes the halves of `value`.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit; nothing was launched then.
    pub fn split(&self, client: &Client, value: &Buffer) -> Result<(), Refusal> {
        self.check(value)?;
        let width = width(value.length, Element::F32);
        let vectors = value.length / width;
        if vectors == 0 {
            return Ok(());
        }
        // SAFETY: all lengths were checked.
        unsafe {
            split_kernel::launch_unchecked(
                client,
                grid(client, vectors.div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[value]),
                width,
                value.argument(),
                self.high.argument(),
                self.low.argument(),
                vectors,
            );
        }
        Ok(())
    }
}

/// Writes into each value what it was before its halves were [`split`](SplitF32::split), many in a launch.
///
/// # Errors
/// [`Refusal`] if a tensor does not fit; nothing was launched then.
pub fn join(client: &Client, all: &[(SplitF32<'_>, &Buffer)]) -> Result<(), Refusal> {
    all.iter().try_for_each(|(halves, value)| halves.check(value))?;
    let width = |one: &(SplitF32<'_>, &Buffer)| width(one.1.length, Element::F32);
    for group in groups(client, all, BUFFERS, width, |one| one.1.length) {
        let width = width(&group[0]);
        let vectors = |one: &(SplitF32<'_>, &Buffer)| one.1.length / width;
        let blocks = group.iter().map(|one| vectors(one).div_ceil(THREADS)).sum();
        let values: Vec<&Buffer> = group.iter().map(|one| one.1).collect();
        // SAFETY: all lengths were checked.
        unsafe {
            join_kernel::launch_unchecked(
                client,
                grid(client, blocks),
                CubeDim::new_1d(THREADS as u32),
                address_of(&values, values[0]),
                width,
                group.iter().map(|one| one.0.high.argument()).collect(),
                group.iter().map(|one| one.0.low.argument()).collect(),
                group.iter().map(|one| one.1.argument()).collect(),
                group.iter().map(vectors).collect(),
            );
        }
    }
    Ok(())
}
