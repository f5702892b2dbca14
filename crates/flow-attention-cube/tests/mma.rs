//! The `mma` backend without a GPU: its table, and where its accumulators are.

use flow_attention_cube::mma::{ForwardTiles, Mma, SHARED_BYTES};
use flow_attention_cube::prepared::{DeviceCapabilities, Kernels, KvGradients};
use flow_attention_cube::problem::Problem;
use flow_attention_mask::element;
use flow_cube::emulator::{LANES, Warp};
use flow_cube::mma::{lane_by_columns, lane_by_rows};
use flow_cube::wgmma::OperandType;
use half::bf16;

fn problem(head_dim: usize) -> Problem {
    Problem {
        batch: 1,
        heads: 4,
        kv_heads: 2,
        queries: 333,
        keys: [357, 20],
        head_dim,
        operand_type: OperandType::Bf16,
    }
}

#[test]
fn every_head_gets_tiles_that_fit_the_device_and_each_other() {
    for head_dim in (8..=256).step_by(8) {
        for shared_bytes in [SHARED_BYTES, 163 * 1024, 227 * 1024] {
            for masked in [false, true] {
                let what = format!("{head_dim} channels, {shared_bytes} bytes");
                let chosen = Mma::select(&problem(head_dim), masked, DeviceCapabilities { shared_bytes });
                let forward = chosen.forward;
                assert!(forward.shared_bytes() <= shared_bytes, "{what}: {forward:?}");
                assert_eq!(
                    forward.keys * 8 % forward.threads(),
                    0,
                    "{what}: every thread copies equally much"
                );
                assert!(
                    forward.keys % 16 == 0 && forward.stages >= 2 && forward.masked == masked,
                    "{what}"
                );
                for backward in chosen.keys.iter().chain([&chosen.queries]) {
                    assert!(backward.shared_bytes() <= shared_bytes, "{what}: {backward:?}");
                    assert_eq!(
                        backward.streamed_rows * 8 % backward.threads(),
                        0,
                        "{what}: {backward:?}"
                    );
                    assert!(
                        backward.streamed_rows % 16 == 0 && backward.stages >= 2,
                        "{what}: {backward:?}"
                    );
                    // Statistics are there for all rows that forward's blocks have.
                    assert!(
                        backward.streamed_rows <= forward.queries(),
                        "{what}: {backward:?}"
                    );
                }
                assert!(
                    chosen.queries.row_groups <= forward.row_groups,
                    "{what}: {chosen:?}"
                );
                let first = chosen.keys[0];
                assert!(
                    chosen
                        .keys
                        .iter()
                        .all(|tiles| (tiles.row_groups, tiles.streamed_rows)
                            == (first.row_groups, first.streamed_rows))
                );
                let made = |which: fn(KvGradients) -> bool| {
                    chosen.keys.iter().filter(|tiles| which(tiles.sums)).count()
                };
                assert_eq!(
                    (made(KvGradients::keys), made(KvGradients::values)),
                    (1, 1),
                    "{what}: each gradient once"
                );
            }
        }
    }
}

/// Bits of a mask are by thread and register; they must be about the scores that are there.
#[test]
fn scores_of_four_warps_are_where_masks_expect_them() {
    let tiles = ForwardTiles {
        head_dim: 16,
        keys: 64,
        row_groups: 1,
        stages: 2,
        operand_type: OperandType::Bf16,
        masked: true,
        two_segments: false,
        biased: false,
    };
    // Channel 0 of a query is its row, channel 1 is one; of a key one and 64 times its column: small enough to be exact.
    let mut warp = Warp {
        shared: vec![0; 2 * 64 * 128],
        ..Warp::default()
    };
    let mut put = |tile: usize, row: usize, values: [f32; 2]| {
        for (channel, value) in values.into_iter().enumerate() {
            let at = tile * 64 * 128 + row * 128 + (row % 8) * 16 + channel * 2;
            warp.shared[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes());
        }
    };
    for row in 0..64 {
        put(0, row, [row as f32, 1.0]);
        put(1, row, [1.0, 64.0 * row as f32]);
    }
    let product = tiles.scores();
    for of_unit in 0..4u32 {
        let lanes =
            |value: &dyn Fn(u32) -> u32| -> [u32; LANES] { std::array::from_fn(|lane| value(lane as u32)) };
        let queries = lanes(&|lane| of_unit * 16 * 128 + lane_by_rows(lane));
        let keys = lanes(&|lane| 64 * 128 + lane_by_columns(lane));
        warp.registers
            .insert(format!("%{}", product.accumulator()), queries);
        warp.registers
            .insert(format!("%{}", product.accumulator() + 1), keys);
        warp.execute(&product.text(true)).unwrap();
        for register in 0..tiles.keys / 2 {
            for lane in 0..LANES {
                let score = f32::from_bits(warp.registers[&format!("%{register}")][lane]) as usize;
                assert_eq!(
                    [score % 64, score / 64],
                    element(32 * of_unit as usize + lane, register)
                );
            }
        }
    }
}
