//! Compiled masks against the definition of the mask, element by element.

use flow_attention_mask::*;
use proptest::prelude::*;

const LENGTHS: [usize; 4] = [1, 13, 77, 333];
const COLUMNS: [usize; 4] = [64, 80, 128, 176];

/// A mask for these sizes, of every kind, with data drawn from `seed`.
fn mask(kind: usize, sizes: Sizes, seed: u64) -> Mask {
    let mut state = seed | 1;
    let mut draw = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let (queries, keys) = (sizes.queries, sizes.keys());
    match kind {
        0 => Mask::Full,
        1 => Mask::Causal,
        2 => {
            // Now and then a side without end.
            let mut side = |most: usize| match draw(6) {
                0 => usize::MAX,
                1 => usize::MAX / 2 + 1,
                _ => draw(most),
            };
            Mask::Window {
                before: side(keys + 3),
                after: side(keys / 2 + 1),
            }
        }
        3 => Mask::key_padding((0..sizes.batch).map(|_| draw(keys + 1)).collect()).unwrap(),
        4 => {
            let count = 1 + draw(6);
            let mut ends = |last: usize| {
                let mut ends: Vec<usize> = (1..count).map(|_| draw(last + 1)).collect();
                ends.extend([0, last - draw(2).min(last)]);
                ends.sort_unstable();
                ends
            };
            let (queries, keys) = (ends(queries), ends(keys));
            Mask::packed(queries, keys).unwrap()
        }
        5 => {
            let lists = if draw(2) == 0 { 1 } else { sizes.batch };
            let most = 1 + draw(4);
            let mut runs = |length: usize| -> Vec<u32> {
                let mut list = Vec::new();
                while list.len() < length {
                    let number = draw(most) as u32;
                    list.extend(std::iter::repeat_n(number, 1 + draw(90)));
                }
                list.truncate(length);
                list
            };
            let of_queries = (0..lists).map(|_| runs(queries)).collect();
            let of_keys = (0..lists).map(|_| runs(keys)).collect();
            Mask::documents(of_queries, of_keys).unwrap()
        }
        6 => {
            let (q, k) = (1 + draw(150), 1 + draw(150));
            let table = (0..queries.div_ceil(q) * keys.div_ceil(k))
                .map(|_| draw(3) > 0)
                .collect();
            Mask::block_sparse(q, k, table).unwrap()
        }
        7 => {
            let width = (1..=queries)
                .filter(|w| queries % w == 0)
                .nth(draw(2))
                .unwrap_or(1);
            let rest = queries / width;
            let height = (1..=rest).filter(|h| rest % h == 0).nth(draw(2)).unwrap_or(1);
            let grid = Extent {
                frames: rest / height,
                height,
                width,
            };
            let radius = Extent {
                frames: draw(grid.frames + 1),
                height: draw(height),
                width: draw(width),
            };
            Mask::video(grid, radius).unwrap()
        }
        _ => Mask::And(vec![
            mask(2, sizes, seed ^ 77),
            mask(draw(7), sizes, seed ^ 99),
            mask(5, sizes, seed ^ 11),
        ]),
    }
}

/// Reads compiled lists as a kernel would: which pair of a row and a column is allowed.
fn expand(
    tiles: &MaskTiles,
    batch: usize,
    rows: usize,
    column_ranges: &[std::ops::Range<usize>],
) -> Vec<Vec<bool>> {
    let Tiling {
        row_groups_per_block,
        columns,
        ..
    } = tiles.tiling;
    let width = column_ranges.iter().map(|r| r.end).max().unwrap_or(0);
    let mut allowed = vec![vec![false; width]; rows];
    for block in 0..tiles.row_blocks {
        let at = batch * tiles.mask_batch_stride as usize + block;
        let mut last = None;
        assert!(
            tiles.offsets[at] < tiles.offsets[at + 1],
            "every block has an entry"
        );
        for entry in tiles.offsets[at] as usize..tiles.offsets[at + 1] as usize {
            let words = &tiles.entries[entry * (1 + row_groups_per_block)..][..1 + row_groups_per_block];
            assert!(last < Some(words[0]), "indices ascend");
            last = Some(words[0]);
            let range = &column_ranges[words[0] as usize];
            for (row_group, &number) in words[1..].iter().enumerate() {
                for thread in 0..ROW_GROUP_THREADS {
                    for register in 0..columns / 2 {
                        let [row, column] = element(thread, register);
                        let row = (block * row_groups_per_block + row_group) * ROW_GROUP + row;
                        let set = match number {
                            ALL => true,
                            NONE => false,
                            p => {
                                let p = (p - FIRST_PARTIAL) as usize;
                                let word = (p * ROW_GROUP_THREADS + thread) * tiles.partial_mask_words
                                    + register / 32;
                                tiles.partial_masks[word] >> (register % 32) & 1 == 1
                            }
                        };
                        if set {
                            assert!(row < rows, "row {row} of {rows} is behind the end");
                            assert!(
                                column < range.len(),
                                "column {column} of {range:?} is behind the end"
                            );
                            allowed[row][range.start + column] = true;
                        }
                    }
                }
            }
        }
    }
    allowed
}

