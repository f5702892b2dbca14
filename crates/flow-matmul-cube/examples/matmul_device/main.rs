//! Checks the kernels on a GPU against f64 on the host, then times them.
//!
//! `matmul_device check`, `matmul_device time`, `matmul_device sweep` (each layer with all tiles), or check and time without
//! an argument; `matmul_device serve` is our side of `cargo xtask bench gemm`. Each group runs in a process of its own, so that a fault or a hang costs that group alone. The exit status
//! is 1 if anything is wrong.

mod check;
mod fp8;
mod timing;

use cubecl::prelude::*;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan};
use flow_matmul_cube::problem::{Layout, Matmul};
use flow_matmul_cube::wgmma::select::Shape;
use std::io::BufRead;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LAYOUTS: [(&str, Layout); 3] = [("nt", Layout::Nt), ("nn", Layout::Nn), ("tn", Layout::Tn)];
const SHAPES: [(&str, Shape); 6] = [
    ("turns", Shape::PingPong),
    ("wide", Shape::Wide),
    ("large", Shape::Large),
    ("small", Shape::Small),
    ("narrow", Shape::Narrow),
    ("medium", Shape::Medium),
];
/// Of a group.
const LIMIT: Duration = Duration::from_secs(240);
/// Groups that check at the same time: most of their time goes into compiling kernels.
const MOST_PROCESSES: usize = 10;

fn groups(what: &str) -> Vec<String> {
    let mut out = Vec::new();
    if what == "check" {
        for (layout, _) in LAYOUTS {
            for (shape, _) in SHAPES {
                out.push(format!("check {layout} {shape} bf16"));
            }
            out.push(format!("check {layout} table f16"));
            out.push(format!("check {layout} mma bf16"));
            out.push(format!("check {layout} mma f16"));
        }
        out.push("check big".into());
        out.push("check rows".into());
        out.push("check sums".into());
        out.push("check groups".into());
        out.push("check codes".into());
        for (accumulation, _) in fp8::ACCUMULATIONS {
            for (shape, _) in SHAPES {
                out.push(format!("check fp8 {accumulation} {shape}"));
            }
            out.push(format!("check fp8 {accumulation} table"));
        }
    }
    if what == "sweep" {
        out.push("sweep fp8".into());
        out.extend((0..timing::LAYERS.len()).map(|i| format!("sweep {i}")));
    }
    if what == "time" {
        let count = timing::cases().len();
        out.extend(
            (0..count)
                .step_by(8)
                .map(|i| format!("time {i} {}", (i + 8).min(count))),
        );
    }
    out
}

/// The tiles of a name.
fn named(name: &str) -> Option<Shape> {
    let found = SHAPES.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, shape)| shape)
}

fn group(words: &[&str]) -> Result<bool, String> {
    let client = cubecl::Device::cuda(0)
        .map_err(|error| format!("{error:?}"))?
        .client();
    let capabilities = DeviceCapabilities::of(&client);
    let layout = |name: &str| {
        LAYOUTS
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, layout)| layout)
    };
    match words {
        ["one", backend, name, m, n, k] => {
            let number = |word: &str| word.parse::<usize>().map_err(|error| error.to_string());
            let size = [number(m)?, number(n)?, number(k)?];
            let call = Matmul::plain(layout(name).ok_or("an unknown layout")?, size, Element::Bf16);
            let plan = match *backend {
                "portable" => Plan::Portable,
                "mma" => Plan::mma(&call, capabilities).map_err(|error| error.to_string())?,
                shape => check::plan(&call, capabilities, named(shape).ok_or("unknown tiles")?, 1),
            };
            Ok(check::one(&client, call, plan))
        }
        ["check", "big"] => Ok(check::big(&client, capabilities)),
        ["check", "groups"] => Ok(check::groups(&client, capabilities)),
        ["check", "sums"] => Ok(check::sums(&client)),
        ["check", "codes"] => Ok(fp8::codes(&client, capabilities)),
        ["check", "fp8", accumulation, shape] => {
            fp8::group(&client, capabilities, accumulation, named(shape))
        }
        ["sweep", "fp8"] => Ok(fp8::sweep(&client, capabilities, &SHAPES)),
        ["check", "rows"] => Ok(check::rows_alone(&client, capabilities)),
        ["check", name, shape, element] => {
            let layout = layout(name).ok_or("an unknown layout")?;
            let element = if *element == "f16" {
                Element::F16
            } else {
                Element::Bf16
            };
            if *shape == "mma" {
                return Ok(check::older(&client, capabilities, layout, element));
            }
            Ok(check::cases(&client, capabilities, layout, element, named(shape)))
        }
        // Weight gradients of some layers, whole, balanced and in parts.
        ["sweeptn"] => {
            for layer in [0, 1, 2, 4, 5, 8].map(|i: usize| timing::LAYERS[i]) {
                let call = timing::of_layer(Layout::Tn, layer);
                let plans: Vec<Plan> = [
                    (Shape::PingPong, 0),
                    (Shape::PingPong, 1),
                    (Shape::Wide, 0),
                    (Shape::Large, 0),
                ]
                .map(|(shape, split_k)| check::plan(&call, capabilities, shape, split_k))
                .to_vec();
                report(&client, &format!("{layer:?} TN"), call, &plans, 5);
            }
            Ok(true)
        }
        ["sweep", layer] => {
            let layer = timing::LAYERS[layer.parse::<usize>().map_err(|error| error.to_string())?];
            for (name, layout) in LAYOUTS {
                let call = timing::of_layer(layout, layer);
                let chosen = Plan::new(&call, capabilities).map_err(|error| error.to_string())?;
                println!("{layer:?} {name}: the table says {}", chosen.name());
                let split_k: &[usize] = match layout {
                    Layout::Tn => &[0, 1, 2, 4, 7],
                    _ => &[1],
                };
                let shapes = SHAPES.into_iter().take(3).map(|(_, shape)| shape);
                let plans: Vec<Plan> = shapes
                    .flat_map(|shape| {
                        split_k
                            .iter()
                            .map(move |split_k| check::plan(&call, capabilities, shape, *split_k))
                    })
                    .collect();
                report(&client, &format!("{layer:?} {name}"), call, &plans, 5);
            }
            Ok(true)
        }
        ["time", from, to] => {
            let number = |word: &str| word.parse::<usize>().map_err(|error| error.to_string());
            for (name, call) in &timing::cases()[number(from)?..number(to)?] {
                let plan = Plan::new(call, capabilities).map_err(|error| error.to_string())?;
                report(&client, name, *call, &[plan], 9);
            }
            Ok(true)
        }
        _ => Err(format!("`{}` is no group", words.join(" "))),
    }
}

