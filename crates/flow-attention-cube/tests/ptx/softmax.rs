//! Softmax by the tiles before, without a GPU: what NVRTC makes of it, executed by a warp on the host, against f64.

use super::compiler;
use flow_attention_cube::problem::Problem;
use flow_attention_cube::sources::softmax_test_kernel;
use flow_attention_cube::wgmma::softmax_test_kernel::RESULTS;
use flow_attention_cube::wgmma::{ForwardTiles, select};
use flow_cube::ptx_interpreter::{Kernel, Memory, Parameter};
use flow_cube::wgmma::OperandType;
use std::f64::consts::LN_2;

/// Keys of a tile: fewer than any kernel has, so that a tile is soon executed.
const KEYS: usize = 32;

/// Rows of a warp.
const ROWS: usize = 16;

/// On scores, in powers of two.
const FACTOR: f32 = 0.75;

/// Scores of 16 rows over some tiles of keys; minus infinity is not seen.
type Scores = Vec<[f32; ROWS]>;

/// What a row came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// Log-sum-exp, natural.
    lse: f64,
    /// Sums over values of 1, and of 1 and -1/2 in turns, divided by the sum of weights.
    outputs: [f64; 2],
    /// The bits that a thread left.
    bits: [u32; 4],
}

struct Softmax {
    kernel: Kernel,
    operand_type: OperandType,
}

impl Softmax {
    fn of(operand_type: OperandType) -> Self {
        let problem = Problem {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            queries: 64,
            keys: [KEYS, 0],
            head_dim: 8,
            operand_type,
        };
        let tiles = ForwardTiles {
            keys: KEYS,
            ..select::select(&problem, false).forward
        };
        let source = softmax_test_kernel(tiles).expect("CubeCL compiles it");
        let ptx = compiler().ptx("sm_90a", &source.text).expect("NVRTC compiles it");
        Self {
            kernel: Kernel::read(&ptx).expect("a kernel"),
            operand_type,
        }
    }

    /// Executes it.
    fn run(&self, scores: &Scores) -> Vec<Row> {
        let [rows, _] = self.run_behind(&Vec::new(), scores);
        rows
    }

    /// Executes it for some rows behind others, if these have scores. What both came to.
    fn run_behind(&self, before: &Scores, scores: &Scores) -> [Vec<Row>; 2] {
        let tiles = [scores.len(), before.len()].map(|keys| (keys / KEYS) as u32);
        let scores: Scores = before.iter().chain(scores).copied().collect();
        let (from, to) = (1u64 << 40, 1u64 << 41);
        let mut memory = Memory::new();
        for tile in 0..scores.len() / KEYS {
            for lane in 0..32 {
                for i in 0..KEYS / 2 {
                    let row = lane / 4 + 8 * (i / 2 % 2);
                    let key = tile * KEYS + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                    let at = (tile * 32 + lane) * KEYS / 2 + i;
                    memory.insert(from + 4 * at as u64, scores[key][row].to_bits());
                }
            }
        }
        // Scalars by type, in eights of bytes.
        let scalars = vec![FACTOR.to_bits(), 0, tiles[0], tiles[1]];
        let parameters = [
            Parameter::Address(from),
            Parameter::Address(to),
            Parameter::Words(scalars),
        ];
        self.kernel
            .run_warp(&parameters, 0, &mut memory)
            .unwrap_or_else(|error| panic!("{error}"));
        let left = |lane: usize, at: usize| memory[&(to + 4 * (lane * RESULTS + at) as u64)];
        [0, 32].map(|first_lane| {
            if first_lane > 0 && before.is_empty() {
                return Vec::new();
            }
            let of_row = |row: usize| {
                let lanes = first_lane + row % 8 * 4..first_lane + row % 8 * 4 + 4;
                let first = row / 8 * 4;
                let value = |lane, at| f64::from(f32::from_bits(left(lane, first + at)));
                let sum = value(lanes.start, 1);
                let over_lanes = |at| lanes.clone().map(|lane| value(lane, at)).sum::<f64>() / sum;
                Row {
                    lse: (value(lanes.start, 0) + sum.log2()) * LN_2,
                    outputs: [over_lanes(2), over_lanes(3)],
                    bits: [0, 1, 2, 3].map(|at| left(lanes.start, first + at)),
                }
            };
            (0..ROWS).map(of_row).collect()
        })
    }

    /// Executes it and compares with f64, row by row.
    fn check(&self, what: &str, scores: &Scores) -> Vec<Row> {
        let rows = self.run(scores);
        for (number, row) in rows.iter().enumerate() {
            let powers: Vec<f64> = scores
                .iter()
                .map(|key| f64::from(key[number]) * f64::from(FACTOR))
                .collect();
            let largest = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let what = format!("{what}, {:?}, row {number}: {row:?}", self.operand_type);
            if largest == f64::NEG_INFINITY {
                assert_eq!(f32::from_bits(row.bits[1]), 0.0, "{what}");
                continue;
            }
            let weights: Vec<f64> = powers.iter().map(|power| (power - largest).exp2()).collect();
            let sum: f64 = weights.iter().sum();
            let lse = (largest + sum.log2()) * LN_2;
            assert!((row.lse - lse).abs() < 2e-6 * lse.abs().max(1.0), "{what}: {lse}");
            let second: f64 = weights
                .iter()
                .enumerate()
                .map(|(key, weight)| if key % 2 == 0 { *weight } else { -weight / 2.0 })
                .sum();
            // Half of a row group of 16 bits for each weight, and of a row's largest one none where it has most of the row.
            let row_group = if self.operand_type == OperandType::Bf16 {
                1.0 / 256.0
            } else {
                1.0 / 2048.0
            };
            for (got, want) in row.outputs.iter().zip([1.0, second / sum]) {
                assert!((got - want).abs() < row_group / 2.0, "{what}: {want}");
            }
        }
        rows
    }
}