fn split_range(range: std::ops::Range<usize>, step: usize) -> Vec<std::ops::Range<usize>> {
    range
        .clone()
        .step_by(step)
        .map(|s| s..(s + step).min(range.end))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn a_compiled_mask_allows_what_the_mask_allows(
        kind in 0usize..9, seed: u64, batch in 1usize..3, q in 0usize..4, k in 0usize..4, second in 0usize..3,
        row_groups in 1usize..3, columns in 0usize..4,
    ) {
        let queries = LENGTHS[q];
        // A video has as many queries as keys.
        let keys = if kind == 7 { queries } else { LENGTHS[k] };
        let second = [0, keys / 3, keys][second];
        let sizes = Sizes { batch, queries, kv_segments: [keys - second, second] };
        let columns = COLUMNS[columns];
        let mask = mask(kind, sizes, seed);
        let bound = mask.bind(sizes).unwrap();
        let tiling = Tiling { side: Side::Queries, row_groups_per_block: row_groups, columns };
        let tiles = MaskTiles::new(&mask, sizes, tiling).unwrap();
        let mut ranges = split_range(0..keys - second, columns);
        ranges.extend(split_range(keys - second..keys, columns));
        prop_assert_eq!(tiles.column_tiles, ranges.len());
        let mut pairs = 0;
        for b in 0..batch {
            for (i, row) in expand(&tiles, b, queries, &ranges).iter().enumerate() {
                for (j, &allowed) in row.iter().enumerate() {
                    prop_assert_eq!(allowed, bound.allows(b, i, j), "batch {} query {} key {}", b, i, j);
                    pairs += u64::from(allowed && b < tiles.mask_batches);
                }
            }
        }
        prop_assert_eq!(tiles.counts.allowed_pairs, pairs);

        // With a whole tile first it is the same list in another order.
        let reordered = tiles.clone().whole_first();
        let words = 1 + row_groups;
        for ends in tiles.offsets.windows(2) {
            let list = |of: &MaskTiles| -> Vec<Vec<u32>> {
                let entries = &of.entries[ends[0] as usize * words..ends[1] as usize * words];
                entries.chunks(words).map(<[u32]>::to_vec).collect()
            };
            let whole = |entry: &Vec<u32>| entry[1..].iter().all(|partial_mask| *partial_mask == ALL);
            let (before, mut after) = (list(&tiles), list(&reordered));
            prop_assert_eq!(before.iter().any(whole), whole(&after[0]));
            prop_assert!(after[1..].is_sorted());
            after.sort_unstable();
            prop_assert_eq!(after, before);
        }
        prop_assert_eq!(tiles.counts.dense_pairs, (tiles.mask_batches * queries * keys) as u64);
        for segment in 0..2 {
            let tiling = Tiling { side: Side::Keys { segment }, row_groups_per_block: row_groups, columns };
            let tiles = MaskTiles::new(&mask, sizes, tiling).unwrap();
            let (offset, length) = [(0, keys - second), (keys - second, second)][segment];
            for b in 0..batch {
                for (j, row) in expand(&tiles, b, length, &split_range(0..queries, columns)).iter().enumerate() {
                    for (i, &allowed) in row.iter().enumerate() {
                        let expected = bound.allows(b, i, offset + j);
                        prop_assert_eq!(allowed, expected, "batch {} query {} key {}", b, i, offset + j);
                    }
                }
            }
        }
    }
}

fn compile(mask: &Mask, queries: usize, keys: usize, columns: usize) -> MaskTiles {
    let tiling = Tiling {
        side: Side::Queries,
        row_groups_per_block: 2,
        columns,
    };
    MaskTiles::new(mask, Sizes::new(1, queries, keys), tiling).unwrap()
}

