//! What an optimizer step needs: the gradient's norm, accumulation, AdamW and moving averages.

use super::operand::{Operand, bits_mut, dense_mut, expect_launched, update};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use flow_core::rng::Purpose;
use flow_core::tensors::stacked;
use flow_core::{
    AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, MasterWeight, RawTensor, SplitF32, Squares,
};
use flow_kernels_cube::adamw::{AdamW, AdamWParam as Updating, MasterWeight as Is, Rounding as Drawn};
use flow_kernels_cube::cast::cast;
use flow_kernels_cube::optimizer::{self, Factors};
use flow_kernels_cube::split_f32::{self, SplitF32 as InSplitF32};
use flow_kernels_cube::{Buffer, Element};

/// Sums of squares: pieces in f32, their sums in f64 on the host. Waits for the device once.
pub(super) fn sums_of_squares(tensors: &[&RawTensor]) -> Vec<f64> {
    let tensors: Vec<Operand> = tensors.iter().map(|tensor| Operand::read(tensor)).collect();
    let Some(first) = tensors.first() else {
        return Vec::new();
    };
    let buffers: Vec<Buffer> = tensors.iter().map(Operand::buffer).collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let sums = optimizer::sums_of_squares(first.client(), &buffers);
    sums.expect("the device that holds the gradients answers")
}

/// The factors of a step, computed on the device.
pub(super) fn adamw_scalars(gradients: &[&RawTensor], factors: &AdamWFactors) -> Option<AdamWScalars> {
    let tensors: Vec<Operand> = gradients.iter().map(|tensor| Operand::read(tensor)).collect();
    let first = tensors.first()?;
    let buffers: Vec<Buffer> = tensors.iter().map(Operand::buffer).collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let varying = first.empty(&[5], Element::F32);
    let launched = optimizer::step_values(first.client(), &buffers, &in_f32(factors), &varying.buffer());
    expect_launched("step_values", launched);
    Some(AdamWScalars {
        scalars: varying.into_plain(),
        norm: None,
    })
}

fn in_f32(factors: &AdamWFactors) -> Factors {
    Factors {
        learning_rate: factors.learning_rate as f32,
        corrections: factors.corrections.map(|correction| correction as f32),
        max_norm: factors.max_norm as f32,
        small: AdamWFactors::SMALL as f32,
        units: factors.units.max(1) as f32,
    }
}

/// Sums of squares in f32, of a tensor of `length` values or of some of its pieces.
pub(super) fn squares(gradient: &RawTensor, length: usize) -> Squares {
    let gradient = Operand::read(gradient);
    let buffer = gradient.buffer();
    let pieces = gradient.empty(&[optimizer::pieces(&buffer)], Element::F32);
    let launched = optimizer::squares_of_pieces(gradient.client(), &buffer, length, &pieces.buffer());
    expect_launched("squares", launched);
    Squares::Device(Box::new(pieces.into_plain()))
}

/// The factors of a step, computed on the device.
pub(super) fn adamw_scalars_of(all: &[Squares], factors: &AdamWFactors) -> Option<AdamWScalars> {
    let pieces = all.iter().map(|squares| match squares {
        Squares::Device(pieces) => (**pieces).clone(),
        Squares::Host(_) => panic!("these kernels leave squares on their device"),
    });
    let pieces: Vec<RawTensor> = pieces.collect();
    if pieces.is_empty() {
        return None;
    }
    let pieces = Operand::read(&stacked(pieces));
    let varying = pieces.empty(&[5], Element::F32);
    let launched = optimizer::step_values_of_pieces(
        pieces.client(),
        &pieces.buffer(),
        &in_f32(factors),
        &varying.buffer(),
    );
    expect_launched("step_values", launched);
    Some(AdamWScalars {
        scalars: varying.into_plain(),
        norm: None,
    })
}

/// `accumulated += gradient`, in f32.
pub(super) fn accumulate(accumulated: &mut RawTensor, gradient: &RawTensor) {
    let gradient = Operand::read(gradient);
    update(accumulated, &[Element::F32], |client, accumulated| {
        expect_launched(
            "accumulate",
            optimizer::accumulate(client, accumulated, &gradient.buffer()),
        );
    });
}

