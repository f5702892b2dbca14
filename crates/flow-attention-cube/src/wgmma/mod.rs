//! Attention on Hopper's asynchronous tensor cores.

pub mod add_up;
#[cfg(feature = "ptx-gate")]
pub mod alone;
pub mod backward_keys;
pub mod backward_queries;
mod copy;
pub mod forward;
pub mod launch;
mod online_softmax;
mod output;
mod ping_pong;
mod records;
pub mod select;
pub mod staying;
mod tiles;

use crate::call::{Call, Declined};
use crate::deal::DealtList;
use crate::order::Grid;
use crate::run::{Cut, Kernels, Offer};
use crate::tensors::{Backward, Heads, Part, TileList};
use cubecl::ir::features::Tma;
use cubecl::prelude::Client;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
pub use tiles::{BackwardTiles, ForwardTiles, Sums};

/// The kernels of this module.
#[derive(Clone, Copy, Debug)]
pub struct Wgmma;

/// A call made ready for these kernels.
pub type Prepared = crate::run::Prepared<Wgmma>;

/// A mask on the device, for one of the forward kernels.
#[derive(Clone, Debug)]
pub enum ForwardList {
    /// For blocks that start in turn, or without a mask.
    InTurn(TileList),
    /// For blocks that stay.
    Dealt(DealtList),
}

impl Cut for ForwardTiles {
    fn units(&self) -> usize {
        self.warpgroups
    }

    fn columns(&self) -> usize {
        self.keys
    }
}

impl Cut for BackwardTiles {
    fn units(&self) -> usize {
        self.warpgroups
    }

    fn columns(&self) -> usize {
        self.passing
    }
}

impl Kernels for Wgmma {
    const NAME: &'static str = "wgmma";
    const BY_FIRST_TILE: bool = true;
    type Forward = ForwardTiles;
    type ForwardList = ForwardList;
    type Backward = BackwardTiles;

    fn check(client: &Client, _: &Call) -> Result<(), Declined> {
        // Of the generations that CubeCL knows, Hopper alone has the first of these and not the second; `wgmma` exists
        // nowhere else (PTX ISA 9.0, section 9.7.15: sm_90a).
        let tensor_memory = client.properties().features.tma;
        if !tensor_memory.contains(Tma::Base) || tensor_memory.contains(Tma::Im2colWide) {
            return Err(Declined {
                why: "the wgmma kernels want a GPU of NVIDIA's Hopper generation (compute capability 9.0)"
                    .into(),
            });
        }
        Ok(())
    }

    fn sums_of_pieces(call: &Call, tiles: &BackwardTiles) -> usize {
        tiles.sums_of_pieces(call.batch * call.kv_heads, call.keys[0])
    }

    fn select(call: &Call, masked: bool, _: Offer) -> select::Selection {
        select::select(call, masked)
    }

    fn forward_list(
        client: &Client,
        call: &Call,
        mask: Option<(&MaskTiles, Grid)>,
        tiles: &ForwardTiles,
    ) -> ForwardList {
        match mask {
            None => ForwardList::InTurn(TileList::none(client)),
            Some((mask, grid)) if tiles.stays => ForwardList::Dealt(DealtList::new(client, mask, call, grid)),
            Some((mask, grid)) => ForwardList::InTurn(TileList::new(client, mask, grid)),
        }
    }

    fn forward(
        client: &Client,
        q: &Heads,
        parts: &[Part<'_>],
        o: &Heads,
        lse: &Handle,
        list: &ForwardList,
        scale: f32,
        tiles: ForwardTiles,
    ) {
        launch::launch_forward(client, q, parts, o, lse, list, scale, tiles);
    }

    fn backward_queries(
        client: &Client,
        of: Backward<'_>,
        parts: &[Part<'_>],
        dq: &Heads,
        list: &TileList,
        tiles: BackwardTiles,
    ) {
        launch::launch_backward_queries(client, of, parts, dq, list, tiles);
    }

    fn backward_keys(
        client: &Client,
        of: Backward<'_>,
        part: Part<'_>,
        gradients: [&Heads; 2],
        list: &TileList,
        tiles: BackwardTiles,
    ) {
        launch::launch_backward_keys(client, of, part, gradients, list, tiles);
    }
}
