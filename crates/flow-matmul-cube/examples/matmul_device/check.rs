//! Correctness on a device: every epilogue, awkward sizes, all tiles, against f64.

use crate::data::{Case, Random, decode};
use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::call::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::run::{Offer, Plan, Prepared};
use flow_matmul_cube::tensors::Matrix;
use flow_matmul_cube::wgmma::select::{self, Shape, shape};

/// Sizes `[m, n, k]` that tiles do not divide, and some that they do.
const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 64, 64],
    [13, 8, 13],
    [77, 136, 333],
    [128, 192, 64],
    [333, 78, 1357],
    [1357, 334, 77],
    [600, 520, 200],
    [1100, 1544, 456],
];

/// All calls of the catalogue for one layout.
pub fn calls(layout: Layout, element: Element) -> Vec<Matmul> {
    let mut out = Vec::new();
    for size in SIZES {
        let plain = Matmul::plain(layout, size, element);
        let even = size[1].is_multiple_of(2);
        let f32 = |epilogue| Matmul {
            output: Element::F32,
            epilogue,
            ..plain
        };
        let with = |epilogue, rank| Matmul {
            epilogue,
            rank,
            bias: even,
            ..plain
        };
        out.extend([
            plain,
            f32(Epilogue::Store),
            f32(Epilogue::Accumulate),
            Matmul { rank: 32, ..plain },
            with(Epilogue::Store, 0),
        ]);
        for activation in [Activation::GeluTanh, Activation::Silu] {
            for keep_sum in [false, true] {
                out.push(with(Epilogue::Activate { activation, keep_sum }, if keep_sum { 8 } else { 0 }));
            }
            out.push(with(Epilogue::TimesDerivative(activation), 0));
        }
        if even {
            for tokens in [1, 50, 4096] {
                out.push(with(Epilogue::GateAndAdd { tokens }, 72));
            }
        }
    }
    out
}

/// Relative L2 distance of `got` on rows and columns, all of them or some, and whether every number is one.
fn distance(got: &[u8], matrix: &Matrix, element: Element, want: impl Fn(usize, usize) -> f64, work: usize) -> f64 {
    let all = matrix.rows * matrix.columns;
    let size = element.bytes();
    let value = |i: usize, j: usize| {
        let at = (i * matrix.stride + j) * size;
        decode(&got[at..at + size], element)
    };
    for i in 0..matrix.rows {
        for j in 0..matrix.columns {
            if !value(i, j).is_finite() {
                return f64::INFINITY;
            }
        }
        // Gaps hold NaN before and after.
        let row = &got[i * matrix.stride * size..(i + 1) * matrix.stride * size];
        if row[matrix.columns * size..].iter().any(|byte| *byte != 0xff) {
            return f64::INFINITY;
        }
    }
    let mut random = Random(77);
    let some = (all * work > 20_000_000).then(|| (20_000_000 / work).clamp(200, all));
    let (mut off, mut of) = (0.0, 0.0);
    for s in 0..some.unwrap_or(all) {
        let at = if some.is_some() { random.word() as usize % all } else { s };
        let (i, j) = (at / matrix.columns, at % matrix.columns);
        let want = want(i, j);
        off += (value(i, j) - want).powi(2);
        of += want * want;
    }
    (off / of.max(1e-30)).sqrt()
}

fn limit(element: Element) -> f64 {
    match element {
        Element::F32 => 2e-5,
        Element::F16 => 6e-4,
        Element::Bf16 => 4e-3,
    }
}

/// Computes a call twice and compares; says what is wrong.
fn wrong(client: &Client, call: Matmul, plan: Plan) -> Option<String> {
    let prepared = match Prepared::with(client, call, plan) {
        Ok(prepared) => prepared,
        Err(error) => return Some(format!("declined: {error}")),
    };
    let pass = || {
        let case = Case::new(client, call, 5);
        if let Err(error) = prepared.run(&case.operands()) {
            return Err(format!("declined: {error}"));
        }
        let d = case.d.bytes(client);
        let kept = call.epilogue.writes_other().then(|| {
            let other = case.other.as_ref().expect("there is a place for sums");
            other.bytes(client)
        });
        Ok((case, d, kept))
    };
    let (case, d, kept) = match pass() {
        Ok(done) => done,
        Err(error) => return Some(error),
    };
    let work = call.k + call.rank;
    let error = distance(&d, &case.d.device, call.output, |i, j| case.result(i, j), work);
    if error.is_nan() || error > limit(call.output) {
        return Some(format!("result off by {error:.1e}"));
    }
    if let (Some(kept), Some(other)) = (&kept, &case.other) {
        let error = distance(kept, &other.device, call.element, |i, j| case.sum(i, j), work);
        if error.is_nan() || error > limit(call.element) {
            return Some(format!("sums off by {error:.1e}"));
        }
    }
    match pass() {
        Ok((_, again, kept_again)) if again == d && kept_again == kept => None,
        Ok(_) => Some("two runs differ".into()),
        Err(error) => Some(error),
    }
}

