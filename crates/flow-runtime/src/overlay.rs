//! Options laid over the defaults of the runtimes' configurations. Pure: nothing here touches the process.

use crate::{Runtime, RuntimeOptions};
use burn_std::config::BurnConfig;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

/// The table and the linked runtime do not agree. No option that [`parse`](crate::parse) accepts gives this unless the
/// runtime was replaced by another version; the sentinels of this crate's tests would have found it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The path is not there.
    #[error("`{key}`: this version of {runtime} has no such entry in its configuration")]
    Unresolved {
        /// Whose configuration.
        runtime: Runtime,
        /// The option.
        key: String,
    },
    /// The runtime refuses a value.
    #[error("this version of {runtime} refuses {keys}: {problem}")]
    Refused {
        /// Whose configuration.
        runtime: Runtime,
        /// The options that were set.
        keys: String,
        /// What it says.
        problem: String,
    },
    /// The runtime took the value and has another.
    #[error("`{key}` was set to {wanted}, but this version of {runtime} made {found} of it")]
    Changed {
        /// Whose configuration.
        runtime: Runtime,
        /// The option.
        key: String,
        /// As JSON.
        wanted: String,
        /// As JSON.
        found: String,
    },
}

/// Burn's configuration: its defaults with the options of `burn.` in their places.
///
/// Neither `burn.toml` nor environment variables are read.
///
/// # Errors
/// [`OverlayError`].
pub fn burn_config(options: &RuntimeOptions) -> Result<BurnConfig, OverlayError> {
    overlay(options, Runtime::Burn)
}

/// CubeCL's configuration: its defaults with the options of `cubecl.` in their places.
///
/// Neither `cubecl.toml` nor environment variables are read.
///
/// # Errors
/// [`OverlayError`].
#[cfg(feature = "cubecl")]
pub fn cubecl_config(
    options: &RuntimeOptions,
) -> Result<cubecl_runtime::config::CubeClRuntimeConfig, OverlayError> {
    overlay(options, Runtime::Cubecl)
}

/// Lays the options over the defaults, and compares what came of it.
pub(crate) fn overlay<C>(options: &RuntimeOptions, runtime: Runtime) -> Result<C, OverlayError>
where
    C: Default + Serialize + DeserializeOwned,
{
    let refused = |problem: serde_json::Error| {
        let keys: Vec<String> = options
            .iter()
            .filter(|(spec, _)| spec.runtime() == runtime)
            .map(|(spec, value)| format!("`{}` = {value}", spec.path))
            .collect();
        OverlayError::Refused {
            runtime,
            keys: keys.join(", "),
            problem: problem.to_string(),
        }
    };
    let mut tree = serde_json::to_value(C::default()).map_err(refused)?;
    for (spec, value) in options.iter().filter(|(spec, _)| spec.runtime() == runtime) {
        let place = resolve_mut(&mut tree, spec.inner_path()).ok_or_else(|| OverlayError::Unresolved {
            runtime,
            key: spec.path.to_owned(),
        })?;
        *place = value.to_json();
    }
    let config: C = serde_json::from_value(tree).map_err(refused)?;
    let tree = serde_json::to_value(&config).map_err(refused)?;
    match difference(options, runtime, &tree) {
        None => Ok(config),
        Some((key, wanted, found)) => Err(OverlayError::Changed {
            runtime,
            key: key.to_owned(),
            wanted: wanted.to_string(),
            found: found.to_string(),
        }),
    }
}

/// The first option whose value in a serialised configuration is not the one that was given.
pub(crate) fn difference(
    options: &RuntimeOptions,
    runtime: Runtime,
    tree: &Json,
) -> Option<(&'static str, Json, Json)> {
    options
        .iter()
        .filter(|(spec, _)| spec.runtime() == runtime)
        .find_map(|(spec, value)| {
            let wanted = value.to_json();
            let found = resolve(tree, spec.inner_path()).cloned().unwrap_or(Json::Null);
            (wanted != found).then_some((spec.path, wanted, found))
        })
}

/// The entry of a dotted path.
pub(crate) fn resolve<'t>(tree: &'t Json, path: &str) -> Option<&'t Json> {
    path.split('.').try_fold(tree, |tree, key| tree.get(key))
}

fn resolve_mut<'t>(tree: &'t mut Json, path: &str) -> Option<&'t mut Json> {
    path.split('.').try_fold(tree, |tree, key| tree.get_mut(key))
}
