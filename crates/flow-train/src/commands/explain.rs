//! `explain`: what a key of the config or a parameter of an accelerator means, or what is behind the code of an error or
//! warning.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_train::Registries;

/// Prints the documentation of `key`, of every key of that name, or of an accelerator or its parameter (`name.parameter`); or
/// rule, rationale and example of a code.
pub fn run(key: &str) -> Result<(), Failure> {
    if let Some(known) = flow_validate::explain(key) {
        return terminal::print(&known.to_string());
    }
    if let Some(docs) = flow_config::explain(key) {
        return terminal::print(&docs.to_string());
    }
    let found = flow_config::find_key(key);
    if !found.is_empty() {
        let docs: Vec<String> = found
            .iter()
            .filter_map(|path| flow_config::explain(path))
            .map(|docs| docs.to_string())
            .collect();
        return terminal::print(&docs.join("\n"));
    }
    let registries = Registries::built_in().or_failed()?;
    let name = key.split('.').next().unwrap_or_default();
    if let Some(kind) = registries.accelerators.kind(name)
        && let Some(docs) = flow_config::explain_params(name, kind.schema().as_value(), key)
    {
        return terminal::print(&docs.to_string());
    }
    let keys = flow_config::all_keys();
    let codes = flow_validate::all_codes().map(|known| known.code);
    let kinds = registries.accelerators.kinds().map(|kind| kind.name());
    let nearest = flow_data::suggest::nearest(key, keys.iter().map(String::as_str).chain(codes).chain(kinds));
    let hint = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "`flow-train schema` prints all keys, `flow-train list codes` all codes".into(),
    };
    Err(Failure::Input(format!("there is no key or code `{key}`; {hint}")))
}
