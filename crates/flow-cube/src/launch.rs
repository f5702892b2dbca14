//! Grids of kernels.

use cubecl::prelude::*;

/// At least `blocks` blocks in as many dimensions as the device needs; kernels leave those beyond alone.
pub fn grid(client: &Client, blocks: usize) -> CubeCount {
    let (largest, ..) = client.properties().hardware.max_cube_count;
    let along_x = blocks.clamp(1, largest as usize);
    CubeCount::Static(along_x as u32, blocks.div_ceil(along_x).max(1) as u32, 1)
}