/// The plan with tiles `kind`, its summands in `parts` parts.
pub fn plan(call: &Matmul, offer: Offer, kind: Shape, parts: usize) -> Plan {
    let factor = select::check(call).expect("tensor cores take the call");
    let tiles = shape(call, factor, kind);
    let Ok(Plan::Wgmma { cut, .. }) = Plan::new(call, offer) else {
        panic!("the device takes the call");
    };
    let cut = flow_matmul_cube::schedule::Cut {
        rows: tiles.rows(),
        columns: tiles.columns,
        parts,
        ..cut
    };
    Plan::Wgmma { tiles, cut }
}

/// The catalogue of a layout with one kind of tiles; with none, with those of the table.
pub fn catalogue(client: &Client, offer: Offer, layout: Layout, element: Element, kind: Option<Shape>) -> bool {
    let (mut good, mut count) = (true, 0);
    for call in calls(layout, element) {
        let plan = match kind {
            Some(kind) => plan(&call, offer, kind, 1),
            None => match Plan::new(&call, offer) {
                Ok(plan) => plan,
                Err(error) => {
                    println!("  WRONG {call:?}: declined: {error}");
                    good = false;
                    continue;
                }
            },
        };
        count += 1;
        if let Some(why) = wrong(client, call, plan) {
            println!("  WRONG {} {call:?}: {why}", plan.name());
            good = false;
        }
        let splits = matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate) && !call.bias;
        if splits && let Some(kind) = kind {
            for parts in [2, 3] {
                let plan = self::plan(&call, offer, kind, parts);
                count += 1;
                if let Some(why) = wrong(client, call, plan) {
                    println!("  WRONG {} {call:?}: {why}", plan.name());
                    good = false;
                }
            }
        }
    }
    println!("  {layout:?} {} {kind:?}: {count} products {}", element.name(), if good { "ok" } else { "WRONG" });
    good
}

/// Big shapes, by the table, on sampled elements.
pub fn big(client: &Client, offer: Offer) -> bool {
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
        let plan = match Plan::new(&call, offer) {
            Ok(plan) => plan,
            Err(error) => {
                println!("  WRONG {call:?}: {error}");
                return false;
            }
        };
        let problem = wrong(client, call, plan);
        println!("  {layout:?} {size:?} {}: {}", plan.name(), problem.as_deref().unwrap_or("ok"));
        good &= problem.is_none();
    }
    good
}

/// Whether a row's bits depend on other rows, on how many there are, or on the tiles.
pub fn rows_alone(client: &Client, offer: Offer) -> bool {
    let mut good = true;
    for layout in [Layout::Nt, Layout::Nn] {
        let mut known: Option<Vec<u8>> = None;
        for (m, kind) in [
            (700, Some(Shape::Turns)),
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
                Some(kind) => plan(&call, offer, kind, 1),
                None => Plan::new(&call, offer).expect("the device takes the call"),
            };
            // The matrices of 700 rows, cut off.
            let whole = Case::new(client, Matmul { m: 700, ..call }, 9);
            let d = crate::data::Both::poisoned(client, [m, call.n], Element::Bf16);
            let cut = |x: &Matrix| Matrix { rows: m, ..x.clone() };
            let (a, t) = (
                cut(&whole.a.device),
                cut(&whole.low_rank.as_ref().expect("a second pair")[0].device),
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
                println!("  WRONG rows of {layout:?} with m {m} {}: bits differ, or {done:?}", plan.name());
                good = false;
            }
            known.get_or_insert(bytes);
        }
    }
    println!("  rows alone: {}", if good { "ok" } else { "WRONG" });
    good
}
