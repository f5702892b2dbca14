//! Attention with `mma.sync`, for NVIDIA GPUs from compute capability 8.0 on.

pub mod arguments;
pub mod backward_keys;
pub mod backward_queries;
mod copy;
pub mod forward;
mod launch;
mod select;
mod stream;
mod tiles;

use crate::launch_order::Grid;
use crate::prepared::{DeviceCapabilities, Kernels, MaskTiling};
use crate::problem::{Problem, Refusal};
use crate::tensors::{Backward, BlockMask, Forward, Heads, KvSegment};
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
pub type Prepared = crate::prepared::Prepared<Mma>;

impl MaskTiling for ForwardTiles {
    fn row_groups(&self) -> usize {
        self.row_groups
    }

    fn columns(&self) -> usize {
        self.keys
    }
}

impl MaskTiling for BackwardTiles {
    fn row_groups(&self) -> usize {
        self.row_groups
    }

    fn columns(&self) -> usize {
        self.streamed_rows
    }
}

impl Kernels for Mma {
    const NAME: &'static str = "mma";
    const ADDS_BIAS: bool = true;
    type Forward = ForwardTiles;
    type ForwardMask = BlockMask;
    type Backward = BackwardTiles;

    fn check(client: &Client, problem: &Problem) -> Result<(), Refusal> {
        let element = problem.operand_type.element();
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
                problem.operand_type
            );
            return Err(Refusal::because(why));
        }
        let found = properties.hardware.max_shared_memory_size;
        if found < SHARED_BYTES {
            let why = format!(
                "the mma kernels want {SHARED_BYTES} bytes of shared memory, this device has {found}"
            );
            return Err(Refusal::because(why));
        }
        Ok(())
    }

    fn select(problem: &Problem, masked: bool, capabilities: DeviceCapabilities) -> Selection {
        select::select(problem, masked, capabilities)
    }

    fn forward_mask(
        client: &Client,
        _: &Problem,
        mask: Option<(&MaskTiles, Grid)>,
        _: &ForwardTiles,
    ) -> BlockMask {
        match mask {
            None => BlockMask::none(client),
            Some((mask, grid)) => BlockMask::new(client, mask, grid),
        }
    }

    fn forward(
        client: &Client,
        of: Forward<'_>,
        kv_segments: &[KvSegment<'_>],
        o: &Heads,
        lse: &Handle,
        list: &BlockMask,
        tiles: ForwardTiles,
    ) {
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