fn report(client: &Client, name: &str, call: Matmul, plans: &[Plan], repeats: usize) {
    for (plan, result) in plans.iter().zip(timing::time(client, call, plans, repeats)) {
        let kernel = plan.name();
        match result {
            Ok(samples) => {
                let [median, low, high] = timing::spread(samples);
                println!(
                    r#"{{"name":"{name}","kernel":"{kernel}","tflops":{:.1},"median_us":{:.2},"p10_us":{:.2},"p90_us":{:.2}}}"#,
                    call.flops() / median / 1e12,
                    median * 1e6,
                    low * 1e6,
                    high * 1e6
                );
            }
            Err(error) => println!(r#"{{"name":"{name}","kernel":"{kernel}","error":{error:?}}}"#),
        }
    }
}

/// Our side of `cargo xtask bench gemm`: `about`, or `time INDEX REPEATS`, answered with a line of JSON.
fn serve() -> bool {
    let client = cubecl::Device::cuda(0)
        .expect("an NVIDIA GPU and its driver")
        .client();
    let capabilities = DeviceCapabilities::of(&client);
    let cases = timing::cases();
    let of_codes = fp8::cases();
    let count = cases.len() + of_codes.len();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["about"] => Ok(format!(r#"{{"cases":{count}}}"#)),
            ["time", index, repeats] => match (index.parse::<usize>(), repeats.parse()) {
                (Ok(index), Ok(repeats)) if index < cases.len() => {
                    let (name, call) = &cases[index];
                    timing::answer(&client, capabilities, name, *call, repeats)
                }
                (Ok(index), Ok(repeats)) if index < count => {
                    of_codes[index - cases.len()].answer(&client, capabilities, repeats)
                }
                _ => Err(format!("`{line}`: there are {count} cases")),
            },
            _ => Err(format!("`{line}` is neither `about` nor `time INDEX REPEATS`")),
        };
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(why) => println!(r#"{{"error":{why:?}}}"#),
        }
    }
    true
}

/// Runs groups, each in a process of its own, `together` at the same time.
fn apart(groups: &[String], together: usize) -> bool {
    let next = AtomicUsize::new(0);
    let wrong = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..together {
            scope.spawn(|| {
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    wrong.fetch_add(usize::from(!one(group)), Ordering::Relaxed);
                }
            });
        }
    });
    wrong.into_inner() == 0
}

/// Runs a group in a process of its own; whether all was well.
fn one(group: &str) -> bool {
    let program = std::env::current_exe().expect("this program has a path");
    let start = Instant::now();
    let mut child = Command::new(program)
        .arg("--group")
        .args(group.split(' '))
        .stdin(Stdio::null())
        .spawn()
        .expect("this program starts");
    loop {
        let seconds = start.elapsed().as_secs_f64();
        match child.try_wait() {
            Ok(Some(status)) => {
                println!("[{group}] {status} after {seconds:.0} s");
                return status.success();
            }
            Ok(None) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(50)),
            _ => {
                println!("  WRONG [{group}] hangs: ended after {seconds:.0} s");
                child.kill().ok();
                child.wait().ok();
                return false;
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let good = match words[..] {
        ["--group", ..] => match group(&words[1..]) {
            Ok(good) => good,
            Err(error) => {
                println!("  WRONG {error}");
                false
            }
        },
        ["serve"] => serve(),
        // Groups by name, or by what they are for.
        [] => apart(&groups("check"), MOST_PROCESSES) & apart(&groups("time"), 1),
        ["check"] => apart(&groups("check"), MOST_PROCESSES),
        ["time" | "sweep"] => apart(&groups(words[0]), 1),
        _ => one(&words.join(" ")),
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
