//! Checks a config file: `cargo run --release -p flow-config --example check -- FILE [a.b=value]…`. Prints every value
//! with its source, or everything that is wrong. Without a file it shows both on two small texts.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        return show();
    };
    let overrides: Vec<String> = arguments.collect();
    match flow_config::load(&test_catalog::CATALOG, file, &overrides) {
        Ok(resolved) => {
            if !resolved.report.diagnostics.is_empty() {
                eprintln!("{}", resolved.report);
            }
            print!("{}", resolved.render());
            ExitCode::SUCCESS
        }
        Err(report) => {
            eprint!("{report}");
            ExitCode::FAILURE
        }
    }
}

fn show() -> ExitCode {
    let good = "config_version = 1\n\n[optimizer]\nlearning_rate = 3e-4\n";
    let overrides = ["sampling.group_size=8".to_owned()];
    match flow_config::parse_named(&test_catalog::CATALOG, "good.toml", good, &overrides) {
        Ok(resolved) => {
            for key in [
                "optimizer.learning_rate",
                "sampling.group_size",
                "sampling.micro_batch",
            ] {
                let value = resolved.value(key).unwrap_or_default();
                println!("{key} = {value}, from {}", resolved.sources[key]);
            }
        }
        Err(report) => {
            eprint!("{report}");
            return ExitCode::FAILURE;
        }
    }
    let bad = "config_version = 1\n\n[optimizer]\nlearning_rte = 3e-4\nbetas = [0.9, 1.5]\n\n[sampling]\nmicro_batch = 48\n";
    match flow_config::parse_named(&test_catalog::CATALOG, "bad.toml", bad, &[]) {
        Ok(_) => ExitCode::FAILURE,
        Err(report) => {
            println!("\n{report}");
            ExitCode::SUCCESS
        }
    }
}
