//! FP8 on a device: products of codes and rows that are quantised against f64, and both timed, apart and together.

use super::check;
use super::timing::{SETS, Values, replayed};
use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::cases::{SIZES, other_bits, problems_of_codes, wrong_codes, wrong_columns};
use flow_matmul_cube::fp8::{Quantised, quantise_rows};
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan, Prepared};
use flow_matmul_cube::problem::{Accumulation, Layout, Matmul, Refusal, Storage};
use flow_matmul_cube::tensors::{Matrix, Operands};
use flow_matmul_cube::wgmma::select::{self, Shape};

/// Both accumulations, by name.
pub const ACCUMULATIONS: [(&str, Accumulation); 2] =
    [("promoted", Accumulation::Promoted), ("fast", Accumulation::Fast)];

/// Rows, in, out of the layers: SD3.5 medium's two of a feed-forward, one of FLUX.1, and a cube.
const LAYERS: [[usize; 3]; 4] = [
    [21_712, 1536, 6144],
    [21_712, 6144, 1536],
    [4608, 3072, 12_288],
    [8192, 8192, 8192],
];

/// The cases with the accumulation of a name, and with `kind`: see [`products`].
pub fn group(
    client: &Client,
    capabilities: DeviceCapabilities,
    accumulation: &str,
    kind: Option<Shape>,
) -> Result<bool, String> {
    let found = ACCUMULATIONS
        .into_iter()
        .find(|(known, _)| *known == accumulation);
    let (_, accumulation) = found.ok_or("an unknown accumulation")?;
    Ok(products(client, capabilities, accumulation, kind))
}

/// The cases with one kind of tiles; with none, with those of the table.
fn products(
    client: &Client,
    capabilities: DeviceCapabilities,
    accumulation: Accumulation,
    kind: Option<Shape>,
) -> bool {
    let (mut good, mut count) = (true, 0);
    for call in problems_of_codes(accumulation, Element::Bf16, &SIZES) {
        let has = |kind| select::shapes_of_codes(&call).contains(&kind) && select::check(&call).is_ok();
        if !kind.is_none_or(has) {
            continue;
        }
        let Some(plan) = check::planned(&call, capabilities, kind) else {
            good = false;
            continue;
        };
        count += 1;
        good &= check::holds(client, call, plan);
    }
    println!(
        "  codes {accumulation:?} {kind:?}: {count} products {}",
        if good { "ok" } else { "WRONG" }
    );
    good
}

/// Rows quantised, against the definition of the format; and bits of sums by all tiles.
pub fn codes(client: &Client, capabilities: DeviceCapabilities) -> bool {
    let mut good = true;
    let by_all_tiles = |call: &Matmul| {
        let shapes = select::shapes_of_codes(call).iter();
        shapes
            .map(|kind| check::plan(call, capabilities, *kind, 1))
            .collect()
    };
    for size in [[77, 136, 332], [300, 392, 384], [129, 1160, 160]] {
        if capabilities.hopper
            && let Some(why) = other_bits(client, size, Element::Bf16, by_all_tiles)
        {
            println!("  WRONG {why}");
            good = false;
        }
    }
    for shape in [
        [1, 1],
        [3, 7],
        [77, 130],
        [129, 77],
        [300, 1536],
        [33, 6144],
        [5, 12_288],
    ] {
        for element in [Element::Bf16, Element::F16, Element::F32] {
            let wrong = wrong_codes(client, shape, element);
            if let Some(why) = wrong.or_else(|| wrong_columns(client, shape, element)) {
                println!("  WRONG codes of {shape:?} {}: {why}", element.name());
                good = false;
            }
        }
    }
    println!("  codes of rows: {}", if good { "ok" } else { "WRONG" });
    good
}

/// What is timed of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The product of codes.
    Product,
    /// A's rows quantised, then the product.
    Both,
    /// A's rows quantised.
    Quantisation,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Both => "both",
            Self::Quantisation => "quantise",
        }
    }
}

/// A case that is timed.
#[derive(Clone, Debug)]
pub struct Case {
    name: String,
    call: Matmul,
    part: Part,
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for [rows, inputs, outputs] in LAYERS {
        let mut add = |name: &str, accumulation, part: Part| {
            out.push(Case {
                name: format!("{rows} x {inputs} -> {outputs} e4m3 {name}{}", part.name()),
                call: Matmul {
                    storage: Storage::E4m3(accumulation),
                    ..Matmul::plain(Layout::Nt, [rows, outputs, inputs], Element::Bf16)
                },
                part,
            });
        };
        for (name, accumulation) in ACCUMULATIONS {
            for part in [Part::Product, Part::Both] {
                add(&format!("{name} "), accumulation, part);
            }
        }
        add("", Accumulation::Promoted, Part::Quantisation);
    }
    out
}

