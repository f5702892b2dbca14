//! Arithmetic in f64, each operation rounded by itself, as IEEE 754 says.
//!
//! A compiler of CUDA makes one fused operation of a product and a sum wherever it sees them. Written as the instruction itself
//! each is rounded, so that results have the bits that `libm` has on a processor. MasterWeight each instruction stands the same in
//! Rust, which fuses nothing: what is written with these can be run, and tested, on the host.

use cubecl::prelude::*;

/// An operation: on the host, and as NVIDIA's instruction.
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident($($operand:ident: $type:ty),+) -> $result:ty = $host:expr, $instruction:literal) => {
        $(#[$doc])*
        pub(super) fn $name($($operand: $type),+) -> $result {
            $host
        }

        pub(super) mod $name {
            use super::*;
            use flow_cube::register::read;

            #[cube]
            fn instruction($($operand: $type),+) -> $result {
                $(let $operand = read::<$type>($operand);)+
                let out: $result;
                gpu_asm!($instruction, out(_) out, $(in(_) $operand),+, options(pure, nomem));
                out
            }

            pub(in super::super) use instruction::expand;
        }
    };
}

operation!(add(a: f64, b: f64) -> f64 = a + b, "add.rn.f64 {}, {}, {};");
operation!(subtract(a: f64, b: f64) -> f64 = a - b, "sub.rn.f64 {}, {}, {};");
operation!(multiply(a: f64, b: f64) -> f64 = a * b, "mul.rn.f64 {}, {}, {};");
operation!(divide(a: f64, b: f64) -> f64 = a / b, "div.rn.f64 {}, {}, {};");
operation!(root(a: f64) -> f64 = a.sqrt(), "sqrt.rn.f64 {}, {};");
operation!(
    /// An integer's value.
    of_integer(a: u32) -> f64 = f64::from(a),
    "cvt.rn.f64.u32 {}, {};"
);
operation!(
    /// The nearest f32.
    narrow(a: f64) -> f32 = a as f32,
    "cvt.rn.f32.f64 {}, {};"
);
operation!(
    /// Upper 32 bits.
    upper(a: f64) -> u32 = (a.to_bits() >> 32) as u32,
    "{{ .reg .b32 lower; mov.b64 {{lower, {}}}, {}; }}"
);
operation!(
    /// Lower 32 bits.
    lower(a: f64) -> u32 = a.to_bits() as u32,
    "{{ .reg .b32 upper; mov.b64 {{{}, upper}}, {}; }}"
);
operation!(
    /// Of its bits.
    of_bits(lower: u32, upper: u32) -> f64 = f64::from_bits(u64::from(upper) << 32 | u64::from(lower)),
    "mov.b64 {}, {{{}, {}}};"
);
