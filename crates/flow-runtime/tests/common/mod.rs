//! Contexts and values that several tests use.

#![allow(dead_code, reason = "no test uses all of it")]

use flow_runtime::{Context, DeviceKind, Feature, Kind, OPTIONS, OptionSpec};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Options as a config has them.
pub type Written = BTreeMap<String, Json>;

/// A run on a GPU with everything compiled in.
pub fn everything() -> Context {
    Context {
        device: DeviceKind::Cuda,
        features: [Feature::Cubecl, Feature::Persistence, Feature::Cuda].into(),
        ..Context::default()
    }
}

/// The options that this build of the tests can use: without the feature `persistence` some have no place to go.
pub fn usable() -> impl Iterator<Item = &'static OptionSpec> {
    let context = everything();
    OPTIONS
        .iter()
        .filter(move |spec| spec.features.iter().all(|feature| context.has_feature(*feature)))
}

/// Options as a config has them.
pub fn written<const N: usize>(entries: [(&str, Json); N]) -> Written {
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Every word of a choice, both ends of a range, and so on: values that the option takes.
pub fn samples(spec: &OptionSpec) -> Vec<Json> {
    let words = |words: &[&str]| words.iter().map(|word| json!(word)).collect::<Vec<_>>();
    match spec.kind {
        Kind::Bool => vec![json!(false), json!(true)],
        Kind::Integer { min, max } => vec![json!(min), json!(min + 1), json!(max)],
        Kind::Choice(choices) => words(choices),
        Kind::Name => vec![json!("h100"), json!("A.b_c-9")],
        Kind::File => vec![json!("logs/run.log"), json!("größe.log")],
        Kind::Place(choices) => {
            let mut values = words(choices);
            values.push(json!({ "directory": "caches/here" }));
            values
        }
    }
}

/// Any value that the option takes.
pub fn valid(spec: &OptionSpec) -> BoxedStrategy<Json> {
    match spec.kind {
        Kind::Integer { min, max } => (min..=max).prop_map(|value| json!(value)).boxed(),
        Kind::Name => "[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}"
            .prop_map(|name| json!(name))
            .boxed(),
        // What a shell would expand, `~` at the beginning and variables, is refused.
        Kind::File => "[^\u{0}~$][^\u{0}$]{0,59}".prop_map(|path| json!(path)).boxed(),
        _ => proptest::sample::select(samples(spec)).boxed(),
    }
}

/// Any set of valid options of `specs` that contradict one another nowhere.
pub fn valid_options(specs: Vec<&'static OptionSpec>) -> impl Strategy<Value = Written> {
    let entries: Vec<_> = specs
        .iter()
        .map(|spec| proptest::option::weighted(0.3, valid(spec)))
        .collect();
    let paths: Vec<&str> = specs.iter().map(|spec| spec.path).collect();
    entries.prop_map(move |values| {
        let given = paths.iter().zip(values);
        given
            .filter_map(|(path, value)| Some(((*path).to_owned(), value?)))
            .collect()
    })
}
