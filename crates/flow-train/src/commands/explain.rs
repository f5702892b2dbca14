//! `explain`: what a key of the config means, or why a check says what it says.

use crate::failure::Failure;
use crate::terminal;

/// Prints the documentation of `key`, or of every key of that name; or the reason of a diagnostic's code.
pub fn run(key: &str) -> Result<(), Failure> {
    if let Some(why) = flow_validate::explain(key).or_else(|| flow_config::codes::explain_code(key)) {
        return terminal::line(&format!("{key}\n  {why}"));
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
    let known = flow_config::all_keys();
    let nearest = flow_data::suggest::nearest(key, known.iter().map(String::as_str));
    let hint = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "`flow-train schema` prints all keys".into(),
    };
    Err(Failure::Input(format!("there is no key or code `{key}`; {hint}")))
}