struct Set {
    x: Matrix,
    quantised: Quantised,
    weight: Quantised,
    d: Matrix,
}

impl Case {
    /// Seconds of one by `plan`, `repeats` times.
    fn time(&self, client: &Client, plan: Plan, repeats: usize) -> Result<Vec<f64>, String> {
        let values = Values::new(Element::Bf16);
        let call = &self.call;
        let say = |error: Refusal| error.to_string();
        let set = |number: usize| {
            let matrix = |shape, seed| values.matrix(client, shape, 10 * number + seed);
            let (x, w) = (matrix([call.m, call.k], 1), matrix([call.n, call.k], 2));
            Ok::<_, Refusal>(Set {
                quantised: Quantised::new(client, &x, Element::Bf16)?,
                weight: Quantised::new(client, &w, Element::Bf16)?,
                x,
                d: matrix([call.m, call.n], 7),
            })
        };
        let sets = (0..SETS)
            .map(set)
            .collect::<Result<Vec<Set>, Refusal>>()
            .map_err(say)?;
        let prepared = Prepared::with(client, *call, plan).map_err(say)?;
        let quantise = |set: &Set| {
            let Quantised { codes, scales } = &set.quantised;
            quantise_rows(client, &set.x, Element::Bf16, codes, scales)
        };
        let multiply = |set: &Set| {
            prepared.run(&Operands {
                scales: [Some(&set.quantised.scales), Some(&set.weight.scales)],
                ..Operands::new(&set.quantised.codes, &set.weight.codes, &set.d)
            })
        };
        let one = |set: &Set| match self.part {
            Part::Product => multiply(set),
            Part::Both => quantise(set).and_then(|()| multiply(set)),
            Part::Quantisation => quantise(set),
        };
        // Reading and writing a number takes as long as some 500 operations of a product.
        let work = match self.part {
            Part::Quantisation => 500.0 * (call.m * call.k) as f64,
            _ => call.flops(),
        };
        replayed(client, work, repeats, || {
            sets.iter().try_for_each(|set| one(set).map_err(say))
        })
    }

    /// Seconds of one by the table's plan, and what it is, as JSON.
    pub fn answer(
        &self,
        client: &Client,
        capabilities: DeviceCapabilities,
        repeats: usize,
    ) -> Result<String, String> {
        let call = &self.call;
        let plan = Plan::new(call, capabilities).map_err(|error| error.to_string())?;
        let seconds = self.time(client, plan, repeats)?;
        let (kernel, flops) = match self.part {
            Part::Quantisation => ("quantise".to_owned(), 0.0),
            _ => (plan.name(), call.flops()),
        };
        let fast = call.storage == Storage::E4m3(Accumulation::Fast);
        Ok(format!(
            r#"{{"name":"{}","kernel":"{kernel}","fp8":"{}","fast":{fast},"m":{},"n":{},"k":{},"flops":{flops},"seconds":{seconds:?}}}"#,
            self.name,
            self.part.name(),
            call.m,
            call.n,
            call.k,
        ))
    }
}

/// Prints the times of all cases, of products by all tiles that compute them.
pub fn sweep(client: &Client, capabilities: DeviceCapabilities, kinds: &[(&str, Shape)]) -> bool {
    let mut good = true;
    for case in cases() {
        let call = &case.call;
        let kinds = kinds.iter().map(|(_, kind)| *kind);
        let mut plans: Vec<Plan> = kinds
            .filter(|kind| case.part == Part::Product && select::shapes_of_codes(call).contains(kind))
            .map(|kind| check::plan(call, capabilities, kind, 1))
            .collect();
        if plans.is_empty() {
            plans.extend(Plan::new(call, capabilities).ok());
        }
        for plan in plans {
            match case.time(client, plan, 5) {
                Ok(samples) => {
                    let [median, low, high] = super::timing::spread(samples);
                    println!(
                        "{} {}: {:.2} us ({:.2} to {:.2})",
                        case.name,
                        plan.name(),
                        median * 1e6,
                        low * 1e6,
                        high * 1e6
                    );
                }
                Err(error) => {
                    println!("  WRONG {} {}: {error}", case.name, plan.name());
                    good = false;
                }
            }
        }
    }
    good
}
