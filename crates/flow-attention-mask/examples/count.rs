//! How much work a mask leaves, and how long it takes to compile: `cargo run --release --example count`.

use flow_attention_mask::{Extent, Mask, MaskError, MaskTiles, Side, Sizes, Tiling};
use std::time::Instant;

fn main() -> Result<(), MaskError> {
    let tokens = 32 * 1024;
    let grid = Extent {
        frames: 16,
        height: 32,
        width: 64,
    };
    let radius = Extent {
        frames: 2,
        height: 4,
        width: 8,
    };
    let masks = [
        ("causal", Mask::Causal),
        (
            "window",
            Mask::Window {
                before: 1024,
                after: 0,
            },
        ),
        (
            "packed",
            Mask::packed(vec![0, 5000, 12345, tokens], vec![0, 5000, 12345, tokens])?,
        ),
        ("video", Mask::video(grid, radius)?),
        (
            "causal video",
            Mask::And(vec![Mask::Causal, Mask::video(grid, radius)?]),
        ),
    ];
    for (name, mask) in masks {
        for side in [Side::Queries, Side::Keys { segment: 0 }] {
            let start = Instant::now();
            let tiling = Tiling {
                side,
                row_groups_per_block: 2,
                columns: 128,
            };
            let tiles = MaskTiles::new(&mask, Sizes::new(1, tokens, tokens), tiling)?;
            let wall_ms = start.elapsed().as_secs_f64() * 1e3;
            let (c, partial_masks) = (tiles.counts, tiles.partial_mask_count);
            println!(
                "{name} by {side:?}: {:.1} % of the pairs in {:.1} % of the tiles, {} of them in part, \
                 {partial_masks} partial_masks, {wall_ms:.1} ms",
                100.0 * c.allowed_pairs as f64 / c.dense_pairs as f64,
                100.0 * c.tiles_visited as f64 / c.tiles_dense as f64,
                c.tiles_partial,
            );
        }
    }
    Ok(())
}
