//! The compile gate: the CUDA source of every kernel, for the channels of known models, goes through NVRTC and ptxas of
//! CUDA 13.0, without a GPU. Nothing may spill. `cargo xtask ptx` fetches the compilers and runs this.

use flow_cube::gate::{self, Compiler, Gated};
use flow_kernels_cube::Element;
use flow_kernels_cube::sources::sources;

/// Heads of DiT, SD3.5 and Wan, their widths, and an inner one.
const CHANNELS: [usize; 6] = [64, 72, 128, 1152, 1536, 4608];

/// The compilers, where CubeCL looks for them.
fn compiler() -> Compiler {
    let root = std::env::var_os("CUDA_PATH");
    let root = root
        .expect("CUDA_PATH is not set: run `cargo xtask ptx`, which fetches CUDA's compilers and sets it");
    Compiler::new(root.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Registers that a thread may have: three blocks of 128 threads on a multiprocessor.
const BUDGET: usize = 168;

#[test]
fn no_kernel_spills_registers() {
    let elements = [Element::F32, Element::F16, Element::Bf16];
    let all: Vec<_> = elements
        .into_iter()
        .flat_map(|element| CHANNELS.map(|channels| sources(element, channels)))
        .map(|sources| sources.expect("CubeCL compiles the kernels"))
        .collect();
    let gated: Vec<Gated<'_>> = all
        .iter()
        .flatten()
        .map(|source| Gated {
            arch: "sm_90a",
            name: &source.name,
            text: &source.cuda.text,
            budget: BUDGET,
        })
        .collect();
    let wrong = gate::check(&compiler(), &gated);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
