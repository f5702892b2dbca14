//! What an optimizer step needs beside AdamW itself: the gradients' norm, accumulation and moving averages.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, grid, width, with_type};
use crate::multi_tensor::{address_of, groups};
use crate::sde::block_sum;
use cubecl::prelude::*;

/// Threads of a block.
const THREADS: usize = 256;
/// Values whose squares one block sums: a piece.
pub const SQUARES_PIECE: usize = 16 * THREADS;

/// Sums of squares of the pieces of several tensors of one type and width: tensor `i` has `vectors[i]` vectors, and its pieces'
/// sums go to `partials[firsts[i]..]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn squares<F: Float, N: Size>(
    tensors: &Sequence<Box<[Vector<F, N>]>>,
    vectors: &Sequence<usize>,
    firsts: &Sequence<usize>,
    partials: &mut [f32],
) {
    let width = N::value();
    let in_piece = comptime!(SQUARES_PIECE / width);
    let mut begin = 0usize.runtime();
    let mut sum = 0.0f32;
    let mut to = 0usize.runtime();
    #[unroll]
    for i in 0..tensors.len() {
        let length = *vectors.index(i);
        let end = begin + length.div_ceil(in_piece);
        if CUBE_POS >= begin && CUBE_POS < end {
            let values = tensors.index(i);
            let base = (CUBE_POS - begin) * in_piece;
            to = *firsts.index(i) + CUBE_POS - begin;
            for step in 0..comptime!(SQUARES_PIECE / width / THREADS) {
                let at = base + step * THREADS + UNIT_POS as usize;
                if at < length {
                    let value = Vector::<f32, N>::cast_from(values[at]);
                    #[unroll]
                    for lane in 0..N::value() {
                        sum = fma(value.extract(lane), value.extract(lane), sum);
                    }
                }
            }
        }
        begin = end;
    }
    let sum = block_sum(sum);
    if UNIT_POS == 0 && CUBE_POS < begin {
        partials[to] = sum;
    }
}

/// What a step's factors follow from, beside the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Learning rate.
    pub learning_rate: f32,
    /// `1 - beta1^t` and `1 - beta2^t`.
    pub corrections: [f32; 2],
    /// Bound on the norm of the mean gradient, 0 for none.
    pub max_norm: f32,
    /// Added to the norm before the bound is divided by it.
    pub small: f32,
    /// How many gradients were summed.
    pub units: f32,
}

/// [`Factors`] as the kernel takes them.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct StepFactors {
    /// Learning rate.
    pub rate: f32,
    /// `1 - beta1^t`.
    pub correction1: f32,
    /// `1 - beta2^t`.
    pub correction2: f32,
    /// Bound on the norm of the mean gradient, 0 for none.
    pub max_norm: f32,
    /// Added to the norm before the bound is divided by it.
    pub small: f32,
    /// How many gradients were summed.
    pub units: f32,
}

/// `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale, norm]` from sums of squares. One block.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn step_values_kernel(partials: &[f32], varying: &mut [f32], count: usize, factors: &StepFactors) {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += partials[at];
        at += THREADS;
    }
    let sum = block_sum(sum);
    if UNIT_POS == 0 {
        let norm = sum.sqrt() / factors.units;
        let mut scale = 1.0f32 / factors.units;
        if factors.max_norm > 0.0f32 {
            let clip = factors.max_norm / (norm + factors.small);
            scale *= select(clip < 1.0f32, clip, 1.0f32);
        }
        varying[0] = factors.rate;
        varying[1] = factors.correction1;
        varying[2] = factors.correction2;
        // False for what is not a number, too.
        varying[3] = select(norm <= f32::MAX, scale, -1.0f32);
        varying[4] = norm;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn accumulate_kernel<F: Float, N: Size>(
    accumulated: &mut [Vector<f32, N>],
    gradient: &[Vector<F, N>],
    vectors: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let sum = accumulated[at] + Vector::<f32, N>::cast_from(gradient[at]);
        accumulated[at] = sum;
    }
}

