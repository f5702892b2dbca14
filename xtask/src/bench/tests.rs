//! Flags that benchmarks share.

use super::Options;
use clap::{Args, Command};

#[test]
fn every_benchmark_with_a_python_takes_it_by_one_flag_with_one_default() {
    let bench = Options::augment_args(Command::new("bench"));
    let mut with_python = Vec::new();
    for target in bench.get_subcommands() {
        let found = target
            .get_arguments()
            .find(|argument| argument.get_long() == Some("python"));
        if let Some(python) = found {
            let name = target.get_name();
            assert!(python.get_default_values().is_empty(), "{name}");
            let help = python.get_help().expect("each flag has a help").to_string();
            assert!(
                help.ends_with("without it one is made in the user's cache folder"),
                "{name}: {help}"
            );
            with_python.push(name.to_owned());
        }
    }
    for name in ["attention", "gemm", "ceilings", "workloads", "run", "checkpoint"] {
        assert!(with_python.iter().any(|with| with == name), "{name}");
    }
}

#[test]
fn the_old_name_of_the_flag_for_the_python_still_works() {
    for target in ["attention", "gemm", "ceilings"] {
        for flag in ["--python", "--peer"] {
            let bench = Options::augment_args(Command::new("bench"));
            let parsed = bench.try_get_matches_from(["bench", target, flag, "python3"]);
            assert!(parsed.is_ok(), "{target} {flag}: {}", parsed.unwrap_err());
        }
    }
}
