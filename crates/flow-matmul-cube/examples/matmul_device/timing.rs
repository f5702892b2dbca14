//! What is timed, and how: four sets of operands in rotation, replayed from a captured graph, between events.

use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan, Prepared};
use flow_matmul_cube::problem::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::tensors::{Gate, Matrix, Operands};
use std::time::{Duration, Instant};

/// Sets of operands.
pub const SETS: usize = 4;

/// How long a product is repeated before it is measured; as in `bench/matmul_peer.py`. A GPU that waited for its operands has another clock
/// than one that multiplied, and medians measured that: 5 % for the same kernel.
const WARM_UP: Duration = Duration::from_millis(500);

/// Rows, in, out of the layers.
pub const LAYERS: [[usize; 3]; 10] = [
    [16_384, 1152, 3456],
    [16_384, 1152, 1152],
    [16_384, 1152, 4608],
    [16_384, 4608, 1152],
    [21_712, 1536, 1536],
    [21_712, 1536, 6144],
    [21_712, 6144, 1536],
    [31_200, 1536, 1536],
    [31_200, 1536, 8960],
    [31_200, 8960, 1536],
];

/// The product of a layer's forward, data gradient or weight gradient.
pub fn of_layer(layout: Layout, [rows, inputs, outputs]: [usize; 3]) -> Matmul {
    let size = match layout {
        Layout::Nt => [rows, outputs, inputs],
        Layout::Nn => [rows, inputs, outputs],
        Layout::Tn => [outputs, inputs, rows],
    };
    Matmul::plain(layout, size, Element::Bf16)
}

/// What is timed, by name: the plain products of all layers, then those with epilogues and low rank.
pub fn cases() -> Vec<(String, Matmul)> {
    let mut out = Vec::new();
    for layer in LAYERS {
        for (name, layout) in [("NT", Layout::Nt), ("NN", Layout::Nn), ("TN", Layout::Tn)] {
            let [rows, inputs, outputs] = layer;
            out.push((
                format!("{rows} x {inputs} -> {outputs} {name}"),
                of_layer(layout, layer),
            ));
        }
    }
    let mut add = |name: &str, layer: [usize; 3], layout, change: fn(Matmul) -> Matmul| {
        let [rows, inputs, outputs] = layer;
        out.push((
            format!("{rows} x {inputs} -> {outputs} {name}"),
            change(of_layer(layout, layer)),
        ));
    };
    for (rows, d, f, tokens) in [(16_384, 1152, 4608, 256), (21_712, 1536, 6144, 1357)] {
        add("NT bias", [rows, d, 3 * d], Layout::Nt, |call| Matmul {
            bias: true,
            ..call
        });
        add("NT bias gelu keep", [rows, d, f], Layout::Nt, |call| Matmul {
            bias: true,
            epilogue: Epilogue::Activate {
                activation: Activation::GeluTanh,
                keep_sum: true,
            },
            ..call
        });
        add("NT bias gelu", [rows, d, f], Layout::Nt, |call| Matmul {
            bias: true,
            epilogue: Epilogue::Activate {
                activation: Activation::GeluTanh,
                keep_sum: false,
            },
            ..call
        });
        let gated: fn(Matmul) -> Matmul = match tokens {
            256 => |call| Matmul {
                bias: true,
                epilogue: Epilogue::GateAndAdd { tokens: 256 },
                ..call
            },
            _ => |call| Matmul {
                bias: true,
                epilogue: Epilogue::GateAndAdd { tokens: 1357 },
                ..call
            },
        };
        add("NT bias gate residual", [rows, f, d], Layout::Nt, gated);
        add("NT bias gate residual", [rows, d, d], Layout::Nt, gated);
        add("NN gelu derivative", [rows, f, d], Layout::Nn, |call| Matmul {
            epilogue: Epilogue::TimesDerivative(Activation::GeluTanh),
            ..call
        });
        add("NN plus another", [rows, d, d], Layout::Nn, |call| Matmul {
            epilogue: Epilogue::Add,
            ..call
        });
        add("TN f32 +=", [rows, d, d], Layout::Tn, |call| Matmul {
            output: Element::F32,
            epilogue: Epilogue::Accumulate,
            ..call
        });
        add("NT rank 32 more", [rows, d, d], Layout::Nt, |call| Matmul {
            rank: 32,
            ..call
        });
        add("NT", [rows, d, 32], Layout::Nt, |call| call);
        add("NN", [rows, 32, d], Layout::Nn, |call| call);
        add("TN", [rows, 32, d], Layout::Tn, |call| call);
    }
    out
}

/// Random values, encoded: a prime number of them, which matrices repeat from places of their own, so that no two rows are
/// alike.
pub struct Values {
    element: Element,
    bytes: Vec<u8>,
}

impl Values {
    /// Of type `element`.
    pub fn new(element: Element) -> Self {
        let mut random = flow_matmul_cube::cases::Random(0x9E37_79B9_7F4A_7C15);
        let bytes = (0..1_000_003)
            .flat_map(|_| flow_matmul_cube::cases::encode(random.value(), element))
            .collect();
        Self { element, bytes }
    }

    /// A matrix of them; another one for each `seed`.
    pub fn matrix(&self, client: &Client, shape: [usize; 2], seed: usize) -> Matrix {
        let size = self.element.bytes();
        let count = shape[0] * shape[1] * size;
        let mut block = self.bytes.clone();
        block.rotate_left(seed * 65_537 * size % self.bytes.len());
        let mut all = block.repeat(count.div_ceil(block.len()));
        all.truncate(count);
        Matrix::contiguous(client.create_from_slice(&all), shape)
    }
}

