//! Correctness on a device: every epilogue, awkward sizes, all tiles, against f64.

use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::cases::{Both, Case, SIZES, decode, problems, wrong, wrong_groups, wrong_sums};
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan, Prepared};
use flow_matmul_cube::problem::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::schedule::Tiling;
use flow_matmul_cube::tensors::Matrix;
use flow_matmul_cube::wgmma::select::{self, Shape, shape, tiling};

/// The plan with tiles `kind`, its summands in `split_k` parts.
pub fn plan(call: &Matmul, capabilities: DeviceCapabilities, kind: Shape, split_k: usize) -> Plan {
    let operand_type = select::check(call).expect("tensor cores take the call");
    let tiles = shape(call, operand_type, kind);
    let tiling = Tiling {
        split_k,
        stream_k: split_k == 0,
        ..tiling(&tiles, capabilities.multiprocessors)
    };
    Plan::Wgmma { tiles, tiling }
}

/// The plan with tiles `kind`, its summands whole; with none, that of the table. Prints why there is none.
pub fn planned(call: &Matmul, capabilities: DeviceCapabilities, kind: Option<Shape>) -> Option<Plan> {
    let Some(kind) = kind else {
        let plan = Plan::new(call, capabilities);
        return plan
            .map_err(|error| println!("  WRONG {call:?}: declined: {error}"))
            .ok();
    };
    Some(plan(call, capabilities, kind, 1))
}

/// Whether a call's results hold; prints why they do not.
pub fn holds(client: &Client, call: Matmul, plan: Plan) -> bool {
    let why = wrong(client, call, plan);
    if let Some(why) = &why {
        println!("  WRONG {} {call:?}: {why}", plan.name());
    }
    why.is_none()
}

/// The cases of a layout on older tensor cores' kernel, summands whole and in parts.
pub fn older(client: &Client, capabilities: DeviceCapabilities, layout: Layout, element: Element) -> bool {
    let (mut good, mut count) = (true, 0);
    for call in problems(layout, element, &SIZES) {
        let Ok(plan) = Plan::mma(&call, capabilities) else {
            // Odd numbers of columns.
            continue;
        };
        let Plan::Mma { tiles, tiling } = plan else {
            continue;
        };
        let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
        for split_k in [1, 2, 3].into_iter().take(if simple { 3 } else { 1 }) {
            let plan = Plan::Mma {
                tiles: flow_matmul_cube::mma::Tiles {
                    splits_k: split_k > 1,
                    ..tiles
                },
                tiling: Tiling { split_k, ..tiling },
            };
            count += 1;
            good &= holds(client, call, plan);
        }
    }
    println!(
        "  mma {layout:?} {}: {count} products {}",
        element.name(),
        if good { "ok" } else { "WRONG" }
    );
    good
}

/// One product, with what the device says of it and where it is off.
pub fn one(client: &Client, call: Matmul, plan: Plan) -> bool {
    let case = Case::new(client, call, 5);
    let done = Prepared::with(client, call, plan).and_then(|prepared| prepared.run(&case.operands()));
    let synced = cubecl::future::block_on(client.sync());
    println!("  {} {done:?}, the device says {synced:?}", plan.name());
    if done.is_err() || synced.is_err() {
        return false;
    }
    let bytes = case.d.bytes(client);
    let (mut off, mut shown, mut nan) = (0, 0, 0);
    for i in 0..call.m {
        for j in 0..call.n {
            let at = (i * case.d.device.stride + j) * call.output.bytes();
            let got = decode(&bytes[at..at + call.output.bytes()], call.output);
            let want = case.result(i, j);
            nan += usize::from(got.is_nan());
            if got.is_nan() || (got - want).abs() > 0.02 * want.abs() + 0.02 {
                off += 1;
                if shown < 8 {
                    println!("    row {i} column {j}: {got} instead of {want}");
                    shown += 1;
                }
            }
        }
    }
    println!("  {off} of {} off, {nan} NaN", call.m * call.n);
    off == 0
}

/// Groups of rows, some of them empty, against f64.
pub fn groups(client: &Client, capabilities: DeviceCapabilities) -> bool {
    let mut good = true;
    for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
        for (sizes, [n, k]) in [
            (&[5usize, 0, 130, 1, 64][..], [136, 200]),
            (&[128, 256], [128, 64]),
            (&[0, 0, 77, 333, 0], [64, 333]),
            (&[1000, 1, 900, 1200, 3, 128, 512, 0], [384, 456]),
        ] {
            let size = match layout {
                Layout::Tn => [n, k, 1],
                _ => [1, n, k],
            };
            let call = Matmul {
                groups: sizes.len(),
                ..Matmul::plain(layout, size, Element::Bf16)
            };
            // The columns of a weight gradient are k here, and must be even, too.
            let Ok(plan) = Plan::mma(&call, capabilities) else {
                continue;
            };
            if let Some(why) = wrong_groups(client, layout, sizes, [n, k], Element::Bf16, plan) {
                println!("  WRONG groups {layout:?} {sizes:?} {n} {k}: {why}");
                good = false;
            }
        }
    }
    println!("  groups: {}", if good { "ok" } else { "WRONG" });
    good
}

