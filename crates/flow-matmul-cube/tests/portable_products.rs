//! The portable kernel on Vulkan, on the cases. Needs a Vulkan driver: Mesa's lavapipe will do, as in CI.

use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::cases::{Both, Case, problems, wrong, wrong_groups, wrong_sums};
use flow_matmul_cube::prepared::{Plan, Prepared};
use flow_matmul_cube::problem::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::reduce_split_k::{ReducedTiles, ResultSizesLaunch, reduce_split_k};
use flow_matmul_cube::tensors::Matrix;

fn client() -> Client {
    flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"))
}

/// Sizes that blocks do not divide, and that they do.
const SIZES: [[usize; 3]; 6] = [
    [1, 1, 1],
    [13, 7, 13],
    [64, 64, 64],
    [77, 136, 333],
    [333, 78, 77],
    [130, 66, 1357],
];

fn check(client: &Client, layout: Layout, element: Element, sizes: &[[usize; 3]]) {
    let wrong: Vec<String> = problems(layout, element, sizes)
        .into_iter()
        // Forward has all epilogues; each kernel takes seconds to compile.
        .filter(|call| {
            use Epilogue::*;
            layout == Layout::Nt
                || matches!(
                    call.epilogue,
                    Store | Accumulate | Add | TimesDerivative(Activation::Silu)
                )
        })
        .filter_map(|call| wrong(client, call, Plan::Portable).map(|why| format!("{call:?}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layers_forward_are_right_in_f32() {
    check(&client(), Layout::Nt, Element::F32, &SIZES);
}

#[test]
fn data_gradients_are_right_in_f32() {
    check(&client(), Layout::Nn, Element::F32, &SIZES);
}

#[test]
fn weight_gradients_are_right_in_f32() {
    check(&client(), Layout::Tn, Element::F32, &SIZES);
}

#[test]
fn column_sums_are_right_and_add_up_to_what_is_there() {
    let client = client();
    for (shape, accumulate) in [([1, 1], false), ([13, 77], true), ([1357, 334], false)] {
        for element in [Element::F32, Element::F16] {
            let wrong = wrong_sums(&client, shape, element, accumulate);
            assert_eq!(wrong, None, "{shape:?} {element:?}");
        }
    }
}

#[test]
fn factors_in_f16_give_sums_in_f32() {
    check(&client(), Layout::Nt, Element::F16, &SIZES[3..4]);
}

#[test]
fn bf16_is_right_where_the_device_has_it_and_is_declined_with_advice_elsewhere() {
    let client = client();
    let call = Matmul::plain(Layout::Nt, [77, 136, 333], Element::Bf16);
    match Prepared::with(&client, call, Plan::Portable) {
        Ok(_) => check(&client, Layout::Nt, Element::Bf16, &SIZES[3..4]),
        Err(error) => assert!(error.to_string().contains("bf16; use f32"), "{error}"),
    }
}

#[test]
fn groups_of_rows_have_a_factor_each_and_empty_groups_are_zero_gradients() {
    let client = client();
    for sizes in [&[70, 0, 1, 130][..], &[0, 64, 0], &[3]] {
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            for element in [Element::F32, Element::F16] {
                let wrong = wrong_groups(&client, layout, sizes, [78, 45], element, Plan::Portable);
                assert_eq!(wrong, None, "{layout:?} {sizes:?} {element:?}");
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_the_other_rows() {
    let client = client();
    let call = Matmul {
        rank: 8,
        bias: true,
        epilogue: Epilogue::Activate {
            activation: Activation::GeluTanh,
            keep_sum: false,
        },
        ..Matmul::plain(Layout::Nt, [130, 66, 200], Element::F32)
    };
    let case = Case::new(&client, call, 3);
    let run = |m: usize| {
        let d = Both::poisoned(&client, [m, call.n], Element::F32);
        let first_rows = |x: &Matrix| Matrix { rows: m, ..x.clone() };
        let a = first_rows(&case.a.device);
        let t = first_rows(&case.low_rank.as_ref().expect("a second pair")[0].device);
        let mut operands = case.operands();
        operands.a = &a;
        operands.low_rank = operands.low_rank.map(|[_, u]| [&t, u]);
        operands.d = &d.device;
        Prepared::with(&client, Matmul { m, ..call }, Plan::Portable)
            .and_then(|prepared| prepared.run(&operands))
            .expect("it runs");
        d.bytes(&client)
    };
    let all = run(130);
    for m in [1, 13, 64, 77] {
        let some = run(m);
        assert_eq!(some[..], all[..some.len()], "{m} rows");
    }
}

/// Fails unless `operands` of `call` are declined with words that hold `part`.
fn declines(client: &Client, call: Matmul, change: impl Fn(&mut Case), part: &str) {
    let mut case = Case::new(client, call, 1);
    change(&mut case);
    let error = Prepared::with(client, call, Plan::Portable)
        .and_then(|prepared| prepared.run(&case.operands()))
        .expect_err(part)
        .to_string();
    assert!(error.contains(part), "`{error}` does not say `{part}`");
}

#[test]
fn operands_that_are_not_the_calls_are_declined_with_the_reason() {
    let client = client();
    let call = Matmul {
        rank: 4,
        bias: true,
        epilogue: Epilogue::GateAndAdd { tokens: 2 },
        ..Matmul::plain(Layout::Nn, [5, 6, 7], Element::F32)
    };
    declines(
        &client,
        call,
        |on| on.a.device.columns = 8,
        "`a` is [5, 8], but must be [5, 7]",
    );
    declines(
        &client,
        call,
        |on| on.b.device.stride = 2,
        "`b` has rows of 6 elements that begin 2 apart",
    );
    declines(&client, call, |on| on.d.device.stride = 900, "`d` reaches byte");
    declines(&client, call, |on| on.low_rank = None, "`low_rank` is missing");
    declines(&client, call, |on| on.bias = None, "`bias` is missing");
    declines(&client, call, |on| on.gate = None, "`gate` is missing");
    declines(&client, call, |on| on.other = None, "`other` is missing");
    let plain = Matmul::plain(Layout::Nt, [5, 6, 7], Element::F32);
    declines(
        &client,
        plain,
        |on| on.bias = Some(Both::poisoned(&client, [1, 6], Element::F32)),
        "`bias` is given",
    );
}

#[test]
fn tiles_of_sums_are_added_up_where_the_table_says() {
    let client = client();
    // Two tiles of 128 x 64, of two sums and of three, of a result of 130 x 70 at rows of 72.
    let (m, n, stride, tile) = (130usize, 70usize, 72usize, 128 * 64);
    let sums: Vec<f32> = (0..5 * tile).map(|i| (i % 1013) as f32).collect();
    let table: [u32; 8] = [128, 0, 0, 2, 0, 64, 2, 3];
    let d = client.create_from_slice(f32::as_bytes(&vec![-1.0; m * stride]));
    // SAFETY: the buffers hold the sums, the table and the result that the sizes say.
    unsafe {
        reduce_split_k::launch_unchecked(
            &client,
            CubeCount::Static(2, 128 / 4, 1),
            CubeDim::new_1d(256),
            BufferArg::from_raw_parts(client.create_from_slice(f32::as_bytes(&sums)), sums.len()),
            BufferArg::from_raw_parts(client.create_from_slice(u32::as_bytes(&table)), table.len()),
            BufferArg::from_raw_parts(d.clone(), m * stride),
            ResultSizesLaunch::new(m as u32, n as u32, stride as u32),
            ReducedTiles {
                rows: 128,
                columns: 64,
                accumulate: false,
            },
            f32::elem_type_native(),
        );
    }
    let bytes = client.read_one(d).expect("the device gives its memory back");
    let got = f32::from_bytes(&bytes);
    for row in 0..m {
        for column in 0..stride {
            let at = |workspace_tile: usize, r: usize, c: usize| sums[workspace_tile * tile + r * 64 + c];
            let want = match (row / 128, column / 64) {
                (1, 0) => at(0, row - 128, column) + at(1, row - 128, column),
                (0, 1) if column < n => (2..5)
                    .map(|workspace_tile| at(workspace_tile, row, column - 64))
                    .sum(),
                _ => -1.0,
            };
            assert_eq!(got[row * stride + column], want, "row {row} column {column}");
        }
    }
}
