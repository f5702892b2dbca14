//! The table: plans fit the device and do not depend on anything but the call and what the device offers.

use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan};
use flow_matmul_cube::problem::{Epilogue, Layout, Matmul};
use proptest::prelude::*;

const H100: DeviceCapabilities = DeviceCapabilities {
    multiprocessors: 132,
    hopper: true,
    ampere: true,
    shared_bytes: 227 * 1024,
};

fn any_call() -> impl Strategy<Value = Matmul> {
    let layout = prop::sample::select(vec![Layout::Nt, Layout::Nn, Layout::Tn]);
    let element = prop::sample::select(vec![Element::Bf16, Element::F16, Element::F32]);
    (
        layout,
        1usize..40_000,
        1usize..10_000,
        1usize..40_000,
        0usize..80,
        element,
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(layout, m, n, k, rank, element, [bias, wide, accumulate])| Matmul {
                rank,
                bias,
                output: if wide || accumulate { Element::F32 } else { element },
                epilogue: if accumulate {
                    Epilogue::Accumulate
                } else {
                    Epilogue::Store
                },
                ..Matmul::plain(layout, [m, n, k], element)
            },
        )
}

proptest! {
    #[test]
    fn plans_fit_the_device(call in any_call()) {
        match Plan::new(&call, H100).expect("something computes every product") {
            Plan::Wgmma { tiles, tiling } => {
                prop_assert!(call.element != Element::F32, "f32 is never rounded to TF32");
                prop_assert!(tiles.shared_bytes() <= H100.shared_bytes);
                prop_assert_eq!([tiling.rows, tiling.columns], [tiles.rows(), tiles.columns]);
                // Pieces of 128 bytes take turns at their places.
                let subtile_buffers = tiles.row_groups * tiles.columns * call.output.bytes() / 128;
                prop_assert_eq!(subtile_buffers % tiles.subtile_buffers, 0);
            }
            Plan::Mma { tiles, .. } => {
                prop_assert!(call.element != Element::F32);
                prop_assert!(tiles.shared_bytes() <= H100.shared_bytes);
            }
            Plan::Portable => {}
        }
    }

    #[test]
    fn only_gradients_without_bias_are_cut_into_parts(call in any_call()) {
        let tiling = match Plan::new(&call, H100).expect("something computes every product") {
            Plan::Wgmma { tiling, .. } | Plan::Mma { tiling, .. } => tiling.split_k > 1 || tiling.stream_k,
            Plan::Portable => false,
        };
        prop_assert!(!tiling || call.layout != Layout::Nt && !call.bias);
    }
}

#[test]
fn older_devices_get_older_kernels() {
    let call = Matmul::plain(Layout::Nt, [1024, 1152, 1152], Element::Bf16);
    let name = |capabilities| Plan::new(&call, capabilities).expect("a plan").name();
    assert!(name(H100).starts_with("wgmma_nt_"));
    let ampere = DeviceCapabilities {
        hopper: false,
        ..H100
    };
    assert!(name(ampere).starts_with("mma_nt_"));
    assert_eq!(
        name(DeviceCapabilities {
            ampere: false,
            ..ampere
        }),
        "portable"
    );
}

#[test]
fn calls_that_make_no_sense_are_declined_with_the_reason() {
    let plain = Matmul::plain(Layout::Nt, [8, 8, 8], Element::Bf16);
    let declined = |call: Matmul| Plan::new(&call, H100).expect_err("it makes no sense").to_string();
    assert!(declined(Matmul { k: 0, ..plain }).contains("8 x 8 with 0 summands"));
    assert!(
        declined(Matmul {
            output: Element::F16,
            ..plain
        })
        .contains("bf16 or f32, not of f16")
    );
    let accumulate = Matmul {
        epilogue: Epilogue::Accumulate,
        ..plain
    };
    assert!(declined(accumulate).contains("in f32, not in bf16"));
    let gate = Matmul {
        epilogue: Epilogue::GateAndAdd { tokens: 0 },
        ..plain
    };
    assert!(declined(gate).contains("at least one token"));
}
