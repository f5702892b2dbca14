//! What an optimizer step needs: the gradients' norm, accumulation, AdamW and moving averages. Weights are f32.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, grid, width, with_type};
use crate::sde::block_sum;
use cubecl::prelude::*;
use half::bf16;

/// Threads of a block.
const THREADS: usize = 256;
/// Values whose squares one block adds up.
const PIECE: usize = 16 * THREADS;

/// Sums of squares of pieces, from `first` on.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn squares<F: Float, N: Size>(
    values: &[Vector<F, N>],
    partials: &mut [f32],
    vectors: usize,
    first: usize,
) {
    let width = N::value();
    let base = CUBE_POS * comptime!(PIECE / width);
    let mut sum = 0.0f32;
    for step in 0..comptime!(PIECE / width / THREADS) {
        let at = base + step * THREADS + UNIT_POS as usize;
        if at < vectors {
            let value = Vector::<f32, N>::cast_from(values[at]);
            #[unroll]
            for i in 0..N::value() {
                sum = fma(value.extract(i), value.extract(i), sum);
            }
        }
    }
    let sum = block_sum(sum);
    if UNIT_POS == 0 && base < vectors {
        partials[first + CUBE_POS] = sum;
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
    /// How many gradients were added up.
    pub units: f32,
}

/// `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale, norm]` from sums of squares. One block.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn step_values_kernel(
    partials: &[f32],
    varying: &mut [f32],
    count: usize,
    rate: f32,
    correction1: f32,
    correction2: f32,
    max_norm: f32,
    small: f32,
    units: f32,
) {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < count {
        sum += partials[at];
        at += THREADS;
    }
    let sum = block_sum(sum);
    if UNIT_POS == 0 {
        let norm = sum.sqrt() / units;
        let mut scale = 1.0f32 / units;
        if max_norm > 0.0f32 {
            let clip = max_norm / (norm + small);
            scale *= select(clip < 1.0f32, clip, 1.0f32);
        }
        varying[0] = rate;
        varying[1] = correction1;
        varying[2] = correction2;
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

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn average_kernel<F: Float, N: Size>(
    average: &mut [Vector<f32, N>],
    value: &[Vector<F, N>],
    decay: &[f32],
    vectors: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let keep = decay[0];
        let kept = Vector::<f32, N>::new(keep) * average[at];
        average[at] = kept + Vector::new(1.0f32 - keep) * Vector::<f32, N>::cast_from(value[at]);
    }
}

/// One step, in the order of roundings of PyTorch 2's `torch/optim/adamw.py`, `_single_tensor_adamw`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn adamw_kernel<G: Float, M: Float, C: Float, N: Size>(
    weight: &mut [Vector<f32, N>],
    gradient: &[Vector<G, N>],
    first: &mut [Vector<M, N>],
    second: &mut [Vector<M, N>],
    copy: &mut [Vector<C, N>],
    varying: &[f32],
    vectors: usize,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    #[comptime] copied: bool,
) {
    let at = ABSOLUTE_POS;
    if at < vectors && varying[3] >= 0.0f32 {
        let rate = varying[0];
        let keep = Vector::<f32, N>::new(1.0f32 - rate * weight_decay);
        let step_size = Vector::<f32, N>::new(rate / varying[1]);
        let root = Vector::<f32, N>::new(varying[2].sqrt());
        let slope = Vector::<f32, N>::cast_from(gradient[at]) * Vector::new(varying[3]);
        let m = Vector::<f32, N>::cast_from(first[at]);
        let m = m + Vector::new(1.0f32 - beta1) * (slope - m);
        let v = Vector::<f32, N>::cast_from(second[at]);
        let v = v * Vector::new(beta2) + Vector::new(1.0f32 - beta2) * slope * slope;
        first[at] = Vector::cast_from(m);
        second[at] = Vector::cast_from(v);
        let change = step_size * m / (v.sqrt() / root + Vector::new(epsilon));
        let result = weight[at] * keep - change;
        weight[at] = result;
        if comptime!(copied) {
            copy[at] = Vector::cast_from(result);
        }
    }
}

