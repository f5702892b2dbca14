//! Keys that an object has twice: of those, a map keeps the last one, and a person does not see it.

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt::{self, Formatter};

/// The first key that an object has again, if it has any twice; values are skipped.
///
/// # Errors
/// The one of the format, where there is no object whose keys are texts.
pub fn repeated_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_map(KeysOfObject)
}

struct KeysOfObject;

impl<'de> Visitor<'de> for KeysOfObject {
    type Value = Option<String>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut known = HashSet::new();
        let mut repeated = None;
        // To the end, whatever is found: formats refuse what was read in part.
        while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            let same = known.replace(key);
            repeated = repeated.or(same);
        }
        Ok(repeated)
    }
}
