//! `wgmma`, Hopper's asynchronous matrix product of a warpgroup (PTX ISA 9.7.15), by inline PTX.
//!
//! An accumulator is a `Vector<f32, N>` per thread. `N` is a power of two (CubeCL's vectors are), of which the first
//! `n / 2` registers are used: so any `n` that is a multiple of 8 can be had. Thread `t` of the warpgroup holds in
//! register `i` the element of row `16 (t / 32) + (t mod 32) / 4 + 8 (i / 2 mod 2)` and column
//! `8 (i / 4) + 2 (t mod 4) + i mod 2`.
//!
//! A product is *issued*; its accumulator may be touched only after [`wait`] was called with it. What stays in flight
//! must not be moved: ptxas says so (C7510 to C7515), and then waits after each instruction.

use crate::register::read;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use std::ops::Range;

/// Type of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl OperandType {
    /// For CubeCL.
    pub fn element(self) -> ElemType {
        match self {
            Self::Bf16 => half::bf16::elem_type_native(),
            Self::F16 => half::f16::elem_type_native(),
        }
    }

    fn ptx(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// How a product walks through shared memory. Offsets are in units of 16 bytes, as in descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Steps {
    /// Columns of the result, a multiple of 8, at most 256.
    pub n: usize,
    /// Registers of the accumulator's vector.
    pub padded: usize,
    /// Offset of A for each k16 step; empty if A is in registers.
    pub a: Vec<usize>,
    /// Offset of B for each k16 step.
    pub b: Vec<usize>,
    /// Whether B is MN-major (its rows along k).
    pub b_transposed: bool,
    /// Whether A is M-major (its rows along k).
    pub a_transposed: bool,
    /// Type of A and B.
    pub operand_type: OperandType,
    /// Whether A and B are e4m3 instead: steps of 32 summands, which are as many bytes; both K-major and in shared memory.
    pub e4m3: bool,
}

impl Steps {
    /// Text of the instructions. `zero`: the first one starts from zero. The first steps have A in `a_registers`, four each;
    /// the others in shared memory.
    fn text(&self, zero: bool, a_registers: Range<usize>) -> String {
        self.text_into("%", zero, a_registers)
    }

    /// As [`text`](Self::text), with the sums in the registers `{prefix}0` and so on.
    fn text_into(&self, prefix: &str, zero: bool, a_registers: Range<usize>) -> String {
        let result = (0..self.n / 2)
            .map(|i| format!("{prefix}{i}"))
            .collect::<Vec<_>>()
            .join(", ");
        let n = self.n;
        let (summands, operand_type) = match self.e4m3 {
            true => (32, "e4m3"),
            false => (16, self.operand_type.ptx()),
        };
        let instruction =
            format!("wgmma.mma_async.sync.aligned.m64n{n}k{summands}.f32.{operand_type}.{operand_type}");
        let (ta, tb) = (u8::from(self.a_transposed), u8::from(self.b_transposed));
        // Operands of 8 bits cannot be transposed, and the instruction does not ask.
        let transposed = match self.e4m3 {
            true => String::new(),
            false => format!(", {ta}, {tb}"),
        };
        let mut text = String::new();
        for (k, offset) in self.b.iter().enumerate() {
            let keep = if zero && k == 0 { "from_zero" } else { "add_up" };
            text += &format!("add.s64 b_at, b_from, {offset};\n");
            let a = a_registers.start + 4 * k;
            if a < a_registers.end {
                let a = (a..a + 4).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ");
                text += &format!("{instruction} {{{result}}}, {{{a}}}, b_at, {keep}, 1, 1, {tb};\n");
            } else {
                text += &format!("add.s64 a_at, a_from, {};\n", self.a[k]);
                text += &format!("{instruction} {{{result}}}, a_at, b_at, {keep}, 1, 1{transposed};\n");
            }
        }
        text
    }

    /// The registers from `first` on that hold A for `steps` steps.
    fn registers(first: usize, steps: usize) -> Range<usize> {
        first..first + 4 * steps
    }

