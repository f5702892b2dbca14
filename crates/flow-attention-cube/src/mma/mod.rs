//! Attention with `mma.sync`, for NVIDIA GPUs from compute capability 8.0 on.

pub mod backward_keys;
pub mod backward_queries;
mod copy;
pub mod forward;
mod launch;
mod select;
mod tiles;

use crate::call::{Call, Declined};
use crate::order::Grid;
use crate::run::{Cut, Kernels, Offer};
use crate::tensors::{Backward, Heads, Part, TileList};
use cubecl::ir::features::MmaConfig;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
pub use select::Selection;
pub use tiles::{BackwardTiles, ForwardTiles};

/// Bytes of shared memory that the smallest tiles need.
pub const SHARED_BYTES: usize = 99 * 1024;

/// The kernels of this module.
#[derive(Clone, Copy, Debug)]
pub struct Mma;

/// A call made ready for these kernels.
pub type Prepared = crate::run::Prepared<Mma>;

impl Cut for ForwardTiles {
    fn units(&self) -> usize {
        self.units
    }

    fn columns(&self) -> usize {
        self.keys
    }
}

impl Cut for BackwardTiles {
    fn units(&self) -> usize {
        self.units
    }

    fn columns(&self) -> usize {
        self.passing
    }
}

impl Kernels for Mma {
    const NAME: &'static str = "mma";
    type Forward = ForwardTiles;
    type ForwardList = TileList;
    type Backward = BackwardTiles;

    fn check(client: &Client, call: &Call) -> Result<(), Declined> {
        let element = call.factor.element();
        let instruction = MmaConfig {
            a_type: element,
            b_type: element,
            cd_type: f32::elem_type_native(),
            m: 16,
            n: 8,
            k: 16,
        };
        let properties = client.properties();
        if !properties.features.matmul.mma.contains(&instruction) {
            let why = format!(
                "this device has no product of 16 x 8 x 16 of {:?} in a warp",
                call.factor
            );
            return Err(Declined { why });
        }
        let found = properties.hardware.max_shared_memory_size;
        if found < SHARED_BYTES {
            let why = format!(
                "the mma kernels want {SHARED_BYTES} bytes of shared memory, this device has {found}"
            );
            return Err(Declined { why });
        }
        Ok(())
    }

    fn select(call: &Call, masked: bool, offer: Offer) -> Selection {
        select::select(call, masked, offer)
    }

    fn forward_list(
        client: &Client,
        _: &Call,
        mask: Option<(&MaskTiles, Grid)>,
        _: &ForwardTiles,
    ) -> TileList {
        match mask {
            None => TileList::none(client),
            Some((mask, grid)) => TileList::new(client, mask, grid),
        }
    }

    fn forward(
        client: &Client,
        q: &Heads,
        parts: &[Part<'_>],
        o: &Heads,
        lse: &Handle,
        list: &TileList,
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
