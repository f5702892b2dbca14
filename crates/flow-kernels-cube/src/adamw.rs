//! AdamW on many weights at once. Weights are f32, in one piece or as a split f32, or bf16; moments may be bf16; arithmetic is f32.

mod narrow;

use crate::Element;
use crate::buffer::{Buffer, Refused, grid, width, with_type};
use crate::multi_tensor::{address_of, groups};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use half::bf16;
pub(crate) use narrow::*;

/// Threads of a block.
const THREADS: usize = 256;
/// Buffers of one weight.
const BUFFERS: usize = 5;

/// What the values of one weight have in common.
#[derive(CubeType, Clone, Copy)]
struct Rates {
    scale: f32,
    keep: f32,
    step_size: f32,
    root: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
}

#[cube]
impl Rates {
    fn new(varying: &[f32], decay: f32, beta1: f32, beta2: f32, epsilon: f32) -> Self {
        let rate = varying[0];
        Rates {
            scale: varying[3],
            keep: fma(-rate, decay, 1.0f32),
            step_size: rate / varying[1],
            root: varying[2].sqrt(),
            beta1,
            beta2,
            epsilon,
        }
    }
}

/// Weight and moments after one step, in the order of roundings of PyTorch 2's `torch/optim/adamw.py`, `_single_tensor_adamw`.
///
/// Where two products are added, a compiler fuses the one or the other, and not the same one in each kernel that this is part of. Each
/// fused operation is named here, so that none is left to choose and a weight's result has the same bits in every launch.
#[cube]
fn stepped<N: Size>(
    weight: Vector<f32, N>,
    gradient: Vector<f32, N>,
    first: Vector<f32, N>,
    second: Vector<f32, N>,
    rates: &Rates,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let scale = Vector::new(rates.scale);
    let slope = gradient * scale;
    let ahead = fma(gradient, scale, -first);
    let m = fma(Vector::new(1.0f32 - rates.beta1), ahead, first);
    let v = fma(
        Vector::new(1.0f32 - rates.beta2) * slope,
        slope,
        second * Vector::new(rates.beta2),
    );
    let change =
        Vector::new(rates.step_size) * m / (v.sqrt() / Vector::new(rates.root) + Vector::new(rates.epsilon));
    (fma(weight, Vector::new(rates.keep), -change), m, v)
}

/// Which vector of which weight a thread works on. Weights are passed by twice, to read and to write, and what is computed
/// between stands in the kernel once: compiled for each of sixteen weights it took three times as long.
#[derive(CubeType)]
struct Place {
    /// The first block that is beyond the weights looked at.
    begin: usize,
    /// The weight; a number that none has if the thread has nothing to do.
    weight: u32,
    /// Its vector.
    at: usize,
    /// Its decay.
    decay: f32,
}

#[cube]
impl Place {
    fn nowhere(decays: &Sequence<f32>) -> Self {
        Place {
            begin: 0usize.runtime(),
            weight: u32::MAX.runtime(),
            at: 0usize.runtime(),
            decay: *decays.index(0usize),
        }
    }

    /// Looks at weight `i`, of so many vectors, which follows those looked at before.
    fn look(&mut self, vectors: usize, #[comptime] i: u32) {
        let end = self.begin + vectors.div_ceil(comptime!(THREADS));
        let at = (CUBE_POS - self.begin) * comptime!(THREADS) + UNIT_POS as usize;
        if CUBE_POS >= self.begin && CUBE_POS < end && at < vectors {
            self.weight = i.runtime();
            self.at = at;
        }
        self.begin = end;
    }

    fn is_of(&self, #[comptime] i: u32) -> bool {
        self.weight == i
    }
}

/// What a step is made with, and of each weight its vectors and its decay.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct AdamWStep {
    /// Vectors of each weight.
    pub vectors: Sequence<usize>,
    /// Decay of each weight.
    pub decays: Sequence<f32>,
    /// Decay of the first moments.
    pub beta1: f32,
    /// Decay of the second moments.
    pub beta2: f32,
    /// Added to the root of the second moments.
    pub epsilon: f32,
}

