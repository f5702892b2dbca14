//! A call from beginning to end: forward, and backward from what forward kept.

use super::launch::{
    Backward, Heads, Part, TileList, launch_backward_keys, launch_backward_queries, launch_forward, lse_rows,
};
use super::select::{Call, Declined, Selection};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::{Mask, MaskTiles};
use std::sync::{Arc, OnceLock};

/// A call made ready: its tiles, and its mask on the device. Making one compiles the mask, so it is kept and used again
/// for all calls of the shape.
pub struct Prepared {
    call: Call,
    scale: f32,
    selection: Selection,
    client: Client,
    mask: Option<Arc<Mask>>,
    forward: TileList,
    backward: OnceLock<BackwardLists>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("call", &self.call).field("selection", &self.selection).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct BackwardLists {
    queries: TileList,
    keys: Vec<TileList>,
}

/// The list on the device, blocks in the order in which they start: those with most tiles first.
fn upload(client: &Client, tiles: &MaskTiles) -> TileList {
    let mut places = Vec::with_capacity(3 * tiles.mask_batches * tiles.row_blocks);
    for batch in 0..tiles.mask_batches {
        let list = |block: usize| {
            let at = batch * tiles.row_blocks + block;
            (tiles.offsets[at], tiles.offsets[at + 1] - tiles.offsets[at])
        };
        let mut order: Vec<usize> = (0..tiles.row_blocks).collect();
        order.sort_by_key(|block| std::cmp::Reverse(list(*block).1));
        for block in order {
            let (begin, length) = list(block);
            places.extend([block as u32, begin, length]);
        }
    }
    TileList::new(client, &places, &tiles.entries, &tiles.patterns, tiles.mask_batch_stride)
}

impl Prepared {
    /// Chooses tiles and compiles the mask.
    ///
    /// # Errors
    /// [`Declined`] if the kernels do not serve the call, or the mask does not fit it.
    pub fn new(client: &Client, call: Call, scale: f32, mask: Option<Arc<Mask>>) -> Result<Self, Declined> {
        call.check()?;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(Declined {
                why: format!("the factor on the scores must be above 0 and finite, not {scale}"),
            });
        }
        let selection = call.select(mask.is_some());
        let forward = match &mask {
            Some(mask) => {
                let tiles = selection.forward_list(mask, call.sizes());
                let tiles = tiles.map_err(|error| Declined { why: error.to_string() })?;
                upload(client, &tiles)
            }
            None => TileList::none(client),
        };
        Ok(Self {
            call,
            scale,
            selection,
            client: client.clone(),
            mask,
            forward,
            backward: OnceLock::new(),
        })
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The tiles.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Values in `lse` and in `delta`: `[B, H, lse_rows]`.
    pub fn statistics(&self) -> usize {
        self.call.batch * self.call.heads * lse_rows(self.call.queries)
    }

    /// Writes `o [B, H, S, D]` and `lse [B, H, lse_rows]`.
    pub fn forward(&self, q: &Heads, parts: &[Part<'_>], o: &Heads, lse: &Handle) {
        launch_forward(
            &self.client,
            q,
            parts,
            o,
            lse,
            &self.forward,
            self.scale,
            self.selection.forward,
        );
    }

    /// Writes `dq`, and `dk` and `dv` for each part; `delta [B, H, lse_rows]` is scratch.
    pub fn backward(
        &self,
        [q, o, d_o]: [&Heads; 3],
        parts: &[Part<'_>],
        lse: &Handle,
        delta: &Handle,
        dq: &Heads,
        d_parts: &[[&Heads; 2]],
    ) {
        let lists = self.backward.get_or_init(|| self.backward_lists());
        let of = Backward { q, o, d_o, lse, delta, scale: self.scale };
        launch_backward_queries(&self.client, of, parts, dq, &lists.queries, self.selection.queries);
        for ((part, gradients), list) in parts.iter().zip(d_parts).zip(&lists.keys) {
            for tiles in &self.selection.keys {
                launch_backward_keys(&self.client, of, *part, *gradients, list, *tiles);
            }
        }
    }

    fn backward_lists(&self) -> BackwardLists {
        let segments = 1 + usize::from(self.call.keys[1] > 0);
        let Some(mask) = &self.mask else {
            return BackwardLists {
                queries: self.forward.clone(),
                keys: vec![self.forward.clone(); segments],
            };
        };
        let sizes = self.call.sizes();
        let fits = "a mask that fits forward fits backward";
        BackwardLists {
            queries: upload(&self.client, &self.selection.queries_list(mask, sizes).expect(fits)),
            keys: (0..segments)
                .map(|s| upload(&self.client, &self.selection.keys_list(mask, sizes, s).expect(fits)))
                .collect(),
        }
    }
}
