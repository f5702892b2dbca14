//! Products of FP8 codes and rows that are quantised, on Vulkan: what devices without tensor cores for FP8 compute. Needs a Vulkan driver:
//! Mesa's lavapipe will do, as in CI.

use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::cases::{
    Both, Case, Random, other_bits, problems_of_codes, wrong, wrong_codes, wrong_columns,
};
use flow_matmul_cube::fp8::{Quantised, quantise_rows};
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan, Prepared};
use flow_matmul_cube::problem::{Accumulation, Activation, Epilogue, Layout, Matmul, Storage};
use flow_matmul_cube::tensors::{Matrix, Operands};

/// Sizes that neither blocks nor words of codes divide, and some that they do.
const SIZES: [[usize; 3]; 3] = [[1, 8, 16], [77, 136, 333], [129, 78, 77]];

fn client() -> Client {
    flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"))
}

fn codes(layout: Layout, size: [usize; 3], element: Element) -> Matmul {
    Matmul {
        storage: match layout {
            Layout::Nt => Storage::E4m3(Accumulation::Promoted),
            _ => Storage::E4m3B,
        },
        ..Matmul::plain(layout, size, element)
    }
}

#[test]
fn products_of_codes_are_those_of_their_values_with_every_epilogue() {
    let client = client();
    let is_tried = |call: &Matmul| {
        // Each kernel takes seconds to compile.
        let gelu = Activation::GeluTanh;
        let kept = Epilogue::Activate {
            activation: gelu,
            keep_sum: true,
        };
        call.layout == Layout::Nn
            || matches!(
                call.epilogue,
                Epilogue::Accumulate | Epilogue::GateAndAdd { .. } | Epilogue::Add
            )
            || call.epilogue == Epilogue::Store && call.output == call.element
            || call.epilogue == kept
    };
    let calls = problems_of_codes(Accumulation::Promoted, Element::F32, &SIZES);
    let wrong: Vec<String> = calls
        .into_iter()
        .filter(is_tried)
        .filter_map(|call| wrong(&client, call, Plan::Portable).map(|why| format!("{call:?}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn codes_are_widened_exactly_to_numbers_of_16_bits() {
    let client = client();
    for layout in [Layout::Nt, Layout::Nn] {
        let call = codes(layout, SIZES[1], Element::F16);
        assert_eq!(wrong(&client, call, Plan::Portable), None, "{layout:?}");
    }
}

#[test]
fn rows_get_the_scale_and_the_codes_that_the_format_defines() {
    let client = client();
    for shape in [[1, 1], [3, 7], [77, 130], [129, 77], [4, 2304]] {
        for element in [Element::F32, Element::F16] {
            assert_eq!(
                wrong_codes(&client, shape, element),
                None,
                "{shape:?} {element:?}"
            );
        }
    }
}

#[test]
fn columns_get_the_codes_and_scales_of_the_rows_of_the_transpose() {
    let client = client();
    for shape in [[1, 1], [7, 3], [130, 77], [77, 130], [257, 33], [600, 64]] {
        for element in [Element::F32, Element::F16] {
            assert_eq!(
                wrong_columns(&client, shape, element),
                None,
                "{shape:?} {element:?}"
            );
        }
    }
    let nothing = Matrix::contiguous(client.empty(4), [0, 5]);
    let error = Quantised::of_columns(&client, &nothing, Element::F32);
    let error = error.expect_err("no rows").to_string();
    assert!(error.contains("nothing to quantise"), "{error}");
}

#[test]
fn a_rows_bits_depend_on_no_other_row() {
    let client = client();
    let mut random = Random(7);
    let [m, n, k] = [129, 78, 77];
    let mut matrix = |shape| Both::random(&client, shape, Element::F32, 1.0, &mut random);
    let (x, w) = (matrix([m, k]), matrix([n, k]));
    let w = Quantised::new(&client, &w.device, Element::F32).expect("a matrix of numbers");
    let run = |m: usize| {
        let rows = Matrix {
            rows: m,
            ..x.device.clone()
        };
        let x = Quantised::new(&client, &rows, Element::F32).expect("a matrix of numbers");
        let d = Both::poisoned(&client, [m, n], Element::F32);
        let operands = Operands {
            scales: [Some(&x.scales), Some(&w.scales)],
            ..Operands::new(&x.codes, &w.codes, &d.device)
        };
        Prepared::new(&client, codes(Layout::Nt, [m, n, k], Element::F32))
            .and_then(|prepared| prepared.run(&operands))
            .expect("it runs");
        d.bytes(&client)
    };
    let all = run(m);
    for m in [1, 13, 77] {
        let some = run(m);
        assert_eq!(some[..], all[..some.len()], "{m} rows");
    }
}

#[test]
fn a_sums_bits_do_not_depend_on_whether_it_is_stored_kept_or_activated() {
    let client = client();
    let found = other_bits(&client, SIZES[2], Element::F32, |_| vec![Plan::Portable]);
    assert_eq!(found, None);
}

#[test]
fn what_is_no_product_of_codes_is_declined_with_the_reason() {
    let client = client();
    let declined = |call: Matmul| call.check().expect_err("it makes no sense").to_string();
    let call = codes(Layout::Nt, [5, 6, 7], Element::F32);
    let turned = Matmul {
        layout: Layout::Nn,
        ..call
    };
    assert!(declined(turned).contains("Storage::E4m3B"));
    assert!(declined(Matmul { groups: 2, ..call }).contains("no groups of rows"));
    let weight_gradient = Matmul {
        layout: Layout::Tn,
        storage: Storage::E4m3B,
        ..call
    };
    assert!(declined(weight_gradient).contains("Nt and Nn"));

    let declines = |change: fn(&mut Case), part: &str| {
        let mut case = Case::new(&client, call, 1);
        change(&mut case);
        let error = Prepared::with(&client, call, Plan::Portable)
            .and_then(|prepared| prepared.run(&case.operands()))
            .expect_err(part)
            .to_string();
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    };
    declines(|case| case.scales[0] = None, "`scales[0]` is missing");
    declines(
        |case| case.a.device.stride = 18,
        "begin 18 bytes apart; the kernels want a multiple of 4",
    );
    declines(
        |case| {
            if let Some(scales) = &mut case.scales[1] {
                scales.start = 900;
            }
        },
        "`scales[1]` reaches byte",
    );

    let x = Both::poisoned(&client, [5, 7], Element::F32);
    let room = Quantised::empty(&client, [5, 8]);
    let error = quantise_rows(&client, &x.device, Element::F32, &room.codes, &room.scales);
    let error = error.expect_err("codes of another shape").to_string();
    assert!(error.contains("`codes` is [5, 8], but must be [5, 7]"), "{error}");
}

#[test]
fn devices_without_tensor_cores_for_fp8_multiply_the_codes_values() {
    let hopper = DeviceCapabilities {
        multiprocessors: 132,
        hopper: true,
        ampere: true,
        shared_bytes: 227 * 1024,
    };
    let ampere = DeviceCapabilities {
        hopper: false,
        ..hopper
    };
    let name = |call: &Matmul, capabilities| Plan::new(call, capabilities).expect("a plan").name();
    let call = codes(Layout::Nt, [21_712, 6144, 1536], Element::Bf16);
    assert!(name(&call, hopper).ends_with("_e4m3"));
    let fast = Matmul {
        storage: Storage::E4m3(Accumulation::Fast),
        ..call
    };
    assert!(name(&fast, hopper).ends_with("_e4m3_fast"));
    assert!(name(&call, ampere).starts_with("mma_nt_"));
    // Sums of codes are scaled before the second pair is added, which `mma` does not do.
    assert_eq!(name(&Matmul { rank: 32, ..call }, ampere), "portable");
    // Codes are copied in pairs.
    assert!(name(&Matmul { k: 1537, ..call }, hopper).starts_with("mma_nt_"));
    let gradient = codes(Layout::Nn, [21_712, 1536, 6144], Element::Bf16);
    assert!(name(&gradient, hopper).starts_with("wgmma_nn_"));
}
