//! An f32 as a split f32 of 16 bits: a bf16 that models compute with, and what it lacks.
//!
//! The high half is the nearest bf16, of two equally near ones the one farther from zero; the lower half is the
//! difference of the bits, from -2^15 to 2^15 - 1 of them. Together they are the f32, bit for bit, in 4 bytes instead of the 6 of a value
//! with a copy beside it.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, grid, width};
use crate::multi_tensor::{address_of, groups};
use cubecl::prelude::*;

/// Threads of a block.
const THREADS: usize = 256;
/// Buffers of one tensor.
const BUFFERS: usize = 3;

/// The f32 of two halves.
#[cube]
pub(crate) fn joined(upper: u16, lower: u16) -> f32 {
    let lower = u32::cast_from(lower);
    // The lower half has a sign.
    f32::reinterpret((u32::cast_from(upper) << 16u32) + lower - ((lower & 0x8000u32) << 1u32))
}

/// The high half of an f32's bits.
#[cube]
pub(crate) fn upper_of(bits: u32) -> u16 {
    rounded(bits, 0x8000u32)
}

/// The bf16 of an f32's bits, rounded up where what it lacks and `share` of 2^16 make a whole. Carried so far, the largest NaN
/// would become minus zero: a NaN stays one, of the same sign.
#[cube]
pub(crate) fn rounded(bits: u32, share: u32) -> u16 {
    let is_nan = (bits & 0x7FFF_FFFFu32) > 0x7F80_0000u32;
    let upper = select(is_nan, (bits >> 16u32) | 0x40u32, (bits + share) >> 16u32);
    u16::cast_from(upper)
}

/// The lower half of an f32's bits.
#[cube]
pub(crate) fn lower_of(bits: u32) -> u16 {
    u16::cast_from(bits & 0xFFFFu32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn split_kernel<N: Size>(
    values: &[Vector<f32, N>],
    uppers: &mut [Vector<u16, N>],
    lowers: &mut [Vector<u16, N>],
    vectors: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (mut upper, mut lower) = (Vector::<u16, N>::empty(), Vector::<u16, N>::empty());
        #[unroll]
        for lane in 0..N::value() {
            let bits = u32::reinterpret(values[at].extract(lane));
            upper.insert(lane, upper_of(bits));
            lower.insert(lane, lower_of(bits));
        }
        uppers[at] = upper;
        lowers[at] = lower;
    }
}

/// Each block works on one tensor: the first blocks on the first, and so on.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn join_kernel<N: Size>(
    uppers: &Sequence<Box<[Vector<u16, N>]>>,
    lowers: &Sequence<Box<[Vector<u16, N>]>>,
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
            let (upper, lower) = (uppers.index(i)[at], lowers.index(i)[at]);
            let mut value = Vector::<f32, N>::empty();
            #[unroll]
            for lane in 0..N::value() {
                value.insert(lane, joined(upper.extract(lane), lower.extract(lane)));
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
    pub upper: &'a Buffer,
    /// What it lacks: bits, not numbers, though their type is bf16.
    pub lower: &'a Buffer,
}

impl SplitF32<'_> {
    fn check(&self, value: &Buffer) -> Result<(), Refused> {
        let length = value.length;
        value.expect_of("value", length, Element::F32)?;
        self.upper.expect_of("upper", length, Element::Bf16)?;
        self.lower.expect_of("lower", length, Element::Bf16)?;
        Ok(())
    }

    /// Writes the halves of `value`.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit; nothing was launched then.
    pub fn split(&self, client: &Client, value: &Buffer) -> Result<(), Refused> {
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
                self.upper.argument(),
                self.lower.argument(),
                vectors,
            );
        }
        Ok(())
    }
}

/// Writes into each value what it was before its halves were [`split`](SplitF32::split), many in a launch.
///
/// # Errors
/// [`Refused`] if a tensor does not fit; nothing was launched then.
pub fn join(client: &Client, all: &[(SplitF32<'_>, &Buffer)]) -> Result<(), Refused> {
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
                group.iter().map(|one| one.0.upper.argument()).collect(),
                group.iter().map(|one| one.0.lower.argument()).collect(),
                group.iter().map(|one| one.1.argument()).collect(),
                group.iter().map(vectors).collect(),
            );
        }
    }
    Ok(())
}
