//! The instructions of [`mma`](crate::mma) on the host: what a warp computes, without a GPU.
//!
//! It executes the PTX that the GPU gets, by the definitions of the PTX ISA: `ldmatrix` (9.7.14.5.15) and `mma.sync` of
//! 16 x 8 x 16 (9.7.14.5.8). Sums are in f32, in order of the summands; tensor cores sum in another order.

use half::{bf16, f16};
use std::collections::HashMap;

/// Lanes of a warp.
pub const LANES: usize = 32;

/// Bits of a register in each lane.
pub type Register = [u32; LANES];

/// What cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{instruction}`: {why}")]
pub struct CannotExecute {
    /// The line.
    pub instruction: String,
    /// For a person.
    pub why: String,
}

/// A warp's registers and the shared memory it sees.
#[derive(Clone, Debug, Default)]
pub struct Warp {
    /// By name, as in the text.
    pub registers: HashMap<String, Register>,
    /// Bytes.
    pub shared: Vec<u8>,
}

impl Warp {
    /// Executes straight-line text, a line for each instruction.
    ///
    /// # Errors
    /// [`CannotExecute`] for what is no instruction of `mma`'s, reads a register that was not written, or reaches beyond
    /// shared memory.
    pub fn execute(&mut self, text: &str) -> Result<(), CannotExecute> {
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with(".reg"))
        {
            self.step(line).map_err(|why| CannotExecute {
                instruction: line.to_owned(),
                why,
            })?;
        }
        Ok(())
    }

    fn step(&mut self, line: &str) -> Result<(), String> {
        let (name, operands) = line.trim_end_matches(';').split_once(' ').ok_or("no operands")?;
        let operands = split(operands);
        match (name, &operands[..]) {
            ("mov.f32", [to, value]) => {
                let bits = value.strip_prefix("0f").ok_or("no f32")?;
                let bits = u32::from_str_radix(bits, 16).map_err(|error| error.to_string())?;
                self.registers.insert((*to).into(), [bits; LANES]);
            }
            ("mov.b32", [to, from]) => {
                let value = self.read(from)?;
                self.registers.insert((*to).into(), value);
            }
            ("xor.b32", [to, from, bits]) => {
                let bits: u32 = bits.parse().map_err(|_| "no number")?;
                let value = self.read(from)?.map(|x| x ^ bits);
                self.registers.insert((*to).into(), value);
            }
            ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", [to, from]) => self.load(to, from, false)?,
            ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", [to, from]) => self.load(to, from, true)?,
            ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", [d, a, b, c]) => {
                self.multiply([d, a, b, c], |bits| bf16::from_bits(bits).to_f32())?;
            }
            ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", [d, a, b, c]) => {
                self.multiply([d, a, b, c], |bits| f16::from_bits(bits).to_f32())?;
            }
            _ => return Err("no instruction of these products".into()),
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Register, String> {
        self.registers
            .get(name)
            .copied()
            .ok_or_else(|| format!("{name} was not written"))
    }

    /// Four matrices of 8 x 8: lane `8 m + r` says where row `r` of matrix `m` is.
    fn load(&mut self, to: &str, from: &str, transposed: bool) -> Result<(), String> {
        let from = from.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = from.split_once('+').unwrap_or((from, "0"));
        let offset: usize = offset.parse().map_err(|_| "no offset")?;
        let addresses = self.read(base)?;
        for (m, name) in list(to).into_iter().enumerate() {
            let value = |row: usize, column: usize| -> Result<u32, String> {
                let row = addresses[8 * m + row] as usize + offset;
                if !row.is_multiple_of(16) {
                    return Err(format!("row at {row} is not aligned to 16 bytes"));
                }
                let at = row + 2 * column;
                let bytes = self
                    .shared
                    .get(at..at + 2)
                    .ok_or(format!("byte {at} is beyond shared memory"))?;
                Ok(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])))
            };
            let mut loaded = [0; LANES];
            for (lane, loaded) in loaded.iter_mut().enumerate() {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                let [low, high] = match transposed {
                    false => [value(row, column)?, value(row, column + 1)?],
                    true => [value(column, row)?, value(column + 1, row)?],
                };
                *loaded = low | high << 16;
            }
            self.registers.insert(name.into(), loaded);
        }
        Ok(())
    }

    /// `d = a b + c`, 16 x 16 times 16 x 8.
    fn multiply(&mut self, operands: [&str; 4], value: impl Fn(u16) -> f32) -> Result<(), String> {
        let [d, a, b, c] = operands.map(list);
        if [d.len(), a.len(), b.len(), c.len()] != [4, 4, 2, 4] {
            return Err("wrong number of registers".into());
        }
        let get = |names: &[&str]| {
            names
                .iter()
                .map(|name| self.read(name))
                .collect::<Result<Vec<_>, _>>()
        };
        let (a, b, mut sums) = (get(&a)?, get(&b)?, get(&c)?);
        let half =
            |register: &Register, lane: usize, high: usize| value((register[lane] >> (16 * high)) as u16);
        for lane in 0..LANES {
            for (i, sum) in sums.iter_mut().enumerate() {
                let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let mut total = f32::from_bits(sum[lane]);
                for k in 0..16 {
                    let left = half(&a[row / 8 + 2 * (k / 8)], row % 8 * 4 + k % 8 / 2, k % 2);
                    let right = half(&b[k / 8], column * 4 + k % 8 / 2, k % 2);
                    total += left * right;
                }
                sum[lane] = total.to_bits();
            }
        }
        for (name, sum) in d.into_iter().zip(sums) {
            self.registers.insert(name.into(), sum);
        }
        Ok(())
    }
}

/// Operands, separated by commas outside of braces.
pub(crate) fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let cut = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    operands.split(cut).map(str::trim).collect()
}

/// Registers in braces, or the one.
pub(crate) fn list(operand: &str) -> Vec<&str> {
    operand
        .trim_matches(['{', '}'])
        .split(',')
        .map(str::trim)
        .collect()
}
