//! Products of several row groups of 16 rows with a tile, by `mma.sync`: what is read of the right operand serves all row groups.
//!
//! Tiles, swizzle and registers are those of [`flow_cube::mma`]. An operand whose rows in memory are summands is read
//! transposed by `ldmatrix`.

use cubecl::prelude::*;
use flow_cube::register::read;
use flow_cube::wgmma::OperandType;

/// A product of `16 row_groups` rows with `n` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Row groups of 16 rows, at most 4.
    pub row_groups: usize,
    /// Columns, a multiple of 16, at most 64.
    pub n: usize,
    /// Summands, a multiple of 16, at most 64.
    pub k: usize,
    /// Whether rows of the left tile are summands.
    pub left_transposed: bool,
    /// Whether rows of the right tile are summands.
    pub right_transposed: bool,
    /// Type of the operands.
    pub operand_type: OperandType,
}

impl Product {
    /// Registers of the accumulator: those of the first row group, then of the next.
    pub fn accumulator(&self) -> usize {
        self.row_groups * self.n / 2
    }

    /// Text of the instructions. Operands are the result, the accumulator, the addresses of this lane in the left tile and
    /// in the right one, at its first chunk of its first 16 rows, columns or summands.
    pub fn text(&self) -> String {
        let given = self.accumulator();
        let mut text = format!(".reg .b32 a<4>, b<4>, fa<{}>, fb<4>;\n", 4 * self.row_groups);
        for (name, operand) in [("a", 2 * given), ("b", 2 * given + 1)] {
            for i in 0..4 {
                text += &format!("xor.b32 {name}{i}, %{operand}, {};\n", 32 * i);
            }
        }
        for i in 0..given {
            text += &format!("mov.b32 %{i}, %{};\n", given + i);
        }
        for step in 0..self.k / 16 {
            text += &self.step(step);
        }
        text
    }

    /// Where 16 summands `step` of 16 rows or columns `group` are: which of a row's pairs of chunks, and bytes.
    fn place(transposed: bool, step: usize, group: usize) -> (usize, usize) {
        if transposed {
            (group, step * 2048)
        } else {
            (step, group * 2048)
        }
    }

    /// Adds the products of 16 summands.
    fn step(&self, step: usize) -> String {
        let load = |transposed: bool| match transposed {
            true => "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
            false => "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        };
        let kind = match self.operand_type {
            OperandType::Bf16 => "bf16",
            OperandType::F16 => "f16",
        };
        let registers = |name: &str, first: usize, count: usize| {
            (first..first + count)
                .map(|i| format!("{name}{i}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mut text = String::new();
        for row_group in 0..self.row_groups {
            let (pair, offset) = Self::place(self.left_transposed, step, row_group);
            text += &format!(
                "{} {{{}}}, [a{pair}+{offset}];\n",
                load(self.left_transposed),
                registers("fa", 4 * row_group, 4)
            );
        }
        for group in 0..self.n / 16 {
            let (pair, offset) = Self::place(self.right_transposed, step, group);
            // A right operand by columns has its rows along the result's columns: no transposition is the one wanted.
            text += &format!(
                "{} {{fb0, fb1, fb2, fb3}}, [b{pair}+{offset}];\n",
                load(self.right_transposed)
            );
            for row_group in 0..self.row_groups {
                for half in 0..2 {
                    let d = registers("%", row_group * self.n / 2 + 8 * group + 4 * half, 4);
                    text += &format!(
                        "mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{d}}}, {{{}}}, {{fb{}, fb{}}}, {{{d}}};\n",
                        registers("fa", 4 * row_group, 4),
                        2 * half,
                        2 * half + 1
                    );
                }
            }
        }
        text
    }
}

/// `accumulator` plus the product of two tiles; `left` and `right` are this lane's byte addresses of shared memory.
#[cube]
pub fn multiply_add<N: Size>(
    accumulator: Vector<f32, N>,
    left: u32,
    right: u32,
    #[comptime] product: Product,
) -> Vector<f32, N> {
    let body = comptime!(product.text());
    let accumulator = read::<Vector<f32, N>>(accumulator);
    let left = read::<u32>(left);
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