/// Numbers between -1 and 1 in no order.
fn noise(seed: u32) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Scores of `tiles` tiles, of which each is made of noise, key and row.
fn scores(tiles: usize, mut of: impl FnMut(f32, usize, usize) -> f32) -> Scores {
    let mut noise = noise(7);
    (0..tiles * KEYS)
        .map(|key| std::array::from_fn(|row| of(noise(), key, row)))
        .collect()
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn rows_of_every_shape_are_the_softmax_of_f64() {
    for operand_type in [OperandType::Bf16, OperandType::F16] {
        let softmax = Softmax::of(operand_type);
        let tiles = 5;
        softmax.check("even", &scores(tiles, |noise, _, _| 3.0 * noise));
        softmax.check("one tile", &scores(1, |noise, _, _| 3.0 * noise));
        softmax.check(
            "rising",
            &scores(tiles, |noise, key, row| noise + (key * row) as f32 / 20.0),
        );
        softmax.check(
            "falling",
            &scores(tiles, |noise, key, row| noise - (key * row) as f32 / 2.0),
        );
        softmax.check(
            "low",
            &scores(tiles, |noise, _, row| 5.0 * noise - 1000.0 * row as f32),
        );
        softmax.check("peaked", &scores(tiles, |noise, _, _| 60.0 * noise));
        // Rows that see the first keys late, or none at all.
        let refill_late = scores(tiles, |noise, key, row| match key < 9 * row {
            true => f32::NEG_INFINITY,
            false => 2.0 * noise - 40.0,
        });
        softmax.check("late", &refill_late);
        let hidden = scores(tiles, |noise, _, row| match row % 3 {
            0 => f32::NEG_INFINITY,
            _ => noise,
        });
        softmax.check("hidden", &hidden);
        // From a tile to the next by up to 2^(0.75 * 40 * 15), which f32 does not hold.
        let jumps = scores(tiles, |noise, key, row| noise + (40 * row * (key / KEYS)) as f32);
        softmax.check("jumping", &jumps);
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn a_row_that_is_lost_and_done_again_changes_no_bit_of_the_others() {
    let softmax = Softmax::of(OperandType::Bf16);
    let of = |jump: f32| {
        scores(4, |noise, key, row| {
            let by = if row % 5 == 2 { jump } else { 0.1 };
            2.0 * noise + by * (key / KEYS) as f32
        })
    };
    let quiet = softmax.check("quiet", &of(0.1));
    let loud = softmax.check("loud", &of(500.0));
    for (row, (quiet, loud)) in quiet.iter().zip(&loud).enumerate() {
        assert_eq!(row % 5 == 2, quiet.bits != loud.bits, "row {row}");
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn rows_have_the_same_bits_behind_others_and_leave_the_bits_of_these() {
    let softmax = Softmax::of(OperandType::Bf16);
    let mild = scores(3, |noise, _, row| 4.0 * noise + row as f32);
    let low = scores(2, |noise, _, row| 5.0 * noise - 1000.0 * row as f32);
    let refill_late = scores(4, |noise, key, row| match key < 9 * row {
        true => f32::NEG_INFINITY,
        false => 2.0 * noise - 40.0,
    });
    let rising = scores(4, |noise, key, row| noise + (key * row) as f32 / 20.0);
    let one_tile = scores(1, |noise, _, _| 3.0 * noise);
    let hidden = scores(2, |noise, _, row| match row % 3 {
        0 => f32::NEG_INFINITY,
        _ => noise,
    });
    let overflowed = scores(3, |noise, key, row| noise + (40 * row * (key / KEYS)) as f32);
    let bits = |rows: &[Row]| -> Vec<[u32; 4]> { rows.iter().map(|row| row.bits).collect() };
    for before in [&mild, &low, &refill_late, &rising, &one_tile, &hidden] {
        let alone = bits(&softmax.run(before));
        for own in [
            &mild,
            &low,
            &refill_late,
            &rising,
            &one_tile,
            &hidden,
            &overflowed,
        ] {
            let [rows, others] = softmax.run_behind(before, own);
            assert_eq!(bits(&rows), bits(&softmax.run(own)));
            assert_eq!(bits(&others), alone);
        }
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn a_weight_that_has_most_of_a_row_to_itself_is_one_that_16_bits_hold() {
    let softmax = Softmax::of(OperandType::Bf16);
    // In the third tile; between 2^9 and 2^13 times what was the largest.
    let alone = scores(5, |noise, key, row| match key == 2 * KEYS + row {
        true => 12.0 + 0.3 * row as f32,
        false => noise,
    });
    for (number, row) in softmax.check("alone", &alone).iter().enumerate() {
        // An eighth of what rounding may do to a weight; the others have a sixth of a row together, and round in all directions.
        let off = (row.outputs[0] - 1.0).abs();
        assert!(off < 1.0 / 512.0 / 8.0, "row {number}: {off:e}");
    }
}
