//! What tests of several crates share: the functions of `flow_config`, for configs that may name every plug-in of this
//! workspace.

use std::path::Path;
use std::sync::LazyLock;

use flow_config::{Catalog, Config, FieldDoc, Inspection, Report, Resolved};
use flow_trainer::Plugins;
use serde_json::{Map, Value};

/// The plug-ins of this workspace.
pub static PLUGINS: LazyLock<Plugins> =
    LazyLock::new(|| Plugins::built_in().unwrap_or_else(|error| panic!("{error}")));
/// What a config may say of them.
pub static CATALOG: LazyLock<Catalog> = LazyLock::new(|| PLUGINS.catalog());

/// The defaults.
pub fn defaults() -> Config {
    CATALOG.defaults().clone()
}

/// The parameters of a plug-in, from a table as JSON.
///
/// # Panics
/// If it is no table.
pub fn params(table: Value) -> Map<String, Value> {
    match table {
        Value::Object(params) => params,
        other => panic!("{other} is no table"),
    }
}

/// [`flow_config::load`].
///
/// # Errors
/// Those of a wrong config.
pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Resolved, Report> {
    flow_config::load(&CATALOG, path, overrides)
}

/// [`flow_config::parse_named`].
///
/// # Errors
/// Those of a wrong config.
pub fn parse_named(name: &str, text: &str, overrides: &[String]) -> Result<Resolved, Report> {
    flow_config::parse_named(&CATALOG, name, text, overrides)
}

/// [`flow_config::parse_str`].
///
/// # Errors
/// Those of a wrong config.
pub fn parse_str(text: &str) -> Result<Resolved, Report> {
    flow_config::parse_str(&CATALOG, text)
}

/// [`flow_config::check`].
///
/// # Errors
/// Those of a wrong config.
pub fn check(config: &Config) -> Result<Resolved, Report> {
    flow_config::check(&CATALOG, config)
}

/// [`flow_config::inspect`].
pub fn inspect(path: impl AsRef<Path>, overrides: &[String]) -> Inspection {
    flow_config::inspect(&CATALOG, path, overrides)
}

/// [`flow_config::inspect_named`].
pub fn inspect_named(name: &str, text: &str, overrides: &[String]) -> Inspection {
    flow_config::inspect_named(&CATALOG, name, text, overrides)
}

/// [`flow_config::schema`].
pub fn schema() -> Value {
    flow_config::schema(&CATALOG)
}

/// [`flow_config::explain`].
pub fn explain(key: &str) -> Option<FieldDoc> {
    flow_config::explain(&CATALOG, key)
}

/// [`flow_config::all_keys`].
pub fn all_keys() -> Vec<String> {
    flow_config::all_keys(&CATALOG)
}

/// [`flow_config::find_value`].
pub fn find_value(value: &str) -> Vec<(String, String)> {
    flow_config::find_value(&CATALOG, value)
}

/// [`flow_config::names`].
pub fn names() -> Vec<String> {
    flow_config::names(&CATALOG)
}