struct Set {
    a: Matrix,
    b: Matrix,
    low_rank: [Matrix; 2],
    row: Matrix,
    other: Matrix,
    d: Matrix,
}

/// Seconds of one product by each of `plans`, `repeats` times.
pub fn time(client: &Client, call: Matmul, plans: &[Plan], repeats: usize) -> Vec<Result<Vec<f64>, String>> {
    let inputs = Values::new(call.element);
    let outputs = Values::new(call.output);
    let sets: Vec<Set> = (0..SETS)
        .map(|set| {
            let matrix = |shape, seed| inputs.matrix(client, shape, 10 * set + seed);
            let rank = call.rank.max(8);
            let other = call.epilogue.reads_other() || call.epilogue.writes_other();
            Set {
                a: matrix(call.a_shape(call.k), 1),
                b: matrix(call.b_shape(call.k), 2),
                low_rank: [matrix(call.a_shape(rank), 3), matrix(call.b_shape(rank), 4)],
                row: matrix([call.m.min(4096), call.n], 5),
                other: matrix(if other { [call.m, call.n] } else { [1, 8] }, 6),
                d: outputs.matrix(client, [call.m, call.n], 10 * set + 7),
            }
        })
        .collect();
    plans
        .iter()
        .map(|plan| {
            let prepared = Prepared::with(client, call, *plan).map_err(|error| error.to_string())?;
            replayed(client, call.flops(), repeats, || {
                sets.iter().try_for_each(|set| launch(&prepared, set))
            })
        })
        .collect()
}

/// One product.
fn launch(prepared: &Prepared, set: &Set) -> Result<(), String> {
    let call = prepared.call();
    let gate = Gate {
        handle: set.row.handle.clone(),
        start: 0,
        stride: call.n,
    };
    let operands = Operands {
        a: &set.a,
        b: &set.b,
        scales: [None; 2],
        low_rank: (call.rank > 0).then_some([&set.low_rank[0], &set.low_rank[1]]),
        bias: call.bias.then_some(&set.row.handle),
        gate: matches!(call.epilogue, Epilogue::GateAndAdd { .. }).then_some(&gate),
        other: (call.epilogue.reads_other() || call.epilogue.writes_other()).then_some(&set.other),
        offsets: None,
        d: &set.d,
    };
    prepared.run(&operands).map_err(|error| error.to_string())
}

/// Seconds of one of the [`SETS`] products that `launch` launches, `repeats` times.
pub fn replayed(
    client: &Client,
    flops: f64,
    repeats: usize,
    launch: impl Fn() -> Result<(), String>,
) -> Result<Vec<f64>, String> {
    let say = |error: &dyn std::fmt::Debug| format!("{error:?}");
    client.graph_prepare().map_err(|e| say(&e))?;
    (0..3).try_for_each(|_| launch())?;
    client.start_capture().map_err(|e| say(&e))?;
    launch()?;
    let graph = client.stop_capture().map_err(|e| say(&e))?;
    // SAFETY: the buffers of the captured launches live until the caller returns.
    let replay = || unsafe { graph.replay() }.map_err(|e| say(&e));
    let rounds = ((0.02 / (flops / 500e12)) as usize / SETS).clamp(2, 60);
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        (0..rounds).try_for_each(|_| replay())?;
        cubecl::future::block_on(client.sync()).map_err(|e| say(&e))?;
    }
    (0..repeats)
        .map(|_| {
            let window = client.profile_start().map_err(|e| say(&e))?;
            for _ in 0..rounds {
                replay()?;
            }
            let ticks = client.profile_end(window).map_err(|e| say(&e))?;
            let ticks = cubecl::future::block_on(ticks.into_future()).ok_or("the device gave no time")?;
            Ok(ticks.duration().as_secs_f64() / (rounds * SETS) as f64)
        })
        .collect()
}

/// Median, tenth and ninetieth percentile.
pub fn spread(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [0.5, 0.1, 0.9].map(|share| samples[((samples.len() - 1) as f64 * share).round() as usize])
}

/// Seconds of one product by the table's plan, and what it is, as JSON.
pub fn answer(
    client: &Client,
    capabilities: DeviceCapabilities,
    name: &str,
    call: Matmul,
    repeats: usize,
) -> Result<String, String> {
    let plan = Plan::new(&call, capabilities).map_err(|error| error.to_string())?;
    let seconds = time(client, call, &[plan], repeats).swap_remove(0)?;
    let layout = match call.layout {
        Layout::Nt => "NT",
        Layout::Nn => "NN",
        Layout::Tn => "TN",
    };
    let (epilogue, tokens) = match call.epilogue {
        Epilogue::Store => ("store", 1),
        Epilogue::Accumulate => ("accumulate", 1),
        Epilogue::Add => ("add", 1),
        Epilogue::Activate { keep_sum: true, .. } => ("gelu_keep", 1),
        Epilogue::Activate { .. } => ("gelu", 1),
        Epilogue::GateAndAdd { tokens } => ("gate", tokens),
        Epilogue::TimesDerivative(_) => ("derivative", 1),
    };
    Ok(format!(
        r#"{{"name":"{name}","kernel":"{}","layout":"{layout}","m":{},"n":{},"k":{},"rank":{},"bias":{},"epilogue":"{epilogue}","tokens":{tokens},"flops":{},"seconds":{seconds:?}}}"#,
        plan.name(),
        call.m,
        call.n,
        call.k,
        call.rank,
        call.bias,
        call.flops(),
    ))
}
