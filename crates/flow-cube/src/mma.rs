//! `mma.sync`, the matrix product of a warp (PTX ISA 9.7.14.5), on tiles in shared memory, by inline PTX; from compute
//! capability 8.0 on.
//!
//! A tile is a row of panels, each of some rows of 64 values of 16 bits, with the 128-byte swizzle: the eight chunks of
//! 16 bytes of row `r` lie at `chunk xor r mod 8`, so that `ldmatrix` finds eight rows of a chunk in different banks. Tiles
//! begin at multiples of 1024 bytes.
//!
//! An accumulator is a `Vector<f32, N>` per thread with `N` a power of two, of which the first `n / 2` registers are used.
//! Lane `t` of the warp holds in register `i` the element of row `t / 4 + 8 (i / 2 mod 2)` and column
//! `8 (i / 4) + 2 (t mod 4) + i mod 2`: what warp 0 of [`wgmma`](crate::wgmma)'s accumulator holds.

use crate::register::read;
use crate::wgmma::OperandType;
use cubecl::prelude::*;

/// Where the left operand, 16 rows, comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// A tile whose panels have this many rows, summed over channels.
    Tile {
        /// Rows of a panel.
        rows: usize,
    },
    /// Registers, four for each 16 summands.
    Registers,
}

/// A product of 16 rows with a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Columns of the result. A multiple of 16 if the right operand's rows become columns, else of 8.
    pub n: usize,
    /// Summands; a multiple of 16.
    pub k: usize,
    /// The left operand.
    pub left: Left,
    /// Rows of a panel of the right operand.
    pub rows: usize,
    /// Whether the right operand's rows become columns, so that channels are summed over: `A Bᵀ`. Else `A B`.
    pub over_channels: bool,
    /// Type of the operands.
    pub operand_type: OperandType,
}

/// How far apart panels are, and what `xor`s the lane's address, for the chunk `chunk`, which is even.
fn chunk(chunk: usize, rows: usize) -> (usize, usize) {
    (chunk / 8 * rows * 128, chunk % 8)
}

impl Product {
    /// Registers of the accumulator's vector.
    pub fn accumulator(&self) -> usize {
        (self.n / 2).next_power_of_two()
    }

    /// Text of the instructions. Operands are the accumulator's result, the accumulator (unless `zero`), the left operand's
    /// address or registers, the right operand's address. Before: the addresses for each of a panel's four pairs of chunks.
    pub fn text(&self, zero: bool) -> String {
        let given = if zero {
            self.accumulator()
        } else {
            2 * self.accumulator()
        };
        let mut text =
            String::from(".reg .b32 a<4>, b<4>, fa<4>, fb<4>;\n.reg .f32 zero;\nmov.f32 zero, 0f00000000;\n");
        let addresses = |name: &str, operand: usize| -> String {
            (0..4)
                .map(|i| format!("xor.b32 {name}{i}, %{operand}, {};\n", 32 * i))
                .collect()
        };
        let right = match self.left {
            Left::Tile { .. } => {
                text += &addresses("a", given);
                given + 1
            }
            Left::Registers => given + (self.k / 4).next_power_of_two(),
        };
        text += &addresses("b", right);
        if !zero {
            for i in 0..self.n / 2 {
                text += &format!("mov.b32 %{i}, %{};\n", self.accumulator() + i);
            }
        }
        for k in 0..self.k / 16 {
            text += &self.step(k, zero && k == 0, given);
        }
        text
    }

    /// Adds the products of 16 summands.
    fn step(&self, k: usize, zero: bool, left: usize) -> String {
        let load = "ldmatrix.sync.aligned.m8n8.x4";
        let mut text = String::new();
        let a = match self.left {
            Left::Tile { rows } => {
                let (offset, pair) = chunk(2 * k, rows);
                text += &format!(
                    "{load}.shared.b16 {{fa0, fa1, fa2, fa3}}, [a{}+{offset}];\n",
                    pair / 2
                );
                "fa0, fa1, fa2, fa3".to_owned()
            }
            Left::Registers => (0..4)
                .map(|i| format!("%{}", left + 4 * k + i))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let kind = match self.operand_type {
            OperandType::Bf16 => "bf16",
            OperandType::F16 => "f16",
        };
        for group in 0..self.n.div_ceil(16) {
            let (transpose, row, column) = if self.over_channels {
                ("", group, k)
            } else {
                (".trans", k, group)
            };
            let (offset, pair) = chunk(2 * column, self.rows);
            let offset = offset + row * 16 * 128;
            text += &format!(
                "{load}{transpose}.shared.b16 {{fb0, fb1, fb2, fb3}}, [b{}+{offset}];\n",
                pair / 2
            );
            for half in 0..(self.n / 8 - 2 * group).min(2) {
                let first = 8 * group + 4 * half;
                let d = (first..first + 4)
                    .map(|i| format!("%{i}"))
                    .collect::<Vec<_>>()
                    .join(", ");
                let c = if zero { "zero, zero, zero, zero" } else { &d };
                text += &format!(
                    "mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{d}}}, {{{a}}}, {{fb{}, fb{}}}, {{{c}}};\n",
                    2 * half,
                    2 * half + 1
                );
            }
        }
        text
    }
}

/// Where lane `lane` reads in a tile whose rows are walked through by sixteens: a left operand, or a right one that is not
/// [`over_channels`](Product::over_channels). In bytes from the first of the 16 rows (a multiple of 8) of the tile.
#[cube]
pub fn lane_by_rows(lane: u32) -> u32 {
    (lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16
}

/// Where lane `lane` reads in a right operand [`over_channels`](Product::over_channels).
#[cube]
pub fn lane_by_columns(lane: u32) -> u32 {
    ((lane / 16) * 8 + lane % 8) * 128 + (((lane / 8) % 2) ^ (lane % 8)) * 16
}

/// The product of two tiles; `left` and `right` are this lane's byte addresses of shared memory.
#[cube]
pub fn multiply<N: Size>(left: u32, right: u32, #[comptime] product: Product) -> Vector<f32, N> {
    let body = comptime!(product.text(true));
    let left = read::<u32>(left);
    let right = read::<u32>(right);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {a} {b}",
        "{body}",
        "}}",
        d = out(_) out, a = in(_) left, b = in(_) right,
    );
    out
}

/// `accumulator` plus the product of registers, four for each 16 summands and two values each, with a tile; `right` is this
/// lane's byte address of shared memory.
#[cube]
pub fn multiply_registers<N: Size, A: Size>(
    accumulator: Vector<f32, N>,
    left: Vector<u32, A>,
    right: u32,
    #[comptime] product: Product,
) -> Vector<f32, N> {
    let body = comptime!(product.text(false));
    let accumulator = read::<Vector<f32, N>>(accumulator);
    let left = read::<Vector<u32, A>>(left);
    let right = read::<u32>(right);
    let out: Vector<f32, N>;
    gpu_asm!(
        "{{ // {d} {c} {a} {b}",
        "{body}",
        "}}",
        d = out(_) out, c = in(_) accumulator, a = in(_) left, b = in(_) right,
    );
    out
}
