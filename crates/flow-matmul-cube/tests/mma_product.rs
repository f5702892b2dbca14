//! Products of several row groups of rows, executed as the PTX that the GPU gets, against sums over matrices.

use flow_cube::emulator::{LANES, Warp};
use flow_cube::mma::{lane_by_columns, lane_by_rows};
use flow_cube::wgmma::OperandType;
use flow_matmul_cube::mma::product::Product;
use half::{bf16, f16};

/// Small integers: their products and sums are exact.
fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<Vec<f32>> {
    let value = |r: usize, c: usize| ((r * 7 + c * 13 + seed * 5 + r * c) % 9) as f32 - 4.0;
    (0..rows)
        .map(|r| (0..columns).map(|c| value(r, c)).collect())
        .collect()
}

fn transposed(of: &[Vec<f32>]) -> Vec<Vec<f32>> {
    (0..of[0].len())
        .map(|c| of.iter().map(|row| row[c]).collect())
        .collect()
}

/// Adds a panel of rows of 64 values, chunks of 8 at `chunk xor row mod 8`. Returns its address.
fn upload(warp: &mut Warp, panel: &[Vec<f32>], operand_type: OperandType) -> u32 {
    let start = warp.shared.len();
    warp.shared.resize(start + panel.len() * 128, 0xff);
    for (r, row) in panel.iter().enumerate() {
        for (c, value) in row.iter().enumerate() {
            let at = start + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2;
            let bits = match operand_type {
                OperandType::Bf16 => bf16::from_f32(*value).to_bits(),
                OperandType::F16 => f16::from_f32(*value).to_bits(),
            };
            warp.shared[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    }
    start as u32
}

fn lanes(value: impl Fn(u32) -> u32) -> [u32; LANES] {
    std::array::from_fn(|lane| value(lane as u32))
}

#[test]
fn units_of_rows_are_multiplied_whichever_way_the_tiles_lie() {
    for operand_type in [OperandType::Bf16, OperandType::F16] {
        for [left_transposed, right_transposed] in
            [[false, false], [false, true], [true, true], [true, false]]
        {
            // The second half of a panel's columns, too.
            for half in [0, 1] {
                let product = Product {
                    row_groups: 4,
                    n: 32,
                    k: 64,
                    left_transposed,
                    right_transposed,
                    operand_type,
                };
                let (a, b) = (matrix(64, 64, 1), matrix(64, 64, 2));
                let before = matrix(64, 32, 3);
                let mut warp = Warp {
                    shared: vec![0xff; 1024],
                    ..Warp::default()
                };
                let left = if left_transposed {
                    transposed(&a)
                } else {
                    a.clone()
                };
                let right = if right_transposed {
                    transposed(&b)
                } else {
                    b.clone()
                };
                let left_at = upload(&mut warp, &left, operand_type);
                let right_at = upload(&mut warp, &right, operand_type);
                let given = product.accumulator();
                let row_of = |lane: usize, i: usize| i / 16 * 16 + lane / 4 + 8 * (i / 2 % 2);
                let column_of = |lane: usize, i: usize| 8 * (i % 16 / 4) + 2 * (lane % 4) + i % 2;
                for i in 0..given {
                    let held =
                        lanes(|lane| before[row_of(lane as usize, i)][column_of(lane as usize, i)].to_bits());
                    warp.registers.insert(format!("%{}", given + i), held);
                }
                let by = |lane: u32, transposed: bool| {
                    if transposed {
                        lane_by_columns(lane)
                    } else {
                        lane_by_rows(lane)
                    }
                };
                let left_lanes = lanes(|lane| left_at + by(lane, left_transposed));
                let right_lanes = lanes(|lane| match right_transposed {
                    true => right_at + (lane_by_rows(lane) ^ (64 * half)),
                    false => right_at + 4096 * half + lane_by_columns(lane),
                });
                warp.registers.insert(format!("%{}", 2 * given), left_lanes);
                warp.registers.insert(format!("%{}", 2 * given + 1), right_lanes);
                warp.execute(&product.text()).unwrap();
                for i in 0..given {
                    for lane in 0..LANES {
                        let (row, column) = (row_of(lane, i), column_of(lane, i));
                        let of_b = &b[32 * half as usize + column];
                        let sum: f32 = a[row].iter().zip(of_b).map(|(x, y)| x * y).sum();
                        let got = f32::from_bits(warp.registers[&format!("%{i}")][lane]);
                        assert_eq!(
                            got,
                            before[row][column] + sum,
                            "{product:?} row {row} column {column}"
                        );
                    }
                }
            }
        }
    }
}