/// One step. Each block works on one weight: the first blocks on the first, and so on. `copies` is empty unless `copied`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn adamw_kernel<G: Float, M: Float, C: Float, N: Size>(
    weights: &mut Sequence<Box<[Vector<f32, N>]>>,
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    firsts: &mut Sequence<Box<[Vector<M, N>]>>,
    seconds: &mut Sequence<Box<[Vector<M, N>]>>,
    copies: &mut Sequence<Box<[Vector<C, N>]>>,
    varying: &[f32],
    step: &AdamWStep,
    #[comptime] copied: bool,
) {
    let mut place = Place::nowhere(&step.decays);
    let mut weight = Vector::<f32, N>::empty();
    let mut gradient = Vector::<f32, N>::empty();
    let mut first = Vector::<f32, N>::empty();
    let mut second = Vector::<f32, N>::empty();
    #[unroll]
    for i in 0..weights.len() {
        place.look(*step.vectors.index(i), i as u32);
        if place.is_of(i as u32) {
            let at = place.at;
            place.decay = *step.decays.index(i);
            weight = weights.index(i)[at];
            gradient = Vector::cast_from(gradients.index(i)[at]);
            first = Vector::cast_from(firsts.index(i)[at]);
            second = Vector::cast_from(seconds.index(i)[at]);
        }
    }
    let is_taken = varying[3] >= 0.0f32;
    let rates = Rates::new(varying, place.decay, step.beta1, step.beta2, step.epsilon);
    let (result, m, v) = stepped::<N>(weight, gradient, first, second, &rates);
    #[unroll]
    for i in 0..weights.len() {
        if place.is_of(i as u32) && is_taken {
            let at = place.at;
            firsts.index_mut(i)[at] = Vector::cast_from(m);
            seconds.index_mut(i)[at] = Vector::cast_from(v);
            weights.index_mut(i)[at] = result;
            if comptime!(copied) {
                copies.index_mut(i)[at] = Vector::cast_from(result);
            }
        }
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
    /// What random rounding draws from; read for weights that are bf16 and nothing else.
    pub rounding: Rounding,
}

/// Where the numbers of random rounding stand among those of `flow_rng`: those of `Stream::new(seed, purpose).at(stream, step)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The seed.
    pub seed: u64,
    /// The purpose, as a number.
    pub purpose: u8,
    /// The step, below 2^24.
    pub step: u32,
}

/// A weight with what its step reads and writes, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct AdamWParam<'a> {
    /// Changed: f32, or bf16.
    pub weight: &'a Buffer,
    /// Of any type.
    pub gradient: &'a Buffer,
    /// First moment, f32 or bf16; changed.
    pub first: &'a Buffer,
    /// Second moment, of the type of the first; changed.
    pub second: &'a Buffer,
    /// What is there beside the weight.
    pub beside: MasterWeight<'a>,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
}

/// What is there beside a weight.
#[derive(Clone, Copy, Debug)]
pub enum MasterWeight<'a> {
    /// Nothing, of a weight in f32.
    Nothing,
    /// A copy in bf16, of a weight in f32: receives the new weight, rounded to nearest, to even where two are equally near.
    Copy(&'a Buffer),
    /// The low half of an f32 whose high half is the weight, in bf16 ([`SplitF32`](crate::split_f32::SplitF32)); changed.
    Low(&'a Buffer),
    /// Nothing, of a weight in bf16: the result is rounded at random.
    Stream {
        /// By the numbers of this stream.
        stream: u32,
        /// Which of these the first value takes, a multiple of four.
        first: usize,
    },
}

/// What weights of one launch have in common: types of gradients and moments, what is beside them, and how many values a
/// thread reads at once.
type Kind = (Element, Element, u8, usize);

impl AdamWParam<'_> {
    fn check(&self) -> Result<(), Refused> {
        let length = self.weight.length;
        let stored = match self.beside {
            MasterWeight::Nothing | MasterWeight::Copy(_) => Element::F32,
            MasterWeight::Low(_) | MasterWeight::Stream { .. } => Element::Bf16,
        };
        if let MasterWeight::Stream { first, .. } = self.beside
            && !first.is_multiple_of(4)
        {
            return Err(Refused::Size {
                name: "first",
                found: first,
                allowed: "multiples of 4".into(),
            });
        }
        self.weight.expect_of("weight", length, stored)?;
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
        if let Some(beside) = self.beside() {
            beside.expect_of("what is beside the weight", length, Element::Bf16)?;
        }
        Ok(())
    }

    fn beside(&self) -> Option<&Buffer> {
        match self.beside {
            MasterWeight::Copy(beside) | MasterWeight::Low(beside) => Some(beside),
            MasterWeight::Nothing | MasterWeight::Stream { .. } => None,
        }
    }

    fn stream(&self) -> u32 {
        match self.beside {
            MasterWeight::Stream { stream, .. } => stream,
            _ => 0,
        }
    }

    /// The block of four numbers of the stream in which the first value's is.
    fn first_block(&self) -> u32 {
        match self.beside {
            MasterWeight::Stream { first, .. } => (first / 4) as u32,
            _ => 0,
        }
    }

    fn vectors(&self) -> usize {
        self.weight.length / width(self.weight.length, Element::F32)
    }

    fn kind(&self) -> Kind {
        let (gradient, moments) = (self.gradient.element, self.first.element);
        let beside = match self.beside {
            MasterWeight::Nothing => 0,
            MasterWeight::Copy(_) => 1,
            MasterWeight::Low(_) => 2,
            MasterWeight::Stream { .. } => 3,
        };
        (gradient, moments, beside, width(self.weight.length, Element::F32))
    }
}

