//! Products of tiles, executed as the PTX that the GPU gets, against sums over matrices.

use flow_cube::emulator::{LANES, Warp};
use flow_cube::mma::{Left, Product, lane_by_columns, lane_by_rows};
use flow_cube::wgmma::OperandType;
use half::{bf16, f16};

/// Small integers: their products and sums are exact.
fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<Vec<f32>> {
    let value = |r: usize, c: usize| ((r * 7 + c * 13 + seed * 5 + r * c) % 9) as f32 - 4.0;
    (0..rows)
        .map(|r| (0..columns).map(|c| value(r, c)).collect())
        .collect()
}

fn bits(value: f32, operand_type: OperandType) -> u16 {
    match operand_type {
        OperandType::Bf16 => bf16::from_f32(value).to_bits(),
        OperandType::F16 => f16::from_f32(value).to_bits(),
    }
}

/// Adds a tile to shared memory: panels of 64 channels, chunks of 8 at `chunk xor row mod 8`, channels up to a multiple of 16
/// zero, and NaN where nothing is to be read. Returns its address.
fn put(warp: &mut Warp, tile: &[Vec<f32>], operand_type: OperandType) -> u32 {
    let (rows, channels) = (tile.len(), tile[0].len());
    let start = warp.shared.len();
    warp.shared
        .resize(start + channels.div_ceil(64) * rows * 128, 0xff);
    for (r, row) in tile.iter().enumerate() {
        for channel in 0..channels.next_multiple_of(16) {
            let (panel, chunk) = (channel / 64, channel % 64 / 8);
            let at = start + panel * rows * 128 + r * 128 + (chunk ^ (r % 8)) * 16 + channel % 8 * 2;
            let value = row.get(channel).copied().unwrap_or(0.0);
            warp.shared[at..at + 2].copy_from_slice(&bits(value, operand_type).to_le_bytes());
        }
    }
    start as u32
}

fn lanes(value: impl Fn(u32) -> u32) -> [u32; LANES] {
    std::array::from_fn(|lane| value(lane as u32))
}

/// The element of a 16-row result that register `register` of lane `lane` holds.
fn element(lane: usize, register: usize) -> [usize; 2] {
    [
        lane / 4 + 8 * (register / 2 % 2),
        8 * (register / 4) + 2 * (lane % 4) + register % 2,
    ]
}

/// Fails unless the accumulator is `want`.
fn compare(warp: &Warp, want: &[Vec<f32>], what: &str) {
    for register in 0..want[0].len() / 2 {
        for lane in 0..LANES {
            let [row, column] = element(lane, register);
            let got = f32::from_bits(warp.registers[&format!("%{register}")][lane]);
            assert_eq!(got, want[row][column], "{what}: row {row}, column {column}");
        }
    }
}

#[test]
fn rows_of_two_tiles_are_multiplied_over_channels() {
    for operand_type in [OperandType::Bf16, OperandType::F16] {
        for channels in [8, 16, 40, 64, 72, 96, 128, 192, 256] {
            for (resident, passing, from) in [(64, 64, 16), (128, 32, 112), (64, 16, 0), (128, 176, 48)] {
                let (a, b) = (matrix(resident, channels, 1), matrix(passing, channels, 2));
                let mut warp = Warp {
                    shared: vec![0xff; 1024],
                    ..Warp::default()
                };
                let left = put(&mut warp, &a, operand_type) + from as u32 * 128;
                let right = put(&mut warp, &b, operand_type);
                let product = Product {
                    n: passing,
                    k: channels.next_multiple_of(16),
                    left: Left::Tile { rows: resident },
                    rows: passing,
                    over_channels: true,
                    operand_type,
                };
                let first = product.accumulator();
                warp.registers
                    .insert(format!("%{first}"), lanes(|lane| left + lane_by_rows(lane)));
                warp.registers.insert(
                    format!("%{}", first + 1),
                    lanes(|lane| right + lane_by_columns(lane)),
                );
                warp.execute(&product.text(true)).unwrap();
                let dot = |r: usize, c: usize| a[from + r].iter().zip(&b[c]).map(|(x, y)| x * y).sum();
                let want: Vec<Vec<f32>> = (0..16)
                    .map(|r| (0..passing).map(|c| dot(r, c)).collect())
                    .collect();
                compare(
                    &warp,
                    &want,
                    &format!("{operand_type:?} {resident} x {passing} over {channels}"),
                );
            }
        }
    }
}

#[test]
fn an_accumulator_packed_in_pairs_is_the_left_factor_of_the_next_product() {
    for operand_type in [OperandType::Bf16, OperandType::F16] {
        for channels in [8, 16, 40, 64, 72, 96, 128, 192, 256] {
            for rows in [16, 32, 48, 64, 176] {
                let (weights, tile) = (matrix(16, rows, 3), matrix(rows, channels, 4));
                let before = matrix(16, channels, 5);
                let mut warp = Warp::default();
                let right = put(&mut warp, &tile, operand_type);
                let product = Product {
                    n: channels,
                    k: rows,
                    left: Left::Registers,
                    rows,
                    over_channels: false,
                    operand_type,
                };
                let accumulator = product.accumulator();
                let held = |matrix: &[Vec<f32>], lane: u32, register: usize| {
                    let [row, column] = element(lane as usize, register);
                    matrix[row][column]
                };
                for register in 0..channels / 2 {
                    let values = lanes(|lane| held(&before, lane, register).to_bits());
                    warp.registers
                        .insert(format!("%{}", accumulator + register), values);
                }
                for pair in 0..rows / 4 {
                    let packed = lanes(|lane| {
                        let [low, high] =
                            [0, 1].map(|i| bits(held(&weights, lane, 2 * pair + i), operand_type));
                        u32::from(low) | u32::from(high) << 16
                    });
                    warp.registers
                        .insert(format!("%{}", 2 * accumulator + pair), packed);
                }
                let address = 2 * accumulator + (rows / 4).next_power_of_two();
                warp.registers
                    .insert(format!("%{address}"), lanes(|lane| right + lane_by_rows(lane)));
                warp.execute(&product.text(false)).unwrap();
                let sum = |r: usize, c: usize| {
                    (0..rows).map(|k| weights[r][k] * tile[k][c]).sum::<f32>() + before[r][c]
                };
                let want: Vec<Vec<f32>> = (0..16)
                    .map(|r| (0..channels).map(|c| sum(r, c)).collect())
                    .collect();
                compare(
                    &warp,
                    &want,
                    &format!("{operand_type:?} {rows} rows of {channels}"),
                );
            }
        }
    }
}

#[test]
fn eight_rows_of_a_chunk_lie_in_different_banks() {
    for address in [lane_by_rows, lane_by_columns] {
        for matrix in 0..4 {
            let mut chunks: Vec<u32> = (0..8).map(|row| address(8 * matrix + row) % 128 / 16).collect();
            chunks.sort_unstable();
            assert_eq!(chunks, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }
}

#[test]
fn the_emulator_says_what_it_cannot_execute() {
    let mut warp = Warp::default();
    let error = warp.execute("mov.b32 %0, %1;").unwrap_err().to_string();
    assert_eq!(error, "`mov.b32 %0, %1;`: %1 was not written");
    assert!(warp.execute("add.s32 a, b, c;").is_err());
    warp.registers.insert("a".into(), [0; LANES]);
    let load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {b, c, d, e}, [a+16];";
    assert!(
        warp.execute(load)
            .unwrap_err()
            .to_string()
            .contains("beyond shared memory")
    );
}
