//! What PTX instructions without other effects make of their operands, on the host; see [`ptx_interpreter`](crate::ptx_interpreter).

use half::{bf16, f16};
use std::cmp::Ordering;

/// Rounded to f32, subnormals to zero.
fn flushed(value: f64) -> f32 {
    let value = value as f32;
    if value.is_subnormal() { 0.0 } else { value }
}

/// What an instruction without other effects makes of its operands.
pub(crate) fn computed(name: &str, from: &[u64]) -> Option<u64> {
    let word = |at: usize| from[at] as u32;
    let single = |at: usize| f32::from_bits(from[at] as u32);
    let bits = |value: f32| u64::from(value.to_bits());
    let wide = |at: usize| f64::from_bits(from[at]);
    let value = match (name, from.len()) {
        (
            "mov.u16" | "mov.u32" | "mov.u64" | "mov.b32" | "mov.b64" | "mov.f32" | "mov.f64"
            | "cvta.to.global.u64",
            1,
        ) => from[0],
        ("cvt.u32.u64", 1) => word(0).into(),
        ("cvt.u16.u32", 1) => (word(0) as u16).into(),
        // All lanes of a warp are together wherever they ask.
        ("activemask.b32", 0) => u32::MAX.into(),
        ("add.s32", 2) => word(0).wrapping_add(word(1)).into(),
        ("sub.s32", 2) => word(0).wrapping_sub(word(1)).into(),
        ("add.s64", 2) => from[0].wrapping_add(from[1]),
        ("mul.lo.s32", 2) => word(0).wrapping_mul(word(1)).into(),
        ("mad.lo.s32", 3) => word(0).wrapping_mul(word(1)).wrapping_add(word(2)).into(),
        ("mul.hi.u32", 2) => (u64::from(word(0)) * u64::from(word(1))) >> 32,
        ("mul.wide.u32", 2) => u64::from(word(0)) * u64::from(word(1)),
        ("div.u32", 2) => word(0).checked_div(word(1))?.into(),
        ("rem.u32", 2) => word(0).checked_rem(word(1))?.into(),
        ("and.b16" | "and.b32", 2) => (word(0) & word(1)).into(),
        ("or.b32", 2) => (word(0) | word(1)).into(),
        ("xor.b32", 2) => (word(0) ^ word(1)).into(),
        // A predicate that is true is written as -1.
        ("mov.pred", 1) => u64::from(from[0] != 0),
        ("not.pred", 1) => from[0] ^ 1,
        ("and.pred", 2) => from[0] & from[1],
        ("or.pred", 2) => from[0] | from[1],
        ("shl.b32", 2) => word(0).checked_shl(word(1)).unwrap_or(0).into(),
        ("shr.u32", 2) => word(0).checked_shr(word(1)).unwrap_or(0).into(),
        ("selp.u16" | "selp.b32" | "selp.u32" | "selp.s32" | "selp.f64" | "selp.f32" | "selp.b64", 3) => {
            match from[2] {
                0 => from[1],
                _ => from[0],
            }
        }
        ("add.f32", 2) => bits(single(0) + single(1)),
        ("sub.f32", 2) => bits(single(0) - single(1)),
        ("mul.f32", 2) => bits(single(0) * single(1)),
        ("fma.rn.f32", 3) => bits(single(0).mul_add(single(1), single(2))),
        ("neg.f32", 1) => bits(-single(0)),
        ("max.f32", 2) => bits(single(0).max(single(1))),
        ("min.f32", 2) => bits(single(0).min(single(1))),
        ("ex2.approx.ftz.f32", 1) => bits(flushed(f64::from(single(0)).exp2())),
        ("lg2.approx.ftz.f32", 1) => bits(flushed(f64::from(single(0)).log2())),
        ("rcp.approx.ftz.f32", 1) => bits(flushed(1.0 / f64::from(single(0)))),
        ("cvt.rn.bf16x2.f32", 2) => {
            let [high, low] = [0, 1].map(|at| u32::from(bf16::from_f32(single(at)).to_bits()));
            (high << 16 | low).into()
        }
        ("cvt.rn.f16x2.f32", 2) => {
            let [high, low] = [0, 1].map(|at| u32::from(f16::from_f32(single(at)).to_bits()));
            (high << 16 | low).into()
        }
        ("cvt.f32.f16", 1) => bits(f16::from_bits(from[0] as u16).to_f32()),
        ("add.rn.f64", 2) => (wide(0) + wide(1)).to_bits(),
        ("sub.rn.f64", 2) => (wide(0) - wide(1)).to_bits(),
        ("mul.rn.f64", 2) => (wide(0) * wide(1)).to_bits(),
        ("div.rn.f64", 2) => (wide(0) / wide(1)).to_bits(),
        ("sqrt.rn.f64", 1) => wide(0).sqrt().to_bits(),
        ("fma.rn.f64", 3) => wide(0).mul_add(wide(1), wide(2)).to_bits(),
        ("cvt.rn.f64.u32", 1) => f64::from(word(0)).to_bits(),
        ("cvt.rn.f32.f64", 1) => (wide(0) as f32).to_bits().into(),
        (compare, 2) => {
            let (compare, of) = compare.strip_prefix("setp.")?.split_once('.')?;
            let order = match of {
                "u32" | "b32" => Some(word(0).cmp(&word(1))),
                "s32" => Some((word(0) as i32).cmp(&(word(1) as i32))),
                "s16" => Some((word(0) as i16).cmp(&(word(1) as i16))),
                "f32" => single(0).partial_cmp(&single(1)),
                _ => return None,
            };
            // What is no number is in no order.
            let holds = match compare {
                "eq" => order.is_some_and(Ordering::is_eq),
                "ne" => order.is_some_and(Ordering::is_ne),
                "lt" => order.is_some_and(Ordering::is_lt),
                "le" => order.is_some_and(Ordering::is_le),
                "gt" => order.is_some_and(Ordering::is_gt),
                "ge" => order.is_some_and(Ordering::is_ge),
                _ => return None,
            };
            holds.into()
        }
        _ => return None,
    };
    Some(value)
}