impl AdamW<'_> {
    /// One step of every weight, in as few launches as their types and the device's bindings allow. A weight's result does
    /// not depend on the others.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit; nothing was launched then.
    pub fn update(&self, client: &Client, all: &[AdamWParam<'_>]) -> Result<(), Refused> {
        let values = self.varying.length.max(4);
        self.varying.expect_of("varying", values, Element::F32)?;
        all.iter().try_for_each(AdamWParam::check)?;
        for group in groups(client, all, BUFFERS, AdamWParam::kind, |one| one.weight.length) {
            let (gradient, moments, ..) = group[0].kind();
            with_type!(gradient, G => match (moments, group[0].beside) {
                (Element::Bf16, MasterWeight::Copy(_)) => self.launch::<G, bf16, bf16>(client, &group),
                (Element::Bf16, MasterWeight::Nothing) => self.launch::<G, bf16, f32>(client, &group),
                (_, MasterWeight::Copy(_)) => self.launch::<G, f32, bf16>(client, &group),
                (_, MasterWeight::Nothing) => self.launch::<G, f32, f32>(client, &group),
                (Element::Bf16, _) => self.launch_narrow::<G, bf16>(client, &group),
                _ => self.launch_narrow::<G, f32>(client, &group),
            });
        }
        Ok(())
    }

    fn launch<G: Float, M: Float, C: Float>(&self, client: &Client, group: &[AdamWParam<'_>]) {
        let Shared { grid, width, address } = self.shared(client, group);
        let (beta1, beta2) = self.betas;
        // SAFETY: `update` checked all lengths.
        unsafe {
            adamw_kernel::launch_unchecked::<G, M, C>(
                client,
                grid,
                CubeDim::new_1d(THREADS as u32),
                address,
                width,
                group.iter().map(|one| one.weight.argument()).collect(),
                group.iter().map(|one| one.gradient.argument()).collect(),
                group.iter().map(|one| one.first.argument()).collect(),
                group.iter().map(|one| one.second.argument()).collect(),
                group
                    .iter()
                    .filter_map(|one| one.beside().map(Buffer::argument))
                    .collect(),
                self.varying.argument(),
                AdamWStepLaunch::new(
                    group.iter().map(AdamWParam::vectors).collect(),
                    group.iter().map(|one| one.weight_decay).collect(),
                    beta1,
                    beta2,
                    self.epsilon,
                ),
                matches!(group[0].beside, MasterWeight::Copy(_)),
            );
        }
    }

    fn launch_narrow<G: Float, M: Float>(&self, client: &Client, group: &[AdamWParam<'_>]) {
        let Shared { grid, width, address } = self.shared(client, group);
        let (beta1, beta2) = self.betas;
        let Rounding { seed, purpose, step } = self.rounding;
        // SAFETY: `update` checked all lengths.
        unsafe {
            adamw_narrow_kernel::launch_unchecked::<G, M>(
                client,
                grid,
                CubeDim::new_1d(THREADS as u32),
                address,
                width,
                group.iter().map(|one| one.weight.argument()).collect(),
                group.iter().map(|one| one.gradient.argument()).collect(),
                group.iter().map(|one| one.first.argument()).collect(),
                group.iter().map(|one| one.second.argument()).collect(),
                group
                    .iter()
                    .filter_map(|one| one.beside().map(Buffer::argument))
                    .collect(),
                self.varying.argument(),
                NarrowStepLaunch::new(
                    group.iter().map(AdamWParam::vectors).collect(),
                    group.iter().map(|one| one.weight_decay).collect(),
                    group.iter().map(AdamWParam::stream).collect(),
                    group.iter().map(AdamWParam::first_block).collect(),
                    beta1,
                    beta2,
                    self.epsilon,
                    seed as u32,
                    (seed >> 32) as u32,
                    (u32::from(purpose) << 24) | (step & 0xFF_FFFF),
                ),
                matches!(group[0].beside, MasterWeight::Low(_)),
            );
        }
    }

    fn shared(&self, client: &Client, group: &[AdamWParam<'_>]) -> Shared {
        let blocks = group.iter().map(|one| one.vectors().div_ceil(THREADS)).sum();
        let weights: Vec<&Buffer> = group.iter().map(|one| one.weight).collect();
        Shared {
            grid: grid(client, blocks),
            width: width(group[0].weight.length, Element::F32),
            address: address_of(&weights, self.varying),
        }
    }
}

/// What both launches are made with.
struct Shared {
    grid: CubeCount,
    width: usize,
    address: AddressType,
}