    /// The output registers become the sums of the input registers from `padded` on and the registers `part`.
    fn promotions(&self) -> String {
        (0..self.n / 2)
            .map(|i| format!("add.rn.f32 %{i}, %{}, part{i};", self.padded + i))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Copies of the accumulator's input registers to its output registers; ptxas makes them one.
    fn moves(&self) -> String {
        moves(self.n / 2, self.padded)
    }
}

/// `mov %i, %{first + i}` for the first `count` registers.
fn moves(count: usize, first: usize) -> String {
    (0..count)
        .map(|i| format!("mov.b32 %{i}, %{};", first + i))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Descriptor of a matrix in shared memory with the 128-byte swizzle (PTX ISA 9.7.15.5.1.2.2), `address` in bytes.
///
/// K-major: `stride` 1024 (8 rows of 128 bytes), `leading` unused. MN-major: `stride` 1024, `leading` the bytes from one
/// panel of 64 columns to the next.
#[cube]
pub fn descriptor(address: u32, #[comptime] leading: u32, #[comptime] stride: u32) -> u64 {
    let low = ((address & 0x3FFFFu32) >> 4u32) | comptime!((leading >> 4) << 16);
    let high = comptime!((1u32 << 30) | (stride >> 4));
    (u64::cast_from(high) << 32u64) | u64::cast_from(low)
}

/// Issues `A Bᵀ` from zero, both in shared memory, as a group of its own.
#[cube]
pub fn issue_from_zero<N: Size>(a: u64, b: u64, #[comptime] steps: Steps) -> Vector<f32, N> {
    let body = comptime!(steps.text(true, 0..0));
    let a = read::<u64>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d}",
        ".reg .pred add_up, from_zero;",
        ".reg .b64 a_at, b_at, a_from, b_from;",
        "setp.ne.b32 add_up, 1, 0;",
        "setp.ne.b32 from_zero, 0, 0;",
        "mov.b64 a_from, {a};",
        "mov.b64 b_from, {b};",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "}}",
        d = out(_) out, a = in(_) a, b = in(_) b,
    );
    out
}

/// Issues `accumulator + A Bᵀ`, both in shared memory, as a group of its own.
#[cube]
pub fn issue<N: Size>(
    accumulator: Vector<f32, N>,
    a: u64,
    b: u64,
    #[comptime] steps: Steps,
) -> Vector<f32, N> {
    let moves = comptime!(steps.moves());
    let body = comptime!(steps.text(false, 0..0));
    let accumulator = read::<Vector<f32, N>>(accumulator);
    let a = read::<u64>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {c}",
        ".reg .pred add_up;",
        ".reg .b64 a_at, b_at, a_from, b_from;",
        "setp.ne.b32 add_up, 1, 0;",
        "mov.b64 a_from, {a};",
        "mov.b64 b_from, {b};",
        "{moves}",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "}}",
        d = out(_) out, c = in(_) accumulator, a = in(_) a, b = in(_) b,
    );
    out
}

/// `totals + A Bᵀ`, both in shared memory, with the product summed from zero in registers of its own and then added in f32: tensor
/// cores keep fewer bits of a sum of e4m3 than f32 has. All that was issued is over then.
#[cube]
pub fn add_promoted<N: Size>(
    totals: Vector<f32, N>,
    a: u64,
    b: u64,
    #[comptime] steps: Steps,
) -> Vector<f32, N> {
    let count = comptime!(steps.n / 2);
    let body = comptime!(steps.text_into("part", true, 0..0));
    let promotions = comptime!(steps.promotions());
    let totals = read::<Vector<f32, N>>(totals);
    let a = read::<u64>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {c}",
        ".reg .pred add_up, from_zero;",
        ".reg .b64 a_at, b_at, a_from, b_from;",
        ".reg .f32 part<{count}>;",
        "setp.ne.b32 add_up, 1, 0;",
        "setp.ne.b32 from_zero, 0, 0;",
        "mov.b64 a_from, {a};",
        "mov.b64 b_from, {b};",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "{promotions}",
        "}}",
        d = out(_) out, c = in(_) totals, a = in(_) a, b = in(_) b,
    );
    out
}