/// Column sums against f64.
pub fn sums(client: &Client) -> bool {
    let mut good = true;
    for (shape, accumulate) in [
        ([1, 1], false),
        ([13, 77], true),
        ([1357, 334], false),
        ([16_384, 1152], true),
    ] {
        for element in [Element::Bf16, Element::F16, Element::F32] {
            let problem = wrong_sums(client, shape, element, accumulate);
            if let Some(why) = &problem {
                println!("  WRONG column sums of {shape:?} {}: {why}", element.name());
                good = false;
            }
        }
    }
    println!("  column sums: {}", if good { "ok" } else { "WRONG" });
    good
}

/// The cases of a layout with one kind of tiles; with none, with those of the table.
pub fn cases(
    client: &Client,
    capabilities: DeviceCapabilities,
    layout: Layout,
    element: Element,
    kind: Option<Shape>,
) -> bool {
    let (mut good, mut count) = (true, 0);
    for call in problems(layout, element, &SIZES) {
        if kind.is_some() && select::check(&call).is_err() {
            // Rows that do not end at 16 bytes.
            continue;
        }
        let Some(plan) = planned(&call, capabilities, kind) else {
            good = false;
            continue;
        };
        count += 1;
        good &= holds(client, call, plan);
        let splits = matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate) && !call.bias;
        if splits && let Some(kind) = kind {
            // 0: balanced.
            for split_k in [2, 3, 0] {
                let plan = self::plan(&call, capabilities, kind, split_k);
                count += 1;
                good &= holds(client, call, plan);
            }
        }
    }
    println!(
        "  {layout:?} {} {kind:?}: {count} products {}",
        element.name(),
        if good { "ok" } else { "WRONG" }
    );
    good
}

/// Big shapes, by the table, on sampled elements.
pub fn big(client: &Client, capabilities: DeviceCapabilities) -> bool {
    let mut good = true;
    for (layout, size) in [
        (Layout::Nt, [16_384, 1152, 1152]),
        (Layout::Nt, [21_712, 1536, 1536]),
        (Layout::Nn, [16_384, 1152, 4608]),
        (Layout::Tn, [1152, 1152, 16_384]),
        (Layout::Tn, [1536, 32, 21_712]),
        (Layout::Nt, [21_712, 32, 1536]),
    ] {
        let call = Matmul::plain(layout, size, Element::Bf16);
        let plan = match Plan::new(&call, capabilities) {
            Ok(plan) => plan,
            Err(error) => {
                println!("  WRONG {call:?}: {error}");
                return false;
            }
        };
        let problem = wrong(client, call, plan);
        println!(
            "  {layout:?} {size:?} {}: {}",
            plan.name(),
            problem.as_deref().unwrap_or("ok")
        );
        good &= problem.is_none();
    }
    good
}

/// Whether a row's bits depend on other rows, on how many there are, or on the tiles.
pub fn rows_alone(client: &Client, capabilities: DeviceCapabilities) -> bool {
    let mut good = true;
    for layout in [Layout::Nt, Layout::Nn] {
        let mut known: Option<Vec<u8>> = None;
        for (m, kind) in [
            (700, Some(Shape::PingPong)),
            (700, Some(Shape::Wide)),
            (700, Some(Shape::Large)),
            (700, Some(Shape::Small)),
            (700, Some(Shape::Narrow)),
            (700, None),
            (333, None),
            (64, None),
            (1, None),
        ] {
            let call = Matmul {
                bias: true,
                rank: 32,
                epilogue: Epilogue::Activate {
                    activation: Activation::GeluTanh,
                    keep_sum: false,
                },
                ..Matmul::plain(layout, [m, 520, 1000], Element::Bf16)
            };
            let plan = match kind {
                Some(kind) => plan(&call, capabilities, kind, 1),
                None => Plan::new(&call, capabilities).expect("the device takes the call"),
            };
            // The matrices of 700 rows, cut off.
            let whole = Case::new(client, Matmul { m: 700, ..call }, 9);
            let d = Both::poisoned(client, [m, call.n], Element::Bf16);
            let first_rows = |x: &Matrix| Matrix { rows: m, ..x.clone() };
            let (a, t) = (
                first_rows(&whole.a.device),
                first_rows(&whole.low_rank.as_ref().expect("a second pair")[0].device),
            );
            let mut operands = whole.operands();
            operands.a = &a;
            operands.low_rank = operands.low_rank.map(|[_, u]| [&t, u]);
            operands.d = &d.device;
            let done = Prepared::with(client, call, plan).and_then(|prepared| prepared.run(&operands));
            let bytes = d.bytes(client);
            let same = match &known {
                None => true,
                Some(known) => known[..bytes.len()] == bytes[..],
            };
            if done.is_err() || !same {
                println!(
                    "  WRONG rows of {layout:?} with m {m} {}: bits differ, or {done:?}",
                    plan.name()
                );
                good = false;
            }
            known.get_or_insert(bytes);
        }
    }
    println!("  rows alone: {}", if good { "ok" } else { "WRONG" });
    good
}
