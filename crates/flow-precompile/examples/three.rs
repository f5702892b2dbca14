//! Three kernels compiled side by side while the first is launched. With the feature `persistence` and `cache = true` under
//! `[compilation]` in a `cubecl.toml`; without these, or without a GPU, it says what is missing.

use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_precompile::Precompiler;
use flow_precompile::store::KernelStore;
use std::time::Instant;

/// `x <- x^(2^times)`, written out.
#[cube(launch_unchecked)]
fn squared(x: &mut [f32], #[comptime] times: usize) {
    let at = ABSOLUTE_POS;
    let mut value = x[at];
    #[unroll]
    for _ in 0..times {
        value *= value;
    }
    x[at] = value;
}

/// The kernel as the launch below makes it: the same kind, threads and arguments.
fn kernel(client: &Client, times: usize) -> Box<dyn CubeKernel> {
    let settings = KernelSettings::new(*CubeDim::new_1d(32), ExecutionMode::Unchecked, AddressType::U32);
    Box::new(squared::Squared::new(
        settings,
        client.properties_shared(),
        client.target_properties_shared(),
        BufferCompilationArg { inplace: None },
        times,
    ))
}

fn main() {
    let client = match cubecl::Device::cuda(0) {
        Ok(device) => device.client(),
        Err(error) => return println!("no NVIDIA GPU, so nothing to compile for: {error:?}"),
    };
    if KernelStore::open(90).is_none() {
        println!(
            "compiled kernels are not kept (`cache` under `[compilation]` in cubecl.toml): each is compiled at its launch"
        );
    }
    let variants = [100, 200, 400];
    let precompiler = Precompiler::default();
    precompiler.compile(&client, || variants.map(|times| kernel(&client, times)));

    let begun = Instant::now();
    let x = client.create_from_slice(f32::as_bytes(&[1.0; 32]));
    for times in variants {
        // SAFETY: 32 threads for 32 values.
        unsafe {
            squared::launch_unchecked(
                &client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(32),
                BufferArg::from_raw_parts(x.clone(), 32),
                times,
            );
        }
    }
    match client.read_one(x) {
        Ok(bytes) => println!("{} bytes after {:?}", bytes.len(), begun.elapsed()),
        Err(error) => println!("{error:?}"),
    }
}
