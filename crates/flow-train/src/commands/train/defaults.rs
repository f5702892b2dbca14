//! The defaults of settings that somebody set, for `run.json`.

use super::open::manifest_key;
use flow_config::{Catalog, Source};
use serde_json::Value;
use std::collections::BTreeMap;

/// By the manifest's keys; a setting without a default is not in it.
pub fn of(catalog: &Catalog, sources: &BTreeMap<String, Source>) -> BTreeMap<String, Value> {
    let set = sources.iter().filter(|(_, source)| **source != Source::Default);
    set.filter_map(|(key, _)| Some((manifest_key(key), flow_config::explain(catalog, key)?.default?)))
        .collect()
}
