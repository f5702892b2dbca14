//! Whether the table still is about the runtimes that are linked. The tests of this crate run it; `doctor` may.

use crate::overlay::resolve;
use crate::{DefaultValue, Excluded, Kind, OptionSpec, Runtime};
use serde_json::Value as Json;

/// One way in which table and runtime have come apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Drift {
    /// The table has a path that the runtime has not.
    #[error("`{path}` is in the table, but not in the runtime's configuration: renamed or removed")]
    Unresolved {
        /// The path.
        path: String,
    },
    /// The runtime's default is of another type.
    #[error("`{path}`: {found} is not of the type in the table ({expected})")]
    OtherType {
        /// The path.
        path: String,
        /// Type in the table.
        expected: String,
        /// The runtime's default.
        found: String,
    },
    /// The runtime's default is another value.
    #[error("`{path}`: the default was {table}, and now is {runtime}")]
    OtherDefault {
        /// The path.
        path: String,
        /// Default in the table.
        table: String,
        /// The runtime's default.
        runtime: String,
    },
    /// The runtime has an entry that is neither in the table nor excluded.
    #[error("`{path}` is new in the runtime's configuration: add it to the table, or to what is excluded")]
    Unlisted {
        /// The path.
        path: String,
    },
    /// An excluded path is not there.
    #[error("`{path}` is excluded, but not in the runtime's configuration: renamed or removed")]
    ExcludedInVain {
        /// The path.
        path: String,
    },
}

/// Compares rows of one runtime with its serialised defaults. All differences, none if all is well.
///
/// Rows and exclusions of the other runtime are passed over; rows whose features are not compiled in are the caller's
/// to leave out.
pub fn drift<'a>(
    rows: impl IntoIterator<Item = &'a OptionSpec>,
    excluded: &[Excluded],
    runtime: Runtime,
    defaults: &Json,
) -> Vec<Drift> {
    let mut found = Vec::new();
    let mut known = Vec::new();
    for spec in rows.into_iter().filter(|spec| spec.runtime() == runtime) {
        known.push(spec.path);
        let path = || spec.path.to_owned();
        match resolve(defaults, spec.inner_path()) {
            None => found.push(Drift::Unresolved { path: path() }),
            Some(default) if !fits(spec, default) => found.push(Drift::OtherType {
                path: path(),
                expected: spec.kind.describe(),
                found: default.to_string(),
            }),
            Some(default) if *default != spec.default.to_json() => found.push(Drift::OtherDefault {
                path: path(),
                table: spec.default.to_string(),
                runtime: default.to_string(),
            }),
            Some(_) => {}
        }
    }
    let prefix = format!("{}.", runtime.prefix());
    for entry in excluded {
        if let Some(inner) = entry.path.strip_prefix(&prefix)
            && resolve(defaults, inner).is_none()
        {
            found.push(Drift::ExcludedInVain {
                path: entry.path.to_owned(),
            });
        }
    }
    let mut leaves = Vec::new();
    collect_leaves(runtime.prefix(), defaults, &mut leaves);
    for leaf in leaves {
        let under = |entry: &Excluded| {
            leaf.strip_prefix(entry.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if !known.contains(&&*leaf) && !excluded.iter().any(under) {
            found.push(Drift::Unlisted { path: leaf });
        }
    }
    found
}

/// Whether a runtime's default is of the row's type. No value is of every type; setting one tells.
fn fits(spec: &OptionSpec, default: &Json) -> bool {
    match (spec.kind, default) {
        (_, Json::Null) => spec.default == DefaultValue::Unset,
        (Kind::Bool, default) => default.is_boolean(),
        (Kind::Integer { min, max }, default) => {
            default.as_u64().is_some_and(|value| (min..=max).contains(&value))
        }
        (Kind::Choice(words) | Kind::Place(words), default) => {
            default.as_str().is_some_and(|word| words.contains(&word))
        }
        (Kind::Name | Kind::File, default) => default.is_string(),
    }
}

/// Paths of all entries that are not tables.
fn collect_leaves(path: &str, tree: &Json, leaves: &mut Vec<String>) {
    match tree {
        Json::Object(table) => {
            for (key, value) in table {
                collect_leaves(&format!("{path}.{key}"), value, leaves);
            }
        }
        _ => leaves.push(path.to_owned()),
    }
}
