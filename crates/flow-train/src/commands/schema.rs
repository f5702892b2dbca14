//! `schema`: the JSON schema of the config.

use crate::failure::Failure;
use crate::terminal;

/// Prints the schema as `configs/schema.json` has it.
pub fn run() -> Result<(), Failure> {
    terminal::print(&flow_config::schema_text())
}
