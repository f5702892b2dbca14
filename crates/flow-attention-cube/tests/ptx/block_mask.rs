//! Lists of masks, without a GPU: what NVRTC makes of reading and hiding, executed on the host, against the masks' predicates.

use super::compiler;
use flow_attention_cube::launch_order::Grid;
use flow_attention_cube::sources::block_mask_test_kernel;
use flow_attention_cube::tensors::BlockMask;
use flow_attention_mask::{Mask, MaskTiles, Side, Sizes, Tiling, element};
use flow_cube::ptx_interpreter::{Kernel, Memory, Parameter, ThreadIndex};

/// Blocks of one head, in order.
const ONE_HEAD: Grid = Grid {
    samples: 1,
    heads: 1,
    streamed_bytes: 0,
};

/// Samples that masks are made for.
const BATCH: usize = 2;

/// Executes it for each place and row group, and compares every pair of the first sample.
fn check(mask: &Mask, [queries, keys]: [usize; 2], row_groups: usize, columns: usize) {
    let sizes = Sizes::new(BATCH, queries, keys);
    let tiling = Tiling {
        side: Side::Queries,
        row_groups_per_block: row_groups,
        columns,
    };
    let tiles = MaskTiles::new(mask, sizes, tiling)
        .expect("a mask that fits")
        .whole_first();
    let allowed = mask.bind(sizes).expect("a mask that fits");
    let source = block_mask_test_kernel(row_groups, columns).expect("CubeCL compiles it");
    let ptx = compiler().ptx("sm_90a", &source.text).expect("NVRTC compiles it");
    let kernel = Kernel::read(&ptx).expect("a kernel");

    let [from_turns, from_entries, from_patterns, to_tiles, to_results] = [1u64, 2, 3, 4, 5].map(|n| n << 40);
    let mut memory = Memory::new();
    let [work_tiles, entries] = BlockMask::words(&tiles, ONE_HEAD);
    for (from, words) in [
        (from_turns, &work_tiles),
        (from_entries, &entries),
        (from_patterns, &tiles.partial_masks),
    ] {
        memory.extend((0..).map(|at: u64| from + 4 * at).zip(words.iter().copied()));
    }
    // Of a block's tiles, with what stands before them.
    let stride = tiles.column_tiles + 3;
    let registers = columns / 2;
    let mut seen = vec![vec![false; keys]; queries];
    for row_group in 0..row_groups {
        for place in 0..tiles.row_blocks {
            let parameters = [
                Parameter::Address(from_turns),
                Parameter::Address(from_entries),
                Parameter::Address(from_patterns),
                Parameter::Address(to_tiles),
                Parameter::Address(to_results),
                Parameter::Words(vec![stride as u32, row_group as u32]),
            ];
            for thread in 0..128 {
                let at = ThreadIndex {
                    block: place as u32,
                    thread,
                };
                kernel
                    .run(&parameters, at, &mut memory)
                    .unwrap_or_else(|error| panic!("{error}"));
            }
            let word = |from: u64, at: usize| memory[&(from + 4 * at as u64)];
            let [block, first, count] = [0, 1, 2].map(|at| word(to_tiles, place * stride + at) as usize);
            let own: Vec<usize> = (0..count)
                .map(|at| word(to_tiles, place * stride + 3 + at) as usize)
                .collect();
            assert_eq!(own[0], first, "{mask:?}: the first tile of block {block}");
            for (at, tile) in own.into_iter().enumerate() {
                for thread in 0..128 {
                    for register in 0..registers {
                        let [row, column] = element(thread, register);
                        let query = (block * row_groups + row_group) * 64 + row;
                        let key = tile * columns + column;
                        let to = ((place * stride + at) * 128 + thread) * registers + register;
                        let is_seen = match f32::from_bits(word(to_results, to)) {
                            1.0 => true,
                            f32::NEG_INFINITY => false,
                            other => panic!("{mask:?}: {other}"),
                        };
                        // Rows behind the last are not written, and keys behind it are nobody's.
                        if query < queries && key < keys {
                            assert!(
                                !seen[query][key],
                                "{mask:?}: key {key} passes query {query} twice"
                            );
                            seen[query][key] = is_seen;
                        } else {
                            assert!(!is_seen || query >= queries, "{mask:?}: key {key} does not exist");
                        }
                    }
                }
            }
        }
    }
    for (query, row) in seen.iter().enumerate() {
        for (key, seen) in row.iter().enumerate() {
            assert_eq!(
                *seen,
                allowed.allows(0, query, key),
                "{mask:?}: query {query}, key {key}"
            );
        }
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn what_a_block_sees_of_the_tiles_on_its_list_is_what_the_mask_allows() {
    let blocks = (0..7 * 9).map(|i| i * 11 % 5 < 2).collect();
    let masks = [
        Mask::Causal,
        Mask::Window { before: 37, after: 5 },
        Mask::packed(vec![0, 13, 150, 200], vec![0, 1, 190, 270]).expect("a mask"),
        Mask::block_sparse(30, 31, blocks).expect("a mask"),
    ];
    for mask in &masks {
        for (row_groups, columns) in [(2, 128), (1, 64), (2, 80), (1, 176)] {
            check(mask, [200, 270], row_groups, columns);
        }
    }
}
