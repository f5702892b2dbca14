//! Single values in registers: what CubeCL has no operation for.

use crate::wgmma::OperandType;
use cubecl::ir::dialect::vector::CompositeConstructOp;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;

/// Reads `value` into an immutable one.
///
/// `gpu_asm!` passes a `let mut` variable by its address without a word, so every operand goes through here.
#[cube]
pub fn read<T: CubePrimitive>(value: T) -> T {
    intrinsic!(|scope| value.read_value(scope).into())
}

/// The byte address of a block's shared memory, where `memory` begins.
#[cube]
pub fn shared_address<T: CubePrimitive>(memory: &[T]) -> u32 {
    // SAFETY: only the address is taken, of the block's own shared memory. Kernels read and write there by the sizes that it was made
    // with, so they stay within it.
    generic_to_shared::<T>(unsafe { memory.as_ptr_unchecked() })
}

/// `2^x`, to 2 units in the last place, subnormals flushed to zero (PTX `ex2.approx.ftz.f32`).
#[cube]
pub fn exp2_approximate(x: f32) -> f32 {
    let x = read::<f32>(x);
    let out: f32;
    gpu_asm!("ex2.approx.ftz.f32 {}, {};", out(_) out, in(_) x, options(pure, nomem));
    out
}

/// `log2(x)`, absolute error below 2^-22 outside of [0.5, 2] relative (PTX `lg2.approx.ftz.f32`).
#[cube]
pub fn log2_approximate(x: f32) -> f32 {
    let x = read::<f32>(x);
    let out: f32;
    gpu_asm!("lg2.approx.ftz.f32 {}, {};", out(_) out, in(_) x, options(pure, nomem));
    out
}

/// The larger of two, one instruction; a NaN loses.
#[cube]
pub fn maximum(a: f32, b: f32) -> f32 {
    let a = read::<f32>(a);
    let b = read::<f32>(b);
    let out: f32;
    gpu_asm!("max.f32 {}, {}, {};", out(_) out, in(_) a, in(_) b, options(pure, nomem));
    out
}

/// The smaller of two, one instruction; a NaN loses.
#[cube]
pub fn minimum(a: f32, b: f32) -> f32 {
    let a = read::<f32>(a);
    let b = read::<f32>(b);
    let out: f32;
    gpu_asm!("min.f32 {}, {}, {};", out(_) out, in(_) a, in(_) b, options(pure, nomem));
    out
}

/// `a · b + c`, rounded once.
#[cube]
pub fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let a = read::<f32>(a);
    let b = read::<f32>(b);
    let c = read::<f32>(c);
    let out: f32;
    gpu_asm!("fma.rn.f32 {}, {}, {}, {};", out(_) out, in(_) a, in(_) b, in(_) c, options(pure, nomem));
    out
}

/// Two f32 as bf16, round to nearest even, `low` in the low half.
#[cube]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let low = read::<f32>(low);
    let high = read::<f32>(high);
    let out: u32;
    gpu_asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(_) out, in(_) high, in(_) low, options(pure, nomem));
    out
}

/// Two f32 as f16, round to nearest even, `low` in the low half.
#[cube]
pub fn pack_f16(low: f32, high: f32) -> u32 {
    let low = read::<f32>(low);
    let high = read::<f32>(high);
    let out: u32;
    gpu_asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(_) out, in(_) high, in(_) low, options(pure, nomem));
    out
}

/// Two f32 as two values of `operand_type`, `low` in the low half.
#[cube]
pub fn pack(low: f32, high: f32, #[comptime] operand_type: OperandType) -> u32 {
    if comptime!(operand_type == OperandType::Bf16) {
        pack_bf16(low, high)
    } else {
        pack_f16(low, high)
    }
}

/// The value of `operand_type` in the low half.
#[cube]
pub fn unpack_low(pair: u32, #[comptime] operand_type: OperandType) -> f32 {
    if comptime!(operand_type == OperandType::Bf16) {
        f32::reinterpret(pair << 16u32)
    } else {
        let pair = read::<u32>(pair);
        let out: f32;
        gpu_asm!(
            "{{",
            ".reg .b16 low, high;",
            "mov.b32 {{low, high}}, {pair};",
            "cvt.f32.f16 {out}, low;",
            "}}",
            out = out(_) out, pair = in(_) pair, options(pure, nomem),
        );
        out
    }
}

/// The value of `operand_type` in the high half.
#[cube]
pub fn unpack_high(pair: u32, #[comptime] operand_type: OperandType) -> f32 {
    if comptime!(operand_type == OperandType::Bf16) {
        f32::reinterpret(pair & 0xFFFF_0000u32)
    } else {
        unpack_low(pair >> 16u32, operand_type)
    }
}

/// Stores 4 bytes at a byte address of shared memory.
#[cube]
pub fn store_shared(address: u32, value: u32) {
    let address = read::<u32>(address);
    let value = read::<u32>(value);
    gpu_asm!("st.shared.b32 [{address}], {value};", address = in(_) address, value = in(_) value);
}

/// Loads 16 bytes at a byte address of shared memory, a multiple of 16.
#[cube]
pub fn load_shared_16(address: u32) -> Vector<u32, Const<4>> {
    let address = read::<u32>(address);
    let out: Vector<u32, Const<4>>;
    gpu_asm!("ld.shared.v4.b32 {}, [{}];", out(_) out, in(_) address);
    out
}

/// Loads 4 bytes at a byte address of shared memory.
#[cube]
pub fn load_shared(address: u32) -> u32 {
    let address = read::<u32>(address);
    let out: u32;
    gpu_asm!("ld.shared.b32 {}, [{}];", out(_) out, in(_) address);
    out
}

/// `1 / x`, to 1 unit in the last place, subnormals flushed to zero (PTX `rcp.approx.ftz.f32`).
#[cube]
pub fn reciprocal_approximate(x: f32) -> f32 {
    let x = read::<f32>(x);
    let out: f32;
    gpu_asm!("rcp.approx.ftz.f32 {}, {};", out(_) out, in(_) x, options(pure, nomem));
    out
}

/// A vector of these values, in their order: as many as it has lanes.
///
/// In one go: a lane that is set by itself makes CubeCL write the whole vector anew, and NVRTC read as many lanes for each.
#[cube]
pub fn vector_of<P: Scalar, N: Size>(values: Sequence<P>) -> Vector<P, N> {
    intrinsic!(|scope| {
        let mut lanes = Vec::new();
        values.expand(scope, &mut |scope, value| lanes.push(value.read_value(scope)));
        let of = <Vector<P, N> as CubePrimitive>::__expand_as_type(scope);
        let vector = CompositeConstructOp::new(scope.ctx_mut(), of, lanes);
        scope.register_with_result(&vector).into()
    })
}
