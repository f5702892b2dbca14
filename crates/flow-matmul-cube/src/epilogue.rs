//! The fused epilogue of the tensor-core kernels: bias, activation, gate and residual, derivative, accumulation.

use crate::Element;
use crate::problem::{Activation, Epilogue, Matmul};
use cubecl::prelude::*;
use flow_cube::activation::{Arithmetic, activate, derivative};
use flow_cube::register::{pack, unpack_high, unpack_low};
use flow_cube::wgmma::OperandType;

/// An epilogue as kernels are compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompiledEpilogue {
    /// Whether there is a bias.
    pub bias: bool,
    /// The epilogue; `tokens` is not looked at.
    pub kind: Epilogue,
    /// Type of the result.
    pub output: Element,
    /// Type of everything else.
    pub operand_type: OperandType,
}

impl CompiledEpilogue {
    /// Of a call. Split-K sums (`splits_k`) are stored as they are.
    pub fn new(call: &Matmul, operand_type: OperandType, splits_k: bool) -> Self {
        match splits_k {
            true => Self {
                bias: false,
                kind: Epilogue::Store,
                output: Element::F32,
                operand_type,
            },
            false => Self {
                bias: call.bias,
                kind: call.epilogue.kind(),
                output: call.output,
                operand_type,
            },
        }
    }

    /// Columns of 128 bytes.
    pub fn subtile_columns(&self) -> usize {
        128 / self.output.bytes()
    }

    /// Whether a matrix of the result's type is read: `other`, or the result itself.
    pub fn reads(&self) -> bool {
        self.kind.reads_other() || self.kind == Epilogue::Accumulate
    }

    /// Whether the sums are written beside the result.
    pub fn keeps_sum(&self) -> bool {
        self.kind.writes_other()
    }

    /// Whether sums are rounded before the epilogue takes them.
    pub fn rounds(&self) -> bool {
        !self.wide() && !matches!(self.kind, Epilogue::Store | Epilogue::Accumulate)
    }

    /// Whether there is a gate.
    pub fn gated(&self) -> bool {
        matches!(self.kind, Epilogue::GateAndAdd { .. })
    }

    /// Whether the result is f32.
    pub fn wide(&self) -> bool {
        self.output == Element::F32
    }
}

/// A sum of codes times the scales of its row and its column, rounded.
///
/// The second product is a fused multiply-add with zero: a plain one, to which a bias is added, becomes a fused multiply-add in some kernels
/// and not in others, so a sum's bits would depend on tiles, thus on how many rows there are, and on whether sums are kept.
#[cube]
pub(crate) fn scaled(sum: f32, row_scale: f32, column_scale: f32) -> f32 {
    fma(sum * row_scale, column_scale, 0.0f32.runtime())
}

/// Results of two neighbouring sums, packed; `other` is the pair that the epilogue reads.
#[cube]
pub(crate) fn apply_epilogue_pair(
    low: f32,
    high: f32,
    other: u32,
    gate_low: f32,
    gate_high: f32,
    #[comptime] epilogue: CompiledEpilogue,
) -> u32 {
    let operand_type = comptime!(epilogue.operand_type);
    let mut low = low;
    let mut high = high;
    if comptime!(epilogue.rounds()) {
        let rounded = pack(low, high, operand_type);
        low = unpack_low(rounded, operand_type);
        high = unpack_high(rounded, operand_type);
    }
    pack(
        apply_epilogue(low, unpack_low(other, operand_type), gate_low, epilogue),
        apply_epilogue(high, unpack_high(other, operand_type), gate_high, epilogue),
        operand_type,
    )
}

/// The result of a sum. `other` is what the epilogue reads, `gate` the gate's number.
#[cube]
pub(crate) fn apply_epilogue(sum: f32, other: f32, gate: f32, #[comptime] epilogue: CompiledEpilogue) -> f32 {
    let (activation, slope) = comptime!(epilogue.kind.functions());
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
    } else if comptime!(epilogue.gated()) {
        other + gate * sum
    } else if comptime!(epilogue.reads()) {
        other + sum
    } else {
        sum
    }
}

/// Two neighbouring numbers of a row of pairs; zeros where there are none.
#[cube]
pub(crate) fn pair_of(
    row: &[u32],
    at: u32,
    exists: bool,
    #[comptime] operand_type: OperandType,
) -> (f32, f32) {
    let pair = select(exists, row[select(exists, at, 0u32) as usize], 0u32);
    (unpack_low(pair, operand_type), unpack_high(pair, operand_type))
}
