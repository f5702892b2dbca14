//! `schema`: the JSON schema of the config.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_train::Registries;

/// Prints the schema as `configs/schema.json` has it.
pub fn run() -> Result<(), Failure> {
    let registries = Registries::built_in().or_failed()?;
    terminal::print(&flow_train::schema_text(&registries))
}