/// Sums of squares of the pieces of all `tensors`, and how many pieces each has.
fn partial_squares(client: &Client, tensors: &[&Buffer]) -> (Buffer, Vec<usize>) {
    let pieces: Vec<usize> = tensors
        .iter()
        .map(|tensor| tensor.length.div_ceil(PIECE))
        .collect();
    let partials = Buffer::empty(client, pieces.iter().sum(), Element::F32);
    let mut first = 0;
    let launched = tensors.iter().zip(&pieces).filter(|(_, pieces)| **pieces > 0);
    for (tensor, &pieces) in launched {
        let width = width(tensor.length, tensor.element);
        // SAFETY: there is one partial sum for each piece of each tensor.
        with_type!(tensor.element, F => unsafe {
            squares::launch_unchecked::<F>(
                client,
                grid(client, pieces),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[tensor, &partials]),
                width,
                tensor.argument(),
                partials.argument(),
                tensor.length / width,
                first,
            );
        });
        first += pieces;
    }
    (partials, pieces)
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
    let [correction1, correction2] = factors.corrections;
    // SAFETY: the one block reads as many partial sums as there are, and writes five values.
    unsafe {
        step_values_kernel::launch_unchecked(
            client,
            CubeCount::new_single(),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[&partials]),
            partials.argument(),
            varying.argument(),
            partials.length,
            factors.learning_rate,
            correction1,
            correction2,
            factors.max_norm,
            factors.small,
            factors.units,
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

/// `average = decay · average + (1 - decay) · value`; `average` and `decay [1]` f32, `value` of any type.
///
/// # Errors
/// [`Refused`] if a tensor does not fit.
pub fn average(client: &Client, average: &Buffer, value: &Buffer, decay: &Buffer) -> Result<(), Refused> {
    average.expect_of("average", value.length, Element::F32)?;
    decay.expect_of("decay", 1, Element::F32)?;
    if value.length == 0 {
        return Ok(());
    }
    let width = width(value.length, Element::F32);
    let vectors = value.length / width;
    // SAFETY: all lengths were checked.
    with_type!(value.element, F => unsafe {
        average_kernel::launch_unchecked::<F>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[value]),
            width,
            average.argument(),
            value.argument(),
            decay.argument(),
            vectors,
        );
    });
    Ok(())
}

/// Constants and values of one AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Copy, Debug)]
pub struct AdamW<'a> {
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
    /// `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale, …]`, f32, at least 4 values. A scale below 0: nothing
    /// changes.
    pub varying: &'a Buffer,
}

/// A weight with what its step reads and writes, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct Updated<'a> {
    /// f32; changed.
    pub weight: &'a Buffer,
    /// Of any type.
    pub gradient: &'a Buffer,
    /// First moment, f32 or bf16; changed.
    pub first: &'a Buffer,
    /// Second moment, of the type of the first; changed.
    pub second: &'a Buffer,
    /// Receives the new weight in bf16.
    pub copy: Option<&'a Buffer>,
}

impl AdamW<'_> {
    /// One step of one weight. Arithmetic is f32 whatever the moments are stored as.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn update(&self, client: &Client, of: Updated<'_>) -> Result<(), Refused> {
        let length = of.weight.length;
        of.weight.expect_of("weight", length, Element::F32)?;
        of.gradient.expect("gradient", length)?;
        let values = self.varying.length.max(4);
        self.varying.expect_of("varying", values, Element::F32)?;
        if of.first.element == Element::F16 {
            return Err(Refused::Type {
                name: "first",
                found: of.first.element,
                allowed: "f32 and bf16",
            });
        }
        of.first.expect("first", length)?;
        of.second.expect_of("second", length, of.first.element)?;
        if let Some(copy) = of.copy {
            copy.expect_of("copy", length, Element::Bf16)?;
        }
        if length == 0 {
            return Ok(());
        }
        with_type!(of.gradient.element, G => match (of.first.element, of.copy.is_some()) {
            (Element::Bf16, true) => self.launch::<G, bf16, bf16>(client, of),
            (Element::Bf16, false) => self.launch::<G, bf16, f32>(client, of),
            (_, true) => self.launch::<G, f32, bf16>(client, of),
            (_, false) => self.launch::<G, f32, f32>(client, of),
        });
        Ok(())
    }

    fn launch<G: Float, M: Float, C: Float>(&self, client: &Client, of: Updated<'_>) {
        let width = width(of.weight.length, Element::F32);
        let vectors = of.weight.length / width;
        let blocks = grid(client, vectors.div_ceil(THREADS));
        let threads = CubeDim::new_1d(THREADS as u32);
        let ((beta1, beta2), address) = (self.betas, address_type(&[of.weight]));
        // SAFETY: `update` checked all lengths.
        unsafe {
            adamw_kernel::launch_unchecked::<G, M, C>(
                client,
                blocks,
                threads,
                address,
                width,
                of.weight.argument(),
                of.gradient.argument(),
                of.first.argument(),
                of.second.argument(),
                of.copy
                    .unwrap_or(&Buffer::empty(client, 4, Element::F32))
                    .argument(),
                self.varying.argument(),
                vectors,
                beta1,
                beta2,
                self.epsilon,
                self.weight_decay,
                of.copy.is_some(),
            );
        }
    }
}