/// Each block works on one average: the first blocks on the first, and so on.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn average_kernel<F: Float, N: Size>(
    averages: &mut Sequence<Box<[Vector<f32, N>]>>,
    values: &Sequence<Box<[Vector<F, N>]>>,
    decay: &[f32],
    vectors: &Sequence<usize>,
) {
    let keep = decay[0];
    let mut begin = 0usize.runtime();
    #[unroll]
    for i in 0..averages.len() {
        let length = *vectors.index(i);
        let end = begin + length.div_ceil(comptime!(THREADS));
        let at = (CUBE_POS - begin) * comptime!(THREADS) + UNIT_POS as usize;
        if CUBE_POS >= begin && CUBE_POS < end && at < length {
            let added = Vector::new(1.0f32 - keep) * Vector::<f32, N>::cast_from(values.index(i)[at]);
            // Named, for a compiler that chooses which of two products to fuse does not choose the same one for each weight.
            averages.index_mut(i)[at] = fma(Vector::new(keep), averages.index(i)[at], added);
        }
        begin = end;
    }
}

/// Sums of squares of the pieces of all `tensors`, and how many pieces each has. Many tensors take one launch.
fn partial_squares(client: &Client, tensors: &[&Buffer]) -> (Buffer, Vec<usize>) {
    let pieces: Vec<usize> = tensors.iter().map(|tensor| self::pieces(tensor)).collect();
    let firsts = pieces.iter().scan(0, |next, pieces| {
        let first = *next;
        *next += pieces;
        Some(first)
    });
    let partials = Buffer::empty(client, pieces.iter().sum(), Element::F32);
    let placed = tensors.iter().zip(firsts).map(|(tensor, first)| Placed {
        tensor,
        width: width(tensor.length, tensor.element),
        first,
    });
    sum_squares(client, &placed.collect::<Vec<_>>(), &partials);
    (partials, pieces)
}

/// A tensor whose squares are summed, or some of its pieces.
#[derive(Clone, Copy)]
struct Placed<'a> {
    tensor: &'a Buffer,
    /// Values that a thread reads at once, on which the order of a piece's sum depends.
    width: usize,
    /// Where the sum of the first piece goes.
    first: usize,
}

/// Puts the sums of squares of the pieces of each tensor into `partials`.
fn sum_squares(client: &Client, all: &[Placed<'_>], partials: &Buffer) {
    let alike = |of: &Placed<'_>| (of.tensor.element, of.width);
    for group in groups(client, all, 1, alike, |of| of.tensor.length) {
        let (element, width) = alike(&group[0]);
        let blocks = group.iter().map(|of| pieces(of.tensor)).sum();
        let buffers: Vec<&Buffer> = group.iter().map(|of| of.tensor).collect();
        // SAFETY: there is one partial sum for each piece of each tensor.
        with_type!(element, F => unsafe {
            squares::launch_unchecked::<F>(
                client,
                grid(client, blocks),
                CubeDim::new_1d(THREADS as u32),
                address_of(&buffers, partials),
                width,
                buffers.iter().map(|tensor| tensor.argument()).collect(),
                buffers.iter().map(|tensor| tensor.length / width).collect(),
                group.iter().map(|of| of.first).collect(),
                partials.argument(),
            );
        });
    }
}

/// How many pieces a tensor has whose squares are summed apart.
pub fn pieces(tensor: &Buffer) -> usize {
    tensor.length.div_ceil(SQUARES_PIECE)
}

/// The sums of squares of the [`pieces`] of one tensor of any type, to `partials [pieces]` in f32. `tensor` is one of `length` values, or whole
/// pieces of it, one behind the other: their sums have the bits that they have among all.
///
/// # Errors
/// [`Refused`] if `partials` does not fit, or `tensor` is not pieces of one of `length` values.
pub fn squares_of_pieces(
    client: &Client,
    tensor: &Buffer,
    length: usize,
    partials: &Buffer,
) -> Result<(), Refused> {
    partials.expect_of("partials", pieces(tensor), Element::F32)?;
    let width = width(length, tensor.element);
    if !tensor.length.is_multiple_of(width) {
        return Err(Refused::Size {
            name: "tensor",
            found: tensor.length,
            allowed: format!("multiples of {width}, of which a piece of a tensor of {length} values is one"),
        });
    }
    let first = 0;
    sum_squares(client, &[Placed { tensor, width, first }], partials);
    Ok(())
}

/// The sum of squares of the values of each of `tensors`, of any types: f32 within pieces of 4096 values in a fixed order,
/// the pieces in order in f64 on the host. Waits for the device once. `None` if the device failed.
pub fn sums_of_squares(client: &Client, tensors: &[&Buffer]) -> Option<Vec<f64>> {
    let (partials, pieces) = partial_squares(client, tensors);
    let mut partials = partials.download(client)?.into_iter();
    let sums = pieces.iter().map(|pieces| partials.by_ref().take(*pieces).sum());
    Some(sums.collect())
}

/// The factors of a step with the sums of gradients `tensors`, `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale,
/// norm]` in f32, computed on the device in a fixed order and written to `varying [5]`. The scale is -1 if the norm is not
/// finite.
///
/// # Errors
/// [`Refused`] if `varying` does not fit.
pub fn step_values(
    client: &Client,
    tensors: &[&Buffer],
    factors: &Factors,
    varying: &Buffer,
) -> Result<(), Refused> {
    varying.expect_of("varying", 5, Element::F32)?;
    let (partials, _) = partial_squares(client, tensors);
    step_values_of_pieces(client, &partials, factors, varying)
}

/// As [`step_values`], of the sums of squares of the pieces of all tensors, one tensor behind the other.
///
/// # Errors
/// [`Refused`] if a buffer does not fit.
pub fn step_values_of_pieces(
    client: &Client,
    partials: &Buffer,
    factors: &Factors,
    varying: &Buffer,
) -> Result<(), Refused> {
    partials.expect_of("partials", partials.length, Element::F32)?;
    varying.expect_of("varying", 5, Element::F32)?;
    let [correction1, correction2] = factors.corrections;
    // SAFETY: the one block reads as many partial sums as there are, and writes five values.
    unsafe {
        step_values_kernel::launch_unchecked(
            client,
            CubeCount::new_single(),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[partials]),
            partials.argument(),
            varying.argument(),
            partials.length,
            StepFactorsLaunch::new(
                factors.learning_rate,
                correction1,
                correction2,
                factors.max_norm,
                factors.small,
                factors.units,
            ),
        );
    }
    Ok(())
}