#[test]
fn each_register_of_a_unit_holds_an_element_of_its_own() {
    let mut seen = vec![false; ROW_GROUP * 176];
    for thread in 0..ROW_GROUP_THREADS {
        for register in 0..88 {
            let [row, column] = element(thread, register);
            assert!(!std::mem::replace(&mut seen[row * 176 + column], true));
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn a_full_mask_on_whole_tiles_has_no_pattern() {
    let tiles = compile(&Mask::Full, 256, 384, 128);
    assert_eq!(tiles.partial_mask_count, 0);
    assert_eq!(
        tiles.entries,
        [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0]
    );
    assert_eq!(tiles.offsets, [0, 3, 6]);
}

#[test]
fn causal_tiles_share_one_pattern_for_each_place_on_the_diagonal() {
    let tiles = compile(&Mask::Causal, 4096, 4096, 128);
    // 64 rows meet the diagonal in the left or the right half of a tile of 128.
    assert_eq!(tiles.partial_mask_count, 2);
    assert_eq!(tiles.counts.tiles_partial, 64);
    assert_eq!(
        tiles.counts.tiles_visited,
        (0..64).map(|row_group| row_group / 2 + 1).sum::<u64>()
    );
    assert_eq!(tiles.counts.allowed_pairs, 4096 * 4097 / 2);
}

#[test]
fn a_window_visits_tiles_in_proportion_to_its_length_not_to_the_square() {
    let visited = |s| {
        compile(
            &Mask::Window {
                before: 256,
                after: 256,
            },
            s,
            s,
            64,
        )
        .counts
        .tiles_visited
    };
    // 513 keys touch at most 10 tiles of 64.
    assert!(visited(32768) <= 512 * 10);
    assert!(visited(32768) <= 2 * visited(16384) + 20);
}

#[test]
fn skipped_blocks_are_not_listed() {
    let mut table = vec![false; 16 * 16];
    (0..16).for_each(|i| table[i * 16 + (i * 5) % 16] = true);
    let tiles = compile(&Mask::block_sparse(128, 128, table).unwrap(), 2048, 2048, 128);
    assert_eq!(
        (
            tiles.counts.listed,
            tiles.counts.tiles_visited,
            tiles.counts.tiles_partial
        ),
        (16, 32, 0)
    );
}

#[test]
fn blocks_with_nothing_to_do_have_an_entry_that_says_so() {
    // The first 100 of 200 queries are before the first key.
    let tiles = compile(&Mask::Causal, 400, 100, 64);
    assert_eq!(tiles.entries[..3], [0, NONE, NONE]);
    assert_eq!(tiles.offsets[1], 1);
}

#[test]
fn a_long_video_has_few_patterns_and_few_tiles() {
    let grid = Extent {
        frames: 21,
        height: 30,
        width: 52,
    };
    let radius = Extent {
        frames: 2,
        height: 4,
        width: 4,
    };
    let tokens = grid.frames * grid.height * grid.width;
    let tiles = compile(&Mask::video(grid, radius).unwrap(), tokens, tokens, 128);
    let along = |length: usize, radius: usize| -> u64 {
        (0..length)
            .map(|i| (i.min(radius) + (length - 1 - i).min(radius) + 1) as u64)
            .sum()
    };
    let expected = along(21, 2) * along(30, 4) * along(52, 4);
    assert_eq!(tiles.counts.allowed_pairs, expected);
    assert!(tiles.counts.tiles_visited * 5 < tiles.counts.tiles_dense);
    assert!((tiles.partial_mask_count as u64) < tiles.counts.tiles_partial);
}

#[test]
fn masks_that_differ_between_batch_entries_have_lists_of_their_own() {
    let sizes = Sizes::new(2, 64, 128);
    let tiling = Tiling {
        side: Side::Queries,
        row_groups_per_block: 1,
        columns: 64,
    };
    let tiles = |keys: Vec<usize>| MaskTiles::new(&Mask::key_padding(keys).unwrap(), sizes, tiling).unwrap();
    let differing = tiles(vec![128, 40]);
    assert_eq!((differing.mask_batches, differing.mask_batch_stride), (2, 1));
    assert_eq!(differing.entries, [0, ALL, 1, ALL, 0, FIRST_PARTIAL]);
    let same = tiles(vec![64, 64]);
    assert_eq!((same.mask_batches, same.mask_batch_stride), (1, 0));
    assert_eq!(same.entries, [0, ALL]);
}

fn says(result: Result<impl std::fmt::Debug, MaskError>, parts: &[&str]) {
    let text = result.unwrap_err().to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
}

#[test]
fn masks_that_mean_nothing_are_refused_with_the_reason() {
    says(
        Mask::packed(vec![0, 5, 3], vec![0, 1, 2]),
        &["queries", "never decrease", "entry 2 is 3 after 5"],
    );
    says(
        Mask::packed(vec![1, 5], vec![0, 1]),
        &["must begin with 0", "entry 0 is 1"],
    );
    says(
        Mask::packed(vec![0, 5], vec![0, 1, 2]),
        &["1 sequences for queries but 2 for keys"],
    );
    says(Mask::packed(vec![0], vec![0]), &["no sequences"]);
    says(Mask::key_padding(vec![]), &["no batch entries"]);
    says(Mask::block_sparse(0, 4, vec![true]), &["no queries in a block"]);
    says(Mask::documents(vec![vec![1]], vec![]), &["no lists of numbers"]);
    says(
        Mask::video(
            Extent {
                frames: 2,
                height: 0,
                width: 3,
            },
            Extent {
                frames: 1,
                height: 1,
                width: 1,
            },
        ),
        &["rows"],
    );
}

#[test]
fn masks_for_another_call_are_refused_with_both_sizes() {
    let bind = |mask: Mask, sizes| mask.bind(sizes).map(|_| ());
    let sizes = Sizes::new(2, 10, 20);
    says(
        bind(Mask::key_padding(vec![3]).unwrap(), sizes),
        &["1 batch entries", "call has 2"],
    );
    says(
        bind(Mask::key_padding(vec![3, 21]).unwrap(), sizes),
        &["length 1", "21", "20 keys"],
    );
    says(
        bind(Mask::packed(vec![0, 11], vec![0, 20]).unwrap(), sizes),
        &["cumulative length 1", "11", "10 queries"],
    );
    says(
        bind(
            Mask::documents(vec![vec![0; 10]], vec![vec![0; 10]]).unwrap(),
            sizes,
        ),
        &["10 numbers of keys", "call has 20"],
    );
    says(
        bind(Mask::block_sparse(4, 5, vec![true; 8]).unwrap(), sizes),
        &["8 entries", "call has 12"],
    );
    let grid = Extent {
        frames: 1,
        height: 2,
        width: 5,
    };
    says(
        bind(Mask::video(grid, grid).unwrap(), sizes),
        &["1 frames x 2 x 5 = 10", "20 keys"],
    );
    says(
        bind(Mask::And(vec![Mask::key_padding(vec![3]).unwrap()]), sizes),
        &["1 batch entries"],
    );
    says(
        bind(Mask::Full, Sizes::new(1, 0, 3)),
        &["queries = 0", "at least 1"],
    );
    let tiling = Tiling {
        side: Side::Queries,
        row_groups_per_block: 1,
        columns: 60,
    };
    says(
        MaskTiles::new(&Mask::Full, sizes, tiling),
        &["columns", "60", "multiples of 8"],
    );
}

proptest! {
    #[test]
    fn runs_of_keys_hold_every_allowed_pair_and_judge_none_too_boldly(
        kind in 0usize..9,
        queries in prop::sample::select(LENGTHS.to_vec()),
        keys in prop::sample::select(LENGTHS.to_vec()),
        second in prop::sample::select(vec![0usize, 1, 50]),
        block in prop::sample::select(vec![1usize, 7, 64]),
        seed in any::<u64>(),
    ) {
        let sizes = Sizes { batch: 2, queries, kv_segments: [keys, second] };
        let mask = mask(kind, sizes, seed);
        prop_assume!(mask.bind(sizes).is_ok());
        let bound = mask.bind(sizes).unwrap();
        for batch in 0..2 {
            for start in (0..queries).step_by(64) {
                let tile = start..(start + 64).min(queries);
                let runs = bound.key_runs(batch, tile.clone(), block);
                let of = |key: usize| runs.iter().find(|run| run.keys.contains(&key));
                prop_assert!(runs.windows(2).all(|pair| pair[0].keys.end <= pair[1].keys.start));
                prop_assert!(runs.iter().all(|run| run.keys.end <= keys || run.keys.start >= keys));
                for key in 0..keys + second {
                    let seen = tile.clone().filter(|&query| bound.allows(batch, query, key)).count();
                    match of(key) {
                        None => prop_assert_eq!(seen, 0),
                        Some(run) if run.all => prop_assert_eq!(seen, tile.len()),
                        Some(_) => {}
                    }
                }
            }
        }
    }
}
