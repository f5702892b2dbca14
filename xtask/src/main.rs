//! Development tasks. Dispatch only: each task is one module.

// `terminal::say` does not panic where nobody reads any more.
#![deny(clippy::print_stdout)]

mod bench;
mod ci;
mod copies;
mod deny;
mod dist;
mod docs;
mod golden;
mod interop;
mod launchers;
mod peer;
mod pip;
mod process;
mod ptx;
mod schema;
mod skips;
mod terminal;
mod test;
mod text;
mod tidy;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Development tasks of flow-train.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything that must hold on a clean checkout.
    Ci(ci::Options),
    /// The tests, as the README says.
    Test,
    /// Measures speed against PyTorch on the same machine.
    Bench(bench::Options),
    /// Writes `configs/schema.json`, or checks that it is up to date.
    Schema(schema::Options),
    /// Renews the code that pages show, checks the book in `docs/`, and builds it if mdBook is installed.
    Docs,
    /// Checks the rules that no compiler knows.
    Tidy,
    /// Checks licences, sources and duplicates of dependencies, by `deny.toml`.
    Deny(deny::Options),
    /// Makes the committed weights and the documented runs again.
    Golden(golden::Options),
    /// Exchanges LoRA files and models with diffusers and peft.
    Interop(interop::Options),
    /// Compiles the CUDA kernels with NVRTC and ptxas, without a GPU.
    Ptx(ptx::Options),
    /// Packs the release binary with configs, schema and licences.
    Dist(dist::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = workspace::Workspace::find()?;
    match task {
        Task::Ci(options) => ci::run(&workspace, &options),
        Task::Test => test::run(&workspace),
        Task::Bench(options) => bench::run(&workspace, &options),
        Task::Schema(options) => schema::run(&workspace, &options),
        Task::Docs => docs::run(&workspace),
        Task::Tidy => tidy::run(&workspace),
        Task::Deny(options) => match deny::run(&workspace, &options)? {
            None => Ok(()),
            Some(reason) => anyhow::bail!("{reason}"),
        },
        Task::Golden(options) => golden::run(&workspace, &options),
        Task::Interop(options) => match interop::run(&workspace, &options)? {
            None => Ok(()),
            Some(reason) => anyhow::bail!("{reason}"),
        },
        Task::Ptx(options) => ptx::run(&workspace, &options, &ptx::features()),
        Task::Dist(options) => dist::run(&workspace, &options),
    }
}
