//! Kernels that are named before a call are those that it launches: else they would be compiled ahead for nothing. Needs
//! a Vulkan driver, as the tests of the portable kernel do; nothing is run on it, for it could not run these kernels.

use cubecl_runtime::dry_run::DryRun;
use cubecl_runtime::launched::LaunchedKernels;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan, Prepared};
use flow_matmul_cube::problem::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::tensors::{Matrix, Operands};
use std::collections::HashSet;

const H100: DeviceCapabilities = DeviceCapabilities {
    multiprocessors: 132,
    hopper: true,
    ampere: true,
    shared_bytes: 227 * 1024,
};

#[test]
fn kernels_named_before_a_call_are_those_it_launches() {
    let client = flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"));
    let _nothing_runs = DryRun::new();

    let plain = |layout, size| Matmul::plain(layout, size, Element::Bf16);
    let problems = [
        plain(Layout::Nt, [2048, 1152, 1152]),
        plain(Layout::Nn, [512, 3456, 1152]),
        // In parts, which another kernel sums.
        plain(Layout::Tn, [128, 128, 16_384]),
        Matmul {
            rank: 32,
            bias: true,
            epilogue: Epilogue::Activate {
                activation: Activation::GeluTanh,
                keep_sum: true,
            },
            ..plain(Layout::Nt, [4096, 6144, 1536])
        },
    ];
    let mut splits_k = 0;
    for call in problems {
        let plans = [Plan::new(&call, H100), Plan::mma(&call, H100)];
        for plan in plans.map(|plan| plan.expect("an H100 computes the call")) {
            let prepared = Prepared::with(&client, call, plan).expect("the plan is of the call");
            let kernels = prepared.kernels();
            let named: HashSet<_> = kernels.iter().map(|kernel| kernel.id().stable_hash()).collect();
            assert!(!named.is_empty(), "{}", plan.name());

            let matrix =
                |rows, columns| Matrix::contiguous(client.empty(2 * rows * columns), [rows, columns]);
            let (m, n, k, rank) = (call.m, call.n, call.k, call.rank);
            let (a, b) = match call.layout {
                Layout::Nt => (matrix(m, k), matrix(n, k)),
                Layout::Nn => (matrix(m, k), matrix(k, n)),
                Layout::Tn => (matrix(k, m), matrix(k, n)),
            };
            let (d, other, bias) = (matrix(m, n), matrix(m, n), client.empty(2 * n));
            let low_rank = (rank > 0).then(|| [matrix(m, rank), matrix(n, rank)]);
            let operands = Operands {
                low_rank: low_rank.as_ref().map(|[t, u]| [t, u]),
                bias: call.bias.then_some(&bias),
                other: (rank > 0).then_some(&other),
                ..Operands::new(&a, &b, &d)
            };
            let collection = LaunchedKernels::new();
            prepared
                .run(&operands)
                .expect("the operands are those of the call");
            let launched = collection.finish();

            let of_launched = named.iter().filter(|kernel| launched.contains(*kernel)).count();
            assert_eq!(of_launched, named.len(), "{} of {call:?}", plan.name());
            // What adds parts up is small, and not named.
            let split_k = usize::from(plan.name().contains("_in_") || plan.name().ends_with("_balanced"));
            assert_eq!(
                launched.len(),
                named.len() + split_k,
                "{} of {call:?}",
                plan.name()
            );
            splits_k += split_k;
        }
    }
    assert!(splits_k > 0, "no call was split along k");
}
