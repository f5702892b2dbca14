//! Masks on the device.

use super::refusals;
use super::tiles::{ROWS, Tiles};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::{Counts, Mask, MaskTiles, ROW_GROUP, Side, Sizes, Tiling};
use flow_cube::lasting::lasting_words;
use flow_registry::Refusal;

/// One list of tiles on the device: offsets, entries and partial masks in one buffer of 32-bit words.
#[derive(Clone, Debug)]
pub(super) struct List {
    pub words: Handle,
    pub length: usize,
    pub batch_stride: usize,
    pub entries_at: usize,
    pub patterns_at: usize,
}

impl List {
    fn upload(client: &Client, tiles: &MaskTiles) -> Self {
        let (entries_at, patterns_at) = (tiles.offsets.len(), tiles.offsets.len() + tiles.entries.len());
        let words = [&tiles.offsets[..], &tiles.entries, &tiles.partial_masks].concat();
        Self {
            length: words.len(),
            words: lasting_words(client, &words),
            batch_stride: tiles.mask_batch_stride as usize,
            entries_at,
            patterns_at,
        }
    }
}

/// A mask, compiled and uploaded for calls of one size. Made once and used by any number of calls.
#[derive(Clone, Debug)]
pub struct PortableMask {
    pub(super) queries: List,
    pub(super) keys: [Option<List>; 2],
    sizes: Sizes,
    head_dim: usize,
    counts: Counts,
}

impl PortableMask {
    /// Compiles `mask` for calls of `sizes` with heads of `head_dim` channels.
    ///
    /// # Errors
    /// If the mask does not fit the sizes.
    pub fn new(client: &Client, mask: &Mask, sizes: Sizes, head_dim: usize) -> Result<Self, Refusal> {
        const { assert!(ROWS == ROW_GROUP) };
        let columns = Tiles::new(head_dim).columns;
        let compile = |side| {
            MaskTiles::new(
                mask,
                sizes,
                Tiling {
                    side,
                    row_groups_per_block: 1,
                    columns,
                },
            )
            .map_err(|error| refusals::mask(&error))
        };
        let queries = compile(Side::Queries)?;
        let keys_of = |segment| match sizes.kv_segments[segment] {
            0 => Ok::<_, Refusal>(None),
            _ => Ok(Some(List::upload(client, &compile(Side::Keys { segment })?))),
        };
        Ok(Self {
            queries: List::upload(client, &queries),
            keys: [keys_of(0)?, keys_of(1)?],
            sizes,
            head_dim,
            counts: queries.counts,
        })
    }

    /// How much work it leaves, seen from queries.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Declines another call than it was compiled for.
    pub(super) fn check(&self, call: Sizes, call_dim: usize) -> Result<(), Refusal> {
        match self.sizes == call && self.head_dim == call_dim {
            true => Ok(()),
            false => Err(refusals::other_call(
                (self.sizes, self.head_dim),
                (call, call_dim),
            )),
        }
    }
}
