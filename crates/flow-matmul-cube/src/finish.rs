//! From sums to the result: bias, activation, gate and residual, derivative, accumulation; for the kernels for tensor cores.

use crate::Element;
use crate::call::{Activation, Epilogue, Matmul};
use cubecl::prelude::*;
use flow_cube::activation::{Arithmetic, activate, derivative};
use flow_cube::register::{pack, unpack_high, unpack_low};
use flow_cube::wgmma::Factor;

/// What becomes of sums, as kernels are compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Finish {
    /// Whether there is a bias.
    pub bias: bool,
    /// The epilogue; `tokens` is not looked at.
    pub epilogue: Epilogue,
    /// Type of the result.
    pub output: Element,
    /// Type of everything else.
    pub factor: Factor,
}

impl Finish {
    /// Of a call. Sums of parts (`in_parts`) are stored as they are.
    pub fn new(call: &Matmul, factor: Factor, in_parts: bool) -> Self {
        match in_parts {
            true => Self {
                bias: false,
                epilogue: Epilogue::Store,
                output: Element::F32,
                factor,
            },
            false => Self {
                bias: call.bias,
                epilogue: call.epilogue.kind(),
                output: call.output,
                factor,
            },
        }
    }

    /// Columns of 128 bytes.
    pub fn piece_columns(&self) -> usize {
        128 / self.output.bytes()
    }

    /// Whether a matrix of the result's type is read: `other`, or the result itself.
    pub fn reads(&self) -> bool {
        self.epilogue.reads_other() || self.epilogue == Epilogue::Accumulate
    }

    /// Whether the sums are written beside the result.
    pub fn keeps_sum(&self) -> bool {
        self.epilogue.writes_other()
    }

    /// Whether sums are rounded before the epilogue takes them.
    pub fn rounds(&self) -> bool {
        !self.wide() && !matches!(self.epilogue, Epilogue::Store | Epilogue::Accumulate)
    }

    /// Whether there is a gate.
    pub fn gated(&self) -> bool {
        matches!(self.epilogue, Epilogue::GateAndAdd { .. })
    }

    /// Whether the result is f32.
    pub fn wide(&self) -> bool {
        self.output == Element::F32
    }
}

/// Results of two neighbouring sums, packed; `other` is the pair that the epilogue reads.
#[cube]
pub(crate) fn finished_pair(
    low: f32,
    high: f32,
    other: u32,
    gate_low: f32,
    gate_high: f32,
    #[comptime] finish: Finish,
) -> u32 {
    let factor = comptime!(finish.factor);
    let mut low = low;
    let mut high = high;
    if comptime!(finish.rounds()) {
        let rounded = pack(low, high, factor);
        low = unpack_low(rounded, factor);
        high = unpack_high(rounded, factor);
    }
    pack(
        finished(low, unpack_low(other, factor), gate_low, finish),
        finished(high, unpack_high(other, factor), gate_high, finish),
        factor,
    )
}

/// The result of a sum. `other` is what the epilogue reads, `gate` the gate's number.
#[cube]
pub(crate) fn finished(sum: f32, other: f32, gate: f32, #[comptime] finish: Finish) -> f32 {
    let (activation, slope) = comptime!(finish.epilogue.functions());
    if comptime!(activation.is_some()) {
        activate(
            sum,
            comptime!(activation.unwrap_or(Activation::Silu)),
            Arithmetic::Approximate,
        )
    } else if comptime!(slope.is_some()) {
        sum * derivative(
            other,
            comptime!(slope.unwrap_or(Activation::Silu)),
            Arithmetic::Approximate,
        )
    } else if comptime!(finish.gated()) {
        other + gate * sum
    } else if comptime!(finish.reads()) {
        other + sum
    } else {
        sum
    }
}

/// Two neighbouring numbers of a row of pairs; zeros where there are none.
#[cube]
pub(crate) fn pair_of(row: &[u32], at: u32, exists: bool, #[comptime] factor: Factor) -> (f32, f32) {
    let pair = select(exists, row[select(exists, at, 0u32) as usize], 0u32);
    (unpack_low(pair, factor), unpack_high(pair, factor))
}