/// One AdamW step, computed in f32, of every weight; moments may be stored as bf16. What is beside a weight is written in the same pass.
pub(super) fn adamw_all(weights: Vec<AdamWParam<'_>>, step: &AdamWStep) {
    let varying = Operand::read_as(&step.scalars, Element::F32);
    let step_buffer = varying.buffer();
    let moments = [Element::F32, Element::Bf16];
    let mut copied_after = Vec::new();
    let mut all = Vec::new();
    for of in weights {
        let narrow = matches!(
            of.master,
            MasterWeight::SplitF32(_) | MasterWeight::StochasticRounding { .. }
        );
        let stored = if narrow { Element::Bf16 } else { Element::F32 };
        let mut prepared = Prepared {
            weight: dense_mut(of.weight, &[stored]),
            gradient: Operand::read(of.gradient),
            first: dense_mut(of.first, &moments),
            second: dense_mut(of.second, &moments),
            beside: Held::Nothing,
        };
        match of.master {
            MasterWeight::F32WithCopy(copy) if copy.dtype() == DType::BF16 => {
                prepared.beside = Held::Copy(dense_mut(copy, &[Element::Bf16]));
            }
            MasterWeight::F32WithCopy(copy) => copied_after.push((copy, of.weight)),
            MasterWeight::SplitF32(lower) => prepared.beside = Held::Lower(bits_mut(lower)),
            MasterWeight::StochasticRounding { stream, first } => {
                prepared.beside = Held::Stream { stream, first };
            }
            MasterWeight::F32 => {}
        }
        all.push(prepared);
    }
    let gradients: Vec<Buffer> = all.iter().map(|one| one.gradient.buffer()).collect();
    let updated: Vec<Updating<'_>> = all
        .iter()
        .zip(&gradients)
        .map(|(one, gradient)| Updating {
            weight: &one.weight,
            gradient,
            first: &one.first,
            second: &one.second,
            beside: one.beside.given(),
            weight_decay: step.weight_decay,
        })
        .collect();
    let step = AdamW {
        betas: step.betas,
        epsilon: step.epsilon,
        varying: &step_buffer,
        rounding: Drawn {
            seed: step.rounding.seed,
            purpose: Purpose::Rounding as u8,
            step: step.rounding.step,
        },
    };
    expect_launched("adamw", step.update(varying.client(), &updated));
    let copied_after = copied_after.into_iter();
    copy_all(copied_after.map(|(copy, weight)| (copy, &*weight)).collect());
}

/// Writes the values beside them to copies, in their types.
pub(super) fn copy_all(copies: Vec<(&mut RawTensor, &RawTensor)>) {
    for (copy, of) in copies {
        let of = Operand::read(of);
        // Whatever float type the copy has, it keeps.
        let copy = dense_mut(copy, &[Element::F32, Element::F16, Element::Bf16]);
        expect_launched("copy", cast(of.client(), &of.buffer(), &copy, 1.0, true));
    }
}

/// The buffers of a weight, all of which may be written.
struct Prepared {
    weight: Buffer,
    gradient: Operand,
    first: Buffer,
    second: Buffer,
    beside: Held,
}

/// What is beside a weight, held for the launch.
enum Held {
    Nothing,
    Copy(Buffer),
    Lower(Buffer),
    Stream { stream: u32, first: usize },
}

impl Held {
    fn given(&self) -> Is<'_> {
        match self {
            Self::Nothing => Is::Nothing,
            Self::Copy(copy) => Is::Copy(copy),
            Self::Lower(lower) => Is::Low(lower),
            Self::Stream { stream, first } => Is::Stream {
                stream: *stream,
                first: *first,
            },
        }
    }
}

/// See [`flow_core::Kernels::split`].
pub(super) fn split(value: &RawTensor) -> SplitF32 {
    let value = Operand::read_as(value, Element::F32);
    let [upper, lower] = [(); 2].map(|()| value.empty(&value.shape(), Element::Bf16));
    let halves = InSplitF32 {
        high: &upper.buffer(),
        low: &lower.buffer(),
    };
    expect_launched("split", halves.split(value.client(), &value.buffer()));
    SplitF32 {
        upper: upper.into_plain(),
        lower: lower.into_plain(),
    }
}

/// See [`flow_core::Kernels::join`].
pub(super) fn join(all: &[SplitF32]) -> Vec<RawTensor> {
    let read = |of: &SplitF32| {
        let (upper, lower) = (Operand::read(&of.upper), Operand::read(&of.lower));
        let value = upper.empty(&upper.shape(), Element::F32);
        (upper, lower, value)
    };
    let all: Vec<(Operand, Operand, Operand)> = all.iter().map(read).collect();
    let buffers: Vec<[Buffer; 3]> = (all.iter())
        .map(|(upper, lower, value)| [upper.buffer(), lower.buffer(), value.buffer()])
        .collect();
    let halves: Vec<(InSplitF32<'_>, &Buffer)> = (buffers.iter())
        .map(|[upper, lower, value]| {
            (
                InSplitF32 {
                    high: upper,
                    low: lower,
                },
                value,
            )
        })
        .collect();
    if let Some((first, ..)) = all.first() {
        expect_launched("join", split_f32::join(first.client(), &halves));
    }
    all.into_iter().map(|(.., value)| value.into_plain()).collect()
}

/// `average = decay · average + (1 - decay) · value` of each pair, in f32.
pub(super) fn average_all(averages: Vec<(&mut RawTensor, &RawTensor)>, decay: &RawTensor) {
    let decay = Operand::read_as(decay, Element::F32);
    let pairs = averages.into_iter().map(|(average, value)| {
        let average = dense_mut(average, &[Element::F32]);
        (average, Operand::read(value))
    });
    let pairs: Vec<(Buffer, Operand)> = pairs.collect();
    let pairs: Vec<(&Buffer, Buffer)> = pairs
        .iter()
        .map(|(average, value)| (average, value.buffer()))
        .collect();
    let pairs: Vec<(&Buffer, &Buffer)> = pairs.iter().map(|(average, value)| (*average, value)).collect();
    expect_launched(
        "average",
        optimizer::average(decay.client(), &pairs, &decay.buffer()),
    );
}
