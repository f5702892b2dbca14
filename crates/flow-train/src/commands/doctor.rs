//! `doctor`: what this build has, what this machine has, whether computing works and is deterministic, and what to do about
//! what is missing.

mod computes;
mod nvidia;

use crate::failure::Failure;
use crate::terminal;
use flow_core::device::{ComputeDevice, available};
use flow_report::{BYTES_PER_GIB, Host, resident_bytes};
use nvidia::Cuda;
use std::path::Path;

/// Free space below which a run of any size is in danger, in GiB.
const LITTLE_DISK_GIB: f64 = 1.0;

/// What was found, line by line, and what is to be done about it.
#[derive(Default)]
struct Findings {
    lines: Vec<(&'static str, String)>,
    /// Without it something that this build is for does not work.
    needed: Vec<String>,
    /// Worth knowing.
    advised: Vec<String>,
}

impl Findings {
    fn line(&mut self, name: &'static str, said: impl Into<String>) {
        self.lines.push((name, said.into()));
    }
}

/// Prints what was found; fails if something that this build is for does not work.
pub fn run() -> Result<(), Failure> {
    let mut found = Findings::default();
    build(&mut found);
    machine(&mut found);
    devices(&mut found, &Cuda::find());
    match computes::computes() {
        Ok(text) => found.line("computing", format!("on the processor {text}")),
        Err(Failure::Run(text)) => {
            found.line("computing", "does not work as it must");
            found.needed.push(text);
        }
        Err(other) => return Err(other),
    }
    let mut text = terminal::pairs(&found.lines);
    for (title, list) in [("needed", &found.needed), ("advised", &found.advised)] {
        for one in list {
            text.push('\n');
            text.push_str(&terminal::pairs(&[(title, one.clone())]));
        }
    }
    terminal::print(&text)?;
    match found.needed.len() {
        0 => Ok(()),
        count => Err(Failure::Run(format!(
            "{count} thing(s) that this build needs are missing or do not work"
        ))),
    }
}

/// Versions and features.
fn build(found: &mut Findings) {
    let versions = flow_train::versions();
    let versions: Vec<String> = versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    found.line("versions", versions.join(", "));
    let features = [
        ("cuda", cfg!(feature = "cuda"), "NVIDIA GPUs"),
        (
            "kernel-cache",
            cfg!(feature = "kernel-cache"),
            "compiled kernels kept on disk",
        ),
        ("tui", cfg!(feature = "tui"), "`train --tui`"),
    ];
    let named = |wanted: bool| {
        let some = features.iter().filter(|(_, built, _)| *built == wanted);
        let some: Vec<String> = some
            .map(|(name, _, meaning)| format!("{name} ({meaning})"))
            .collect();
        if some.is_empty() {
            "none".into()
        } else {
            some.join(", ")
        }
    };
    found.line(
        "features",
        format!("built: {}; left out: {}", named(true), named(false)),
    );
}

/// Processor, memory, disk.
fn machine(found: &mut Findings) {
    let host = Host::detect();
    found.line("system", format!("{} {}", host.os, host.arch));
    found.line("processor", host.cpu.unwrap_or_else(|| "unknown".into()));
    found.line("instructions", instructions());
    found.line("threads", host.cpu_threads.to_string());
    let memory = host
        .memory_gib
        .map_or("unknown".into(), |gib| format!("{gib:.1} GiB"));
    let resident = resident_bytes().map_or(String::new(), |bytes| {
        format!(", {:.3} GiB in use by this process", bytes as f64 / BYTES_PER_GIB)
    });
    found.line("memory", memory + &resident);
    match disk(Path::new(".")) {
        Some((free_gib, all_gib)) => {
            found.line(
                "disk",
                format!("{free_gib:.1} of {all_gib:.1} GiB free in this folder"),
            );
            if free_gib < LITTLE_DISK_GIB {
                let text =
                    "runs write checkpoints here: free some space, or set `run.dir` to a folder that has it";
                found.needed.push(text.into());
            }
        }
        None => found.line("disk", "free space in this folder is unknown"),
    }
}

/// Devices of the build, which of them answer, and what a GPU needs beside a driver.
fn devices(found: &mut Findings, cuda: &Cuda) {
    let built = available();
    let mut answers = false;
    for kind in built {
        let said = match ComputeDevice::open(kind, 0) {
            Ok(device) => {
                answers |= *kind == "cuda";
                format!("{kind}: {}", device.name())
            }
            Err(error) => {
                found.needed.push(error.to_string());
                format!("{kind}: in this build, but does not answer")
            }
        };
        found.line("device", said);
    }
    if !built.contains(&"cuda") {
        found.line("device", "cuda: not in this build");
    }
    found.line(
        "driver",
        cuda.driver.clone().unwrap_or_else(|| "no NVIDIA driver".into()),
    );
    for gpu in &cuda.gpus {
        found.line("gpu", gpu.clone());
    }
    found.line("cuda toolkit", cuda.toolkit_text());
    found.line("nvrtc", cuda.nvrtc_text());
    let has_gpu = !cuda.gpus.is_empty() || cuda.driver.is_some();
    if built.contains(&"cuda") {
        if answers {
            found.needed.extend(cuda.missing());
        } else {
            found.advised.extend(cuda.missing());
        }
    } else if has_gpu {
        let text = "there is an NVIDIA GPU, and this build computes on the processor alone: build with `cargo build --release \
                    -p flow-train --features cuda`, then set `device.kind = \"cuda\"` and `device.dtype = \"bf16\"`";
        found.advised.push(text.into());
    }
}

/// Instruction sets that kernels choose between.
fn instructions() -> String {
    #[cfg(target_arch = "x86_64")]
    let found: Vec<&str> = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bf16", std::arch::is_x86_feature_detected!("avx512bf16")),
    ]
    .into_iter()
    .filter_map(|(name, found)| found.then_some(name))
    .collect();
    #[cfg(target_arch = "aarch64")]
    let found: Vec<&str> = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
    ]
    .into_iter()
    .filter_map(|(name, found)| found.then_some(name))
    .collect();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: Vec<&str> = Vec::new();
    if found.is_empty() {
        "none of those that matter".into()
    } else {
        found.join(", ")
    }
}

/// Free and whole space in GiB where runs go by default.
fn disk(path: &Path) -> Option<(f64, f64)> {
    #[cfg(unix)]
    if let Ok(found) = rustix::fs::statvfs(path) {
        let gib = |blocks: u64| blocks as f64 * found.f_frsize as f64 / BYTES_PER_GIB;
        return Some((gib(found.f_bavail), gib(found.f_blocks)));
    }
    let _ = path;
    None
}