/// Issues `accumulator + A Bᵀ` with A in registers (4 for each k16 step, two values each) as a group of its own.
#[cube]
pub fn issue_registers<N: Size, A: Size>(
    accumulator: Vector<f32, N>,
    a: Vector<u32, A>,
    b: u64,
    #[comptime] steps: Steps,
) -> Vector<f32, N> {
    let moves = comptime!(steps.moves());
    let body = comptime!(steps.text(false, Steps::registers(2 * steps.padded, steps.b.len())));
    let accumulator = read::<Vector<f32, N>>(accumulator);
    let a = read::<Vector<u32, A>>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {c} {a}",
        ".reg .pred add_up;",
        ".reg .b64 b_at, b_from;",
        "setp.ne.b32 add_up, 1, 0;",
        "mov.b64 b_from, {b};",
        "{moves}",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "}}",
        d = out(_) out, c = in(_) accumulator, a = in(_) a, b = in(_) b,
    );
    out
}

/// As [`issue_registers`], from zero.
#[cube]
pub fn issue_registers_from_zero<N: Size, A: Size>(
    a: Vector<u32, A>,
    b: u64,
    #[comptime] steps: Steps,
) -> Vector<f32, N> {
    let body = comptime!(steps.text(true, Steps::registers(steps.padded, steps.b.len())));
    let a = read::<Vector<u32, A>>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {a}",
        ".reg .pred add_up, from_zero;",
        ".reg .b64 b_at, b_from;",
        "setp.ne.b32 add_up, 1, 0;",
        "setp.ne.b32 from_zero, 0, 0;",
        "mov.b64 b_from, {b};",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "}}",
        d = out(_) out, a = in(_) a, b = in(_) b,
    );
    out
}

/// As [`issue_from_zero`], with A's first `kept` steps in `registers`, four each, and the others in shared memory.
#[cube]
pub fn issue_kept_from_zero<N: Size, A: Size>(
    registers: Vector<u32, A>,
    a: u64,
    b: u64,
    #[comptime] steps: Steps,
    #[comptime] kept: usize,
) -> Vector<f32, N> {
    let body = comptime!(steps.text(true, Steps::registers(steps.padded, kept)));
    let registers = read::<Vector<u32, A>>(registers);
    let a = read::<u64>(a);
    let b = read::<u64>(b);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {registers}",
        ".reg .pred add_up, from_zero;",
        ".reg .b64 a_at, b_at, a_from, b_from;",
        "setp.ne.b32 add_up, 1, 0;",
        "setp.ne.b32 from_zero, 0, 0;",
        "mov.b64 a_from, {a};",
        "mov.b64 b_from, {b};",
        "wgmma.fence.sync.aligned;",
        "{body}",
        "wgmma.commit_group.sync.aligned;",
        "}}",
        d = out(_) out, registers = in(_) registers, a = in(_) a, b = in(_) b,
    );
    out
}

/// Waits until at most `pending` groups are in flight. `accumulator`, which one of the others made, goes through, so
/// that no use of it moves above the wait; `steps` are those it was issued with.
#[cube]
pub fn wait<N: Size>(
    accumulator: Vector<f32, N>,
    #[comptime] steps: Steps,
    #[comptime] pending: usize,
) -> Vector<f32, N> {
    let moves = comptime!(steps.moves());
    let accumulator = read::<Vector<f32, N>>(accumulator);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {c}",
        "wgmma.wait_group.sync.aligned {pending};",
        "{moves}",
        "}}",
        d = out(_) out, c = in(_) accumulator,
    );
    out
}

/// Waits until at most `pending` groups are in flight, touching no accumulator: what they read from shared memory may be
/// overwritten then. Accumulators still want their [`wait`].
#[cube]
pub fn wait_for_reads(#[comptime] pending: usize) {
    gpu_asm!("wgmma.wait_group.sync.aligned {pending};");
}
