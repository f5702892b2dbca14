//! AdamW on many weights at once. Weights are f32; moments may be bf16; arithmetic is f32.

use crate::Element;
use crate::buffer::{Buffer, Refused, grid, width, with_type};
use crate::groups::{address_of, groups};
use cubecl::prelude::*;
use half::bf16;

/// Threads of a block.
const THREADS: usize = 256;
/// Buffers of one weight.
const BUFFERS: usize = 5;

/// One step, in the order of roundings of PyTorch 2's `torch/optim/adamw.py`, `_single_tensor_adamw`. Each block works on one
/// weight: the first blocks on the first, and so on. `copies` is empty unless `copied`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn adamw_kernel<G: Float, M: Float, C: Float, N: Size>(
    weights: &mut Sequence<Box<[Vector<f32, N>]>>,
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    firsts: &mut Sequence<Box<[Vector<M, N>]>>,
    seconds: &mut Sequence<Box<[Vector<M, N>]>>,
    copies: &mut Sequence<Box<[Vector<C, N>]>>,
    varying: &[f32],
    vectors: &Sequence<usize>,
    decays: &Sequence<f32>,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    #[comptime] copied: bool,
) {
    let mut begin = 0usize.runtime();
    #[unroll]
    for i in 0..weights.len() {
        let length = *vectors.index(i);
        let end = begin + length.div_ceil(comptime!(THREADS));
        let at = (CUBE_POS - begin) * comptime!(THREADS) + UNIT_POS as usize;
        if CUBE_POS >= begin && CUBE_POS < end && at < length && varying[3] >= 0.0f32 {
            let rate = varying[0];
            let keep = Vector::<f32, N>::new(1.0f32 - rate * *decays.index(i));
            let step_size = Vector::<f32, N>::new(rate / varying[1]);
            let root = Vector::<f32, N>::new(varying[2].sqrt());
            let slope = Vector::<f32, N>::cast_from(gradients.index(i)[at]) * Vector::new(varying[3]);
            let m = Vector::<f32, N>::cast_from(firsts.index(i)[at]);
            let m = m + Vector::new(1.0f32 - beta1) * (slope - m);
            let v = Vector::<f32, N>::cast_from(seconds.index(i)[at]);
            let v = v * Vector::new(beta2) + Vector::new(1.0f32 - beta2) * slope * slope;
            firsts.index_mut(i)[at] = Vector::cast_from(m);
            seconds.index_mut(i)[at] = Vector::cast_from(v);
            let change = step_size * m / (v.sqrt() / root + Vector::new(epsilon));
            let result = weights.index(i)[at] * keep - change;
            weights.index_mut(i)[at] = result;
            if comptime!(copied) {
                copies.index_mut(i)[at] = Vector::cast_from(result);
            }
        }
        begin = end;
    }
}

/// Constants and values of one AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Copy, Debug)]
pub struct AdamW<'a> {
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
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
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
}

/// What weights of one launch have in common: types of gradients and moments, whether there is a copy, and how many values a
/// thread reads at once.
type Kind = (Element, Element, bool, usize);

impl Updated<'_> {
    fn check(&self) -> Result<(), Refused> {
        let length = self.weight.length;
        self.weight.expect_of("weight", length, Element::F32)?;
        self.gradient.expect("gradient", length)?;
        if self.first.element == Element::F16 {
            return Err(Refused::Type {
                name: "first",
                found: self.first.element,
                allowed: "f32 and bf16",
            });
        }
        self.first.expect("first", length)?;
        self.second.expect_of("second", length, self.first.element)?;
        if let Some(copy) = self.copy {
            copy.expect_of("copy", length, Element::Bf16)?;
        }
        Ok(())
    }

    fn kind(&self) -> Kind {
        let (gradient, moments) = (self.gradient.element, self.first.element);
        let width = width(self.weight.length, Element::F32);
        (gradient, moments, self.copy.is_some(), width)
    }
}

impl AdamW<'_> {
    /// One step of every weight, in as few launches as their types and the device's bindings allow. A weight's result does
    /// not depend on the others.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit; nothing was launched then.
    pub fn update(&self, client: &Client, all: &[Updated<'_>]) -> Result<(), Refused> {
        let values = self.varying.length.max(4);
        self.varying.expect_of("varying", values, Element::F32)?;
        all.iter().try_for_each(Updated::check)?;
        for group in groups(client, all, BUFFERS, Updated::kind, |one| one.weight.length) {
            let (gradient, moments, copied, _) = group[0].kind();
            with_type!(gradient, G => match (moments, copied) {
                (Element::Bf16, true) => self.launch::<G, bf16, bf16>(client, &group),
                (Element::Bf16, false) => self.launch::<G, bf16, f32>(client, &group),
                (_, true) => self.launch::<G, f32, bf16>(client, &group),
                (_, false) => self.launch::<G, f32, f32>(client, &group),
            });
        }
        Ok(())
    }

    fn launch<G: Float, M: Float, C: Float>(&self, client: &Client, group: &[Updated<'_>]) {
        let (.., copied, width) = group[0].kind();
        let vectors = |one: &Updated<'_>| one.weight.length / width;
        let blocks = group.iter().map(|one| vectors(one).div_ceil(THREADS)).sum();
        let weights: Vec<&Buffer> = group.iter().map(|one| one.weight).collect();
        let ((beta1, beta2), address) = (self.betas, address_of(&weights, self.varying));
        // SAFETY: `update` checked all lengths.
        unsafe {
            adamw_kernel::launch_unchecked::<G, M, C>(
                client,
                grid(client, blocks),
                CubeDim::new_1d(THREADS as u32),
                address,
                width,
                group.iter().map(|one| one.weight.argument()).collect(),
                group.iter().map(|one| one.gradient.argument()).collect(),
                group.iter().map(|one| one.first.argument()).collect(),
                group.iter().map(|one| one.second.argument()).collect(),
                group
                    .iter()
                    .filter_map(|one| one.copy.map(Buffer::argument))
                    .collect(),
                self.varying.argument(),
                group.iter().map(vectors).collect(),
                group.iter().map(|one| one.weight_decay).collect(),
                beta1,
                beta2,
                self.epsilon,
                copied,
            );
        }
    }
}
