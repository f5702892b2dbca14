//! Prints the documentation of all options, or how some are judged:
//!
//! ```sh
//! cargo run --release -p flow-runtime --example options
//! cargo run --release -p flow-runtime --example options -- cubecl.streaming.policy=single cubecl.streaming.max_streams=0
//! ```

use flow_runtime::{Context, DeviceKind, Feature, markdown, parse};
use std::collections::BTreeMap;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        print!("{}", markdown());
        return;
    }
    let options: BTreeMap<String, serde_json::Value> = arguments
        .iter()
        .map(|argument| {
            let (key, value) = argument.split_once('=').unwrap_or((argument, "true"));
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            (key.to_owned(), value)
        })
        .collect();
    let context = Context {
        device: DeviceKind::Cuda,
        features: [Feature::Cubecl, Feature::Cuda, Feature::Persistence].into(),
        ..Context::default()
    };
    match parse(&options, &context) {
        Ok(options) => {
            for (spec, value) in options.iter() {
                println!("{} = {value}, default {}", spec.path, spec.default);
            }
            for warning in options.warnings() {
                println!("{warning}");
            }
        }
        Err(error) => println!("{error}"),
    }
}
