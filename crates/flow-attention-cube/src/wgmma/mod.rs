//! Attention on Hopper's asynchronous tensor cores.

pub mod arguments;
mod backward_block;
pub mod backward_keys;
pub mod backward_queries;
mod copy;
mod epilogue;
pub mod forward;
pub mod forward_persistent;
mod kv_stages;
pub mod launch;
mod online_softmax;
mod persistent_block;
mod ping_pong;
pub mod reduce_partials;
mod scheduled_tiles;
pub mod select;
#[cfg(feature = "compile-check")]
pub mod softmax_test_kernel;
mod streamed_queries;
mod tiles;

use crate::launch_order::Grid;
use crate::prepared::{DeviceCapabilities, Kernels, MaskTiling};
use crate::problem::{Problem, Refusal};
use crate::tensors::{Backward, BlockMask, Forward, Heads, KvSegment};
use crate::tile_scheduler::ScheduledMask;
use cubecl::ir::features::Tma;
use cubecl::prelude::Client;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
pub use tiles::{BackwardTiles, ForwardTiles, KvGradients};

/// The kernels of this module.
#[derive(Clone, Copy, Debug)]
pub struct Wgmma;

/// A call made ready for these kernels.
pub type Prepared = crate::prepared::Prepared<Wgmma>;

/// A mask on the device, for one of the forward kernels.
#[derive(Clone, Debug)]
pub enum ForwardMask {
    /// For a grid with one block for each work tile, or without a mask.
    Grid(BlockMask),
    /// For persistent blocks.
    Persistent(ScheduledMask),
}

impl MaskTiling for ForwardTiles {
    fn row_groups(&self) -> usize {
        self.warpgroups
    }

    fn columns(&self) -> usize {
        self.keys
    }
}

impl MaskTiling for BackwardTiles {
    fn row_groups(&self) -> usize {
        self.warpgroups
    }

    fn columns(&self) -> usize {
        self.streamed_rows
    }
}

impl Kernels for Wgmma {
    const NAME: &'static str = "wgmma";
    const MAX_FROM_FIRST_TILE: bool = true;
    type Forward = ForwardTiles;
    type ForwardMask = ForwardMask;
    type Backward = BackwardTiles;

    fn check(client: &Client, _: &Problem) -> Result<(), Refusal> {
        // Of the generations that CubeCL knows, Hopper alone has the first of these and not the second; `wgmma` exists
        // nowhere else (PTX ISA 9.0, section 9.7.15: sm_90a).
        let tensor_memory = client.properties().features.tma;
        if !tensor_memory.contains(Tma::Base) || tensor_memory.contains(Tma::Im2colWide) {
            return Err(Refusal::because(
                "the wgmma kernels want a GPU of NVIDIA's Hopper generation (compute capability 9.0)",
            ));
        }
        Ok(())
    }

    fn partial_sums(problem: &Problem, tiles: &BackwardTiles) -> usize {
        tiles.partial_sums(problem.batch * problem.kv_heads, problem.keys[0])
    }

    fn select(problem: &Problem, masked: bool, _: DeviceCapabilities) -> select::Selection {
        select::select(problem, masked)
    }

    fn forward_mask(
        client: &Client,
        problem: &Problem,
        mask: Option<(&MaskTiles, Grid)>,
        tiles: &ForwardTiles,
    ) -> ForwardMask {
        match mask {
            None => ForwardMask::Grid(BlockMask::none(client)),
            Some((mask, grid)) if tiles.persistent => {
                ForwardMask::Persistent(ScheduledMask::new(client, mask, problem, grid))
            }
            Some((mask, grid)) => ForwardMask::Grid(BlockMask::new(client, mask, grid)),
        }
    }

    fn forward(
        client: &Client,
        of: Forward<'_>,
        kv_segments: &[KvSegment<'_>],
        o: &Heads,
        lse: &Handle,
        list: &ForwardMask,
        tiles: ForwardTiles,
    ) {
        debug_assert!(
            of.bias.is_none(),
            "these kernels add no bias, as `ADDS_BIAS` says"
        );
        launch::launch_forward(client, of, kv_segments, o, lse, list, tiles);
    }

    fn backward_queries(
        client: &Client,
        of: Backward<'_>,
        kv_segments: &[KvSegment<'_>],
        dq: &Heads,
        list: &BlockMask,
        tiles: BackwardTiles,
    ) {
        launch::launch_backward_queries(client, of, kv_segments, dq, list, tiles);
    }

    fn backward_keys(
        client: &Client,
        of: Backward<'_>,
        part: KvSegment<'_>,
        gradients: [&Heads; 2],
        list: &BlockMask,
        tiles: BackwardTiles,
    ) {
        launch::launch_backward_keys(client, of, part, gradients, list, tiles);
    }
}
