//! The compile check: the CUDA source of every kernel that the tables choose goes through NVRTC and ptxas of CUDA 13.0,
//! without a GPU. Nothing may spill, leave its budget of registers, or make ptxas wait after each `wgmma` (C75xx).
//!
//! `cargo xtask ptx` fetches the compilers and runs this; they are looked for where CubeCL does, at `CUDA_PATH`.

use flow_attention_cube::mma::Mma;
use flow_attention_cube::prepared::DeviceCapabilities;
use flow_attention_cube::problem::Problem;
use flow_attention_cube::sources::{Source, Sources, sources};
use flow_attention_cube::wgmma::Wgmma;
use flow_cube::compile_check::{self, CheckedKernel, Compiler};
use flow_cube::wgmma::OperandType;
use std::collections::BTreeMap;

#[path = "ptx/block_mask.rs"]
mod block_mask;
#[path = "ptx/softmax.rs"]
mod softmax;

const HEAD_DIMS: [usize; 7] = [40, 64, 72, 96, 128, 192, 256];

/// Shared memory of a block, in bytes: compute capability 8.6 and 8.9, 8.0, 9.0 (CUDA programming guide, table of technical
/// specifications).
const SHARED: [(&str, usize); 3] = [
    ("sm_89", 99 * 1024),
    ("sm_80", 163 * 1024),
    ("sm_90a", 227 * 1024),
];

/// Kernels by architecture and name; calls have many in common.
type Kernels = BTreeMap<(&'static str, String), Source>;

fn add<K: Sources>(
    to: &mut Kernels,
    (arch, shared_bytes): (&'static str, usize),
    operand_type: OperandType,
    whole: bool,
) {
    for head_dim in HEAD_DIMS {
        // With or without a mask, in one or two parts; for the common heads all four, for others the ends.
        for (masked, two_segments) in [(false, false), (true, false), (false, true), (true, true)] {
            if masked != two_segments && !(whole && [64, 128].contains(&head_dim)) {
                continue;
            }
            for [queries, keys] in [[4096, 1024], [4096, 8192], [1024, 8192]] {
                let keys = [keys, if two_segments { 333 } else { 0 }];
                let problem = Problem {
                    batch: 1,
                    heads: 8,
                    kv_heads: 4,
                    queries,
                    keys,
                    head_dim,
                    operand_type,
                };
                let all = sources::<K>(&problem, masked, DeviceCapabilities { shared_bytes })
                    .expect("CubeCL compiles the kernels");
                to.extend(
                    all.into_iter()
                        .map(|source| ((arch, source.name.clone()), source)),
                );
            }
        }
    }
}

/// Registers that a thread may have, so that as many blocks as the tables count on are on a multiprocessor.
fn budget(name: &str) -> usize {
    match name.split('_').collect::<Vec<_>>()[..3] {
        // Two blocks of 256 threads.
        ["mma", "forward", "40" | "64"] => 128,
        // Three blocks of 128 threads.
        ["wgmma", "forward" | "queries", "40" | "64"] => 168,
        _ => 255,
    }
}

/// The compilers, where CubeCL looks for them.
fn compiler() -> Compiler {
    let root = std::env::var_os("CUDA_PATH");
    let root = root
        .expect("CUDA_PATH is not set: run `cargo xtask ptx`, which fetches CUDA's compilers and sets it");
    Compiler::new(root.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

fn check(kernels: Kernels) {
    for ((arch, name), source) in &kernels {
        let (_, limit) = SHARED
            .iter()
            .find(|(known, _)| known == arch)
            .expect("a known architecture");
        let bytes = source.cuda.shared_memory_bytes;
        assert!(
            bytes <= *limit,
            "{name} for {arch}: {bytes} bytes of shared memory, there are {limit}"
        );
    }
    let gated: Vec<CheckedKernel<'_>> = kernels
        .iter()
        .map(|((arch, name), source)| CheckedKernel {
            arch,
            name,
            text: &source.cuda.text,
            budget: budget(name),
        })
        .collect();
    let wrong = compile_check::check(&compiler(), &gated);
    println!("{} kernels compiled", gated.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn wgmma_kernels_keep_their_registers_and_stay_asynchronous() {
    let mut kernels = Kernels::new();
    add::<Wgmma>(&mut kernels, SHARED[2], OperandType::Bf16, true);
    check(kernels);
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn mma_kernels_keep_their_registers_on_all_architectures() {
    let mut kernels = Kernels::new();
    add::<Mma>(&mut kernels, SHARED[0], OperandType::F16, false);
    add::<Mma>(&mut kernels, SHARED[1], OperandType::Bf16, false);
    add::<Mma>(&mut kernels, SHARED[2], OperandType::Bf16, true);
    check(kernels);
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn a_kernel_that_spills_is_noticed() {
    let compiler = compiler();
    // A thousand values that live across a barrier.
    let source = "extern \"C\" __global__ void __launch_bounds__(1024) greedy(float *x) {
        float v[1000];
        #pragma unroll
        for (int i = 0; i < 1000; ++i) v[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 1000; ++i) x[i * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 1) % 1000];
    }";
    let report = compiler.compile("sm_80", source).expect("it compiles");
    assert!(report.problem(255).expect("something is wrong").contains("spill"));
}
