//! `cargo xtask bench cycles`: what NVIDIA's `ncu` counts of attention's kernels.
//!
//! A GPU at its limit of power changes its clock, so that times of one and the same kernel differ by 5 to 10 %. Cycles are the same to
//! 1 % from launch to launch, mostly to 0.3 %: a step of a kernel's ladder is decided by these, and reported in times.

use super::attention::label;
use super::built::Built;
use super::cases::range;
use super::server::Server;
use crate::process::output;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What to count.
#[derive(Debug, Args)]
pub struct Options {
    /// Our program, if it is built already (`crates/flow-attention-cube/examples/gpu_speed.rs`).
    #[arg(long)]
    program: Option<PathBuf>,
    /// NVIDIA's profiler.
    #[arg(long, default_value = "ncu")]
    ncu: PathBuf,
    /// Cases by number, as `16-21`; all without.
    #[arg(long)]
    cases: Option<String>,
    /// Launches of each kernel.
    #[arg(long, default_value_t = 3)]
    launches: usize,
    /// A file for the counts, one line of JSON for each kernel.
    #[arg(long)]
    to: Option<PathBuf>,
}

/// Cycles from a kernel's begin to its end: those in which most multiprocessors have no work any more count as well.
const CYCLES: &str = "sm__cycles_elapsed.max";

/// In how many of all cycles tensor cores were busy, in percent.
const TENSOR_CORES: &str = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";

/// Bytes that came from the GPU's memory, not from its cache, which `ncu` empties before each launch.
const READ: &str = "dram__bytes_read.sum";

