//! Partial masks: one bit for each accumulator register of each thread of a row group.
//!
//! Register `i` of thread `t` holds row `16 (t / 32) + (t mod 32) / 4 + 8 (i / 2 mod 2)` and column
//! `8 (i / 4) + 2 (t mod 4) + i mod 2`: the accumulator of Hopper's `wgmma` (PTX ISA 9.7.15.5.1) and of four stacked
//! `mma.m16n8`.

use crate::bits::Bits;
use std::collections::HashMap;

/// Rows of a row group.
pub const ROW_GROUP: usize = 64;

/// Threads that share a row group.
pub const ROW_GROUP_THREADS: usize = 128;

/// Words of 32 bits that a thread has of a partial mask for tiles of `columns` columns: one bit for each of its
/// `columns / 2` registers.
pub fn partial_mask_words(columns: usize) -> usize {
    (columns / 2).div_ceil(32)
}

/// Row and column of what register `register` of thread `thread` holds.
pub fn element(thread: usize, register: usize) -> [usize; 2] {
    let row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (register / 2 % 2);
    let column = 8 * (register / 4) + 2 * (thread % 4) + register % 2;
    [row, column]
}

/// Distinct partial masks, in the order they were first met.
#[derive(Debug, Default)]
pub(crate) struct PartialMasks {
    known: HashMap<(usize, Box<[u64]>), u32>,
    pub words: Vec<u32>,
}

impl PartialMasks {
    /// Number of the partial mask of `bits`, whose rows are queries. `transposed`: the row group's rows are keys. `queries` of
    /// them are in `bits`.
    pub fn number(&mut self, bits: &Bits, queries: usize, transposed: bool, columns: usize) -> u32 {
        let next = self.known.len() as u32;
        let key = (queries, bits.key().into());
        match self.known.entry(key) {
            std::collections::hash_map::Entry::Occupied(known) => *known.get(),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(next);
                for thread in 0..ROW_GROUP_THREADS {
                    let first = self.words.len();
                    self.words.resize(first + partial_mask_words(columns), 0);
                    for register in 0..columns / 2 {
                        let [row, column] = element(thread, register);
                        let allowed = if transposed {
                            bits.get(column, row)
                        } else {
                            bits.get(row, column)
                        };
                        self.words[first + register / 32] |= u32::from(allowed) << (register % 32);
                    }
                }
                next
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.known.len()
    }
}
