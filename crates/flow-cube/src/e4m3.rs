//! FP8 e4m3 (Micikevicius et al. 2022, arXiv:2209.05433) in kernels: sign, 4 bits of exponent with bias 7, 3 of mantissa; no
//! infinities, up to 448. Codes and scales are those of `flow_core::low_precision`, bit by bit.

use crate::register::read;
use cubecl::prelude::*;
use cubecl_core::ir::features::Tma;

/// The value of a code, without its scale; exact in f32, f16 and bf16.
#[cube]
pub fn decode(code: u32) -> f32 {
    let bits = code & 0x7Fu32;
    // Below the smallest normal number, 2^-6, steps are 2^-9.
    let small = f32::cast_from(bits) * 0.001953125f32;
    // The exponent moved from bias 7 to 127, over three bits of mantissa: (127 - 7) · 8. The last code is NaN.
    let moved = select(bits == 0x7Fu32, 0x7FC0_0000u32, (bits + 960u32) << 20u32);
    let magnitude = select(bits < 8u32, small, f32::reinterpret(moved));
    select(code >= 0x80u32, -magnitude, magnitude)
}

/// The code nearest to `value`, of two equally near ones the even one; beyond the largest code that. NaN stays NaN.
#[cube]
pub fn encode(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7FFF_FFFFu32;
    // At most 448.
    let clamped = min(magnitude, 0x43E0_0000u32);
    let rounded = clamped + 0x0007_FFFFu32 + ((clamped >> 20u32) & 1u32);
    let normal = (rounded >> 20u32) - 960u32;
    // A unit in the last place of 2^14 is 2^-9, a step of the numbers below 2^-6.
    let steps = u32::reinterpret(f32::reinterpret(clamped) + 16_384.0f32) - 0x4680_0000u32;
    let code = select(clamped < 0x3C80_0000u32, steps, normal);
    let signed = code | ((bits >> 24u32) & 0x80u32);
    select(magnitude > 0x7F80_0000u32, 0x7Fu32, signed)
}

/// The codes of four values, the first in the lowest bits. `native`: by the instruction of compute capability 8.9 and later (PTX ISA
/// 9.7.9.22, `cvt.e4m3x2`), which gives the same codes.
#[cube]
pub fn encode_four(value_0: f32, value_1: f32, value_2: f32, value_3: f32, #[comptime] native: bool) -> u32 {
    if comptime!(native) {
        let value_0 = read::<f32>(value_0);
        let value_1 = read::<f32>(value_1);
        let value_2 = read::<f32>(value_2);
        let value_3 = read::<f32>(value_3);
        let out: u32;
        gpu_asm!(
            "{{",
            ".reg .b16 low, high;",
            "cvt.rn.satfinite.e4m3x2.f32 low, {b}, {a};",
            "cvt.rn.satfinite.e4m3x2.f32 high, {d}, {c};",
            "mov.b32 {out}, {{low, high}};",
            "}}",
            out = out(_) out, a = in(_) value_0, b = in(_) value_1, c = in(_) value_2, d = in(_) value_3,
            options(pure, nomem),
        );
        out
    } else {
        encode(value_0) | (encode(value_1) << 8u32) | (encode(value_2) << 16u32) | (encode(value_3) << 24u32)
    }
}

/// Whether [`encode_four`] may be `native` on `client`'s device: it may where there is tensor memory access, which came after the
/// instruction.
pub fn is_native(client: &Client) -> bool {
    client.properties().features.tma.contains(Tma::Base)
}

/// The magnitude of a value as bits, which are ordered as magnitudes are; of NaN, 0.
#[cube]
pub fn magnitude_bits(value: f32) -> u32 {
    let bits = u32::reinterpret(value) & 0x7FFF_FFFFu32;
    select(bits > 0x7F80_0000u32, 0u32, bits)
}

/// The scale of values of which `largest` are the [bits of the largest magnitude](magnitude_bits): that magnitude / 448, rounded to a
/// bf16, at least 2^-116 and finite.
#[cube]
pub fn scale_of(largest: u32) -> f32 {
    let quotient = u32::reinterpret(f32::reinterpret(largest) / 448.0f32);
    let rounded = (quotient + 0x7FFFu32 + ((quotient >> 16u32) & 1u32)) & 0xFFFF_0000u32;
    f32::reinterpret(min(max(rounded, 0x0580_0000u32), 0x7F7F_0000u32))
}