/// Runs the cases in the profiler and prints what it counted.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.launches == 0 {
        bail!("--launches must be at least 1");
    }
    let program = Built::example("flow-attention-cube", "gpu_speed").or_given(workspace, &options.program)?;
    let folder = tempfile::tempdir()?;
    let counted = folder.path().join("counted.ncu-rep");
    let mut command = Command::new(&options.ncu);
    // The clock is the machine's, which is not ours to set.
    command.args(["--clock-control", "none", "--metrics"]);
    command.arg(format!("{CYCLES},{TENSOR_CORES},{READ}"));
    command.arg("-o").arg(&counted).arg(program);
    let mut ours = Server::start(command).context(
        "the counts are those of NVIDIA's Nsight Compute, which CUDA's toolkit has; --ncu says where it is",
    )?;
    let count = ours.ask("about")?["cases"].as_u64();
    let mut cases = Vec::new();
    for index in range(options.cases.as_deref(), count.context("no number of cases")?)? {
        cases.push(label(&ours.ask(&format!("launch {index} {}", options.launches))?));
    }
    ours.finish()?;
    let mut import = Command::new(&options.ncu);
    import
        .arg("--import")
        .arg(&counted)
        .args(["--page", "raw", "--csv", "--print-units", "base"]);
    let rows = by_case(&cases, &launches(&output(&mut import)?)?)?;
    say!(
        "| case | kernel | cycles, thousands | spread | tensor cores busy | from memory, MB |\n|---|---|---|---|---|---|"
    );
    for row in &rows {
        say!("{}", row.line());
    }
    if let Some(to) = &options.to {
        let lines: String = rows.iter().map(|row| format!("{}\n", row.json())).collect();
        fs::write(to, lines).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

/// A launch that was counted.
#[derive(Clone, Debug, PartialEq)]
struct Launch {
    kernel: String,
    cycles: f64,
    tensor_cores: f64,
    read_bytes: f64,
}

/// The launches of `ncu --page raw --csv`: names of columns, units, then a line for each launch. Every field is in quotes.
fn launches(csv: &str) -> Result<Vec<Launch>> {
    let mut lines = csv.lines().filter_map(|line| {
        let inner = line.trim().strip_prefix('"')?.strip_suffix('"')?;
        Some(inner.split("\",\"").collect::<Vec<_>>())
    });
    let columns = lines.next().context("ncu counted nothing")?;
    let at = |name: &str| {
        let at = columns.iter().position(|column| *column == name);
        at.with_context(|| format!("ncu gives no `{name}`"))
    };
    let [kernel, cycles, tensor_cores, read] =
        [at("Kernel Name")?, at(CYCLES)?, at(TENSOR_CORES)?, at(READ)?];
    lines
        .skip(1)
        .map(|line| {
            let number = |at: usize| -> Result<f64> {
                let text = line.get(at).context("ncu left a line short")?;
                let digits = text.replace(',', "");
                digits.parse().with_context(|| format!("`{text}` is no number"))
            };
            Ok(Launch {
                kernel: line.get(kernel).context("ncu left a line short")?.to_string(),
                cycles: number(cycles)?,
                tensor_cores: number(tensor_cores)?,
                read_bytes: number(read)?,
            })
        })
        .collect()
}

/// What a kernel of a case came to.
#[derive(Debug)]
struct Row {
    case: String,
    kernel: String,
    launches: Vec<Launch>,
}

impl Row {
    /// Of an odd number of launches the one in the middle.
    fn median(&self) -> &Launch {
        &self.launches[self.launches.len() / 2]
    }

    /// The distance from least to most, of the median.
    fn spread(&self) -> f64 {
        let [least, most] = [0, self.launches.len() - 1].map(|at| self.launches[at].cycles);
        (most - least) / self.median().cycles
    }

    fn line(&self) -> String {
        let median = self.median();
        format!(
            "| {} | {} | {:.1} | {:.1} % | {:.0} % | {:.0} |",
            self.case,
            self.kernel,
            median.cycles / 1e3,
            100.0 * self.spread(),
            median.tensor_cores,
            median.read_bytes / 1e6,
        )
    }

    fn json(&self) -> Value {
        let median = self.median();
        json!({
            "case": self.case, "kernel": self.kernel, "cycles": median.cycles, "spread": self.spread(),
            "tensor_cores_percent": median.tensor_cores, "read_bytes": median.read_bytes, "launches": self.launches.len(),
        })
    }
}

/// Launches by case and kernel, fewest cycles first. A case begins with launches of the forward kernel, and what follows before the next
/// ones is its backward pass.
fn by_case(cases: &[String], launches: &[Launch]) -> Result<Vec<Row>> {
    let is_forward = |launch: &Launch| launch.kernel.starts_with("forward");
    let mut rows: Vec<Row> = Vec::new();
    let mut begun = 0usize;
    let mut before = false;
    for launch in launches {
        if is_forward(launch) && !before {
            begun += 1;
        }
        before = is_forward(launch);
        let Some(case) = begun.checked_sub(1).and_then(|at| cases.get(at)) else {
            bail!(
                "ncu counted `{}` outside of the {} cases that were launched",
                launch.kernel,
                cases.len()
            );
        };
        match rows
            .iter_mut()
            .find(|row| row.case == *case && row.kernel == launch.kernel)
        {
            Some(row) => row.launches.push(launch.clone()),
            None => rows.push(Row {
                case: case.clone(),
                kernel: launch.kernel.clone(),
                launches: vec![launch.clone()],
            }),
        }
    }
    if begun != cases.len() {
        bail!("{} cases were launched, and ncu counted {begun}", cases.len());
    }
    for row in &mut rows {
        row.launches.sort_by(|a, b| a.cycles.total_cmp(&b.cycles));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::{Launch, by_case, launches};

    /// Columns and lines as `ncu` 2025.3 wrote them, of which some columns are left out.
    const CSV: &str = r#"==PROF== Disconnected
"ID","Kernel Name","Grid Size","dram__bytes_read.sum","sm__cycles_elapsed.max","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","byte","cycle","%"
"0","forward_e_bf16_ns_64","(32, 16, 2)","201,000,000","620,167.31","80.7"
"1","forward_e_bf16_ns_64","(32, 16, 2)","202,000,000","619,365.00","80.8"
"2","backward_queries_e_bf16","(32, 16, 2)","302,400,000","1,000,000.00","60.0"
"3","backward_keys_e_bf16","(32, 16, 2)","303000000","2,000,000.00","61.5"
"4","forward_e_bf16_ns_64","(64, 16, 2)","404000000","2304582","85.7"
"#;

    #[test]
    fn launches_belong_to_the_case_that_their_forward_pass_began() {
        let launches = launches(CSV).unwrap();
        assert_eq!(launches.len(), 5);
        let last = Launch {
            kernel: "forward_e_bf16_ns_64".into(),
            cycles: 2_304_582.0,
            tensor_cores: 85.7,
            read_bytes: 404e6,
        };
        assert_eq!(launches[4], last);
        let cases = ["S4096", "S8192"].map(String::from);
        let rows = by_case(&cases, &launches).unwrap();
        let lines: Vec<String> = rows.iter().map(super::Row::line).collect();
        assert_eq!(
            lines,
            [
                "| S4096 | forward_e_bf16_ns_64 | 620.2 | 0.1 % | 81 % | 201 |",
                "| S4096 | backward_queries_e_bf16 | 1000.0 | 0.0 % | 60 % | 302 |",
                "| S4096 | backward_keys_e_bf16 | 2000.0 | 0.0 % | 62 % | 303 |",
                "| S8192 | forward_e_bf16_ns_64 | 2304.6 | 0.0 % | 86 % | 404 |",
            ]
        );
    }

    #[test]
    fn a_case_that_was_not_counted_is_an_error_and_so_is_a_kernel_of_none() {
        let all = launches(CSV).unwrap();
        let error = by_case(&["one".into(), "two".into(), "three".into()], &all).unwrap_err();
        assert_eq!(error.to_string(), "3 cases were launched, and ncu counted 2");
        assert!(
            by_case(&["one".into()], &all)
                .unwrap_err()
                .to_string()
                .contains("outside of the 1 cases")
        );
        assert!(launches("==ERROR== No kernels were profiled\n").is_err());
    }
}
