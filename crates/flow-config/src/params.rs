//! Parameters whose schema is not the config's but somebody else's, such as an accelerator's.

use serde_json::Value as Json;

use crate::check::check_below;
use crate::diagnostic::Diagnostic;
use crate::overrides::key_path;
use crate::schema::tidy;
use crate::tree::{Segment, from_json};

/// Checks parameters that stand at the dotted `path` of a config against the JSON schema that schemars made of their
/// type: unknown keys with the nearest known one, types, ranges, allowed texts, what is missing. All at once, in the
/// words that the config's own keys have, and with paths but no places; see
/// [`Resolved::located`](crate::Resolved::located).
///
/// What the schema says beyond that is passed over, so their type has the last word.
pub fn check_params(params: &Json, schema: &Json, path: &str) -> Vec<Diagnostic> {
    let Some(node) = from_json(params) else {
        return Vec::new();
    };
    let segment = |name: String| match name.parse() {
        Ok(index) => Segment::Index(index),
        Err(_) => Segment::Key(name),
    };
    let path = key_path(path).unwrap_or_default().into_iter().map(segment);
    let mut schema = schema.clone();
    tidy(&mut schema);
    check_below(&node, &schema, path.collect())
}
