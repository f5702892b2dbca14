//! A kernel of one product, `A Bᵀ` of 64 x 64 by 128 x 64 in bf16, and the CUDA source it becomes.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline;
use flow_cube::wgmma::{self, OperandType, Steps};
use half::bf16;

/// Both factors K-major; four steps of 16 channels, 32 bytes apart.
fn steps() -> Steps {
    Steps {
        n: 128,
        padded: 64,
        a: vec![0, 2, 4, 6],
        b: vec![0, 2, 4, 6],
        a_transposed: false,
        b_transposed: false,
        operand_type: OperandType::Bf16,
        e4m3: false,
    }
}

/// One warpgroup; rows of 64 channels with the 128-byte swizzle.
#[cube(launch_unchecked)]
fn tile(a: &[bf16], b: &[bf16], out: &mut [f32]) {
    let mut a_tile: Shared<[bf16]> = Shared::new_aligned_slice(64usize * 64, 1024usize);
    let mut b_tile: Shared<[bf16]> = Shared::new_aligned_slice(128usize * 64, 1024usize);
    let thread = UNIT_POS as usize;
    for i in 0..32usize {
        let at = i * 128 + thread;
        a_tile[(at / 64) * 64 + ((at % 64 / 8) ^ (at / 64 % 8)) * 8 + at % 8] = a[at];
    }
    for i in 0..64usize {
        let at = i * 128 + thread;
        b_tile[(at / 64) * 64 + ((at % 64 / 8) ^ (at / 64 % 8)) * 8 + at % 8] = b[at];
    }
    sync_async_proxy_shared();
    sync_cube();
    let a_at = wgmma::descriptor(
        // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
        // written there stays within it.
        generic_to_shared::<bf16>(unsafe { a_tile.as_ptr_unchecked() }),
        16u32,
        1024u32,
    );
    let b_at = wgmma::descriptor(
        // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
        // written there stays within it.
        generic_to_shared::<bf16>(unsafe { b_tile.as_ptr_unchecked() }),
        16u32,
        1024u32,
    );
    let issued = wgmma::issue_from_zero::<Const<64>>(a_at, b_at, comptime!(steps()));
    let sums = wgmma::wait::<Const<64>>(issued, comptime!(steps()), 0usize);
    let row = (thread / 32) * 16 + (thread % 32) / 4;
    #[unroll]
    for i in 0..64usize {
        let column = (thread % 4) * 2 + comptime!((i / 4) * 8 + i % 2);
        out[(row + comptime!(i / 2 % 2 * 8)) * 128 + column] = sums.extract(i);
    }
}

fn main() -> Result<(), offline::CannotCompile> {
    let buffer = || BufferCompilationArg { inplace: None };
    let kernel = tile::Tile::new(
        offline::settings(128),
        offline::h100(),
        offline::target(),
        buffer(),
        buffer(),
        buffer(),
    );
    let source = offline::cuda_source(kernel.define())?;
    println!("{}", source.text);
    Ok(())
}