/// `accumulated += gradient`; `accumulated` f32, `gradient` of any type.
///
/// # Errors
/// [`Refused`] if a tensor does not fit.
pub fn accumulate(client: &Client, accumulated: &Buffer, gradient: &Buffer) -> Result<(), Refused> {
    accumulated.expect_of("accumulated", gradient.length, Element::F32)?;
    if gradient.length == 0 {
        return Ok(());
    }
    let width = width(gradient.length, Element::F32);
    let vectors = gradient.length / width;
    // SAFETY: all lengths were checked.
    with_type!(gradient.element, F => unsafe {
        accumulate_kernel::launch_unchecked::<F>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[gradient]),
            width,
            accumulated.argument(),
            gradient.argument(),
            vectors,
        );
    });
    Ok(())
}

/// `average = decay · average + (1 - decay) · value` of each pair, in few launches; `average` and `decay [1]` f32, `value` of
/// any type.
///
/// # Errors
/// [`Refused`] if a tensor does not fit; nothing was launched then.
pub fn average(client: &Client, pairs: &[(&Buffer, &Buffer)], decay: &Buffer) -> Result<(), Refused> {
    for (average, value) in pairs {
        average.expect_of("average", value.length, Element::F32)?;
        value.expect("value", value.length)?;
    }
    decay.expect_of("decay", 1, Element::F32)?;
    let alike = |(_, value): &(&Buffer, &Buffer)| (value.element, width(value.length, Element::F32));
    for group in groups(client, pairs, 2, alike, |(_, value)| value.length) {
        let (element, width) = alike(&group[0]);
        let vectors = |(_, value): &(&Buffer, &Buffer)| value.length / width;
        let blocks = group.iter().map(|one| vectors(one).div_ceil(THREADS)).sum();
        let values: Vec<&Buffer> = group.iter().map(|(_, value)| *value).collect();
        // SAFETY: all lengths were checked.
        with_type!(element, F => unsafe {
            average_kernel::launch_unchecked::<F>(
                client,
                grid(client, blocks),
                CubeDim::new_1d(THREADS as u32),
                address_of(&values, decay),
                width,
                group.iter().map(|(average, _)| average.argument()).collect(),
                values.iter().map(|value| value.argument()).collect(),
                decay.argument(),
                group.iter().map(vectors).collect(),
            );
        });
    }
    Ok(())
}
