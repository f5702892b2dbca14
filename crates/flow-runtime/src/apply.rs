//! Options made effective: handed to the runtimes, once per process, before the first device is opened.

use crate::overlay::{difference, overlay, resolve};
use crate::{OptionSpec, OverlayError, Runtime, RuntimeOptions, Value};
use burn_std::config::{BurnConfig, RuntimeConfig};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// An option that is in force, for `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The option.
    pub key: String,
    /// The value in force, as read back from the runtime.
    pub value: Json,
    /// The value that the runtime would have taken; `null` for none.
    pub default: Json,
    /// Where the value is from, for instance `train.toml:12:1`; [`Applied::DEFAULT`] or [`Applied::FOUND`].
    pub source: String,
}

impl Applied {
    /// The source of an option that nobody gave.
    pub const DEFAULT: &'static str = "default";
    /// The source of a value that a runtime had before: from the program, a `burn.toml` or `cubecl.toml`, or an environment
    /// variable of its own.
    pub const FOUND: &'static str = "in force before flow-train began";
}

/// Why options are not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// A runtime has read or been given its configuration before.
    #[error(
        "the {runtime} runtime was initialised before options could be applied ({keys}). Apply them before the first \
         device is opened, and once per process; nothing was changed"
    )]
    TooLate {
        /// Which.
        runtime: Runtime,
        /// The options that come too late.
        keys: String,
    },
    /// A runtime has another value than it was given.
    #[error("`{key}` was set to {wanted}, but {found} is in force{reason}")]
    NotInForce {
        /// The option.
        key: String,
        /// As JSON.
        wanted: String,
        /// As JSON.
        found: String,
        /// What may be the cause, beginning with punctuation; may be empty.
        reason: &'static str,
    },
    /// A file or folder cannot be written to. CubeCL and Burn would panic, or do without.
    #[error("`{key}`: cannot write to {}: {source}. Choose another path, or mend its permissions", path.display())]
    Unwritable {
        /// The option.
        key: String,
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The linked runtime is another than the table is about.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
}

/// Hands the options to the runtimes, and reads every value back.
///
/// Both runtimes take their own defaults for all that is not given: no `burn.toml`, no `cubecl.toml` and no environment
/// variable of Burn's or CubeCL's counts, whether or not an option is given.
///
/// Call it before the first device is opened, and once: the runtimes keep their first configuration until the process
/// ends, so nothing can be taken back, and tests need a process of their own. A runtime that has a configuration already and
/// is given no option keeps it; the record then has the values that it has, with [`Applied::FOUND`].
///
/// `source` says where an option's value is from; the answer goes into the record, which has every option that something
/// reads, those that nobody gave with [`Applied::DEFAULT`].
///
/// # Errors
/// [`ApplyError`]. Both runtimes and all files are looked at before the first change, so after
/// [`ApplyError::TooLate`], [`ApplyError::Unwritable`] or [`ApplyError::Overlay`] nothing has changed, except that
/// files and folders that were missing may exist.
pub fn apply(options: &RuntimeOptions, source: impl Fn(&str) -> String) -> Result<Vec<Applied>, ApplyError> {
    let burn = Stage::<BurnConfig>::prepare(options, Runtime::Burn)?;
    #[cfg(feature = "cubecl")]
    let cubecl = Stage::<cubecl_runtime::config::CubeClRuntimeConfig>::prepare(options, Runtime::Cubecl)?;
    for (spec, value) in options.iter() {
        match value {
            Value::File(path) => writable_file(path),
            Value::Directory(path) => fs::create_dir_all(path),
            _ => Ok(()),
        }
        .map_err(|error| ApplyError::Unwritable {
            key: spec.path.to_owned(),
            path: match value {
                Value::File(path) | Value::Directory(path) => path.clone(),
                _ => PathBuf::new(),
            },
            source: error,
        })?;
    }
    let applied = burn.commit(options, &source)?;
    #[cfg(feature = "cubecl")]
    let applied = {
        let of_cubecl = cubecl.commit(options, &source)?;
        effects(options)?;
        [applied, of_cubecl].concat()
    };
    Ok(applied)
}

/// The loggers open their files with `unwrap`, so whether that works is found out here.
fn writable_file(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().append(true).create(true).open(path)?;
    Ok(())
}

/// One runtime's configuration on its way; none if it has one that is to stay.
struct Stage<C> {
    runtime: Runtime,
    config: Option<C>,
}

impl<C: RuntimeConfig + Serialize + DeserializeOwned> Stage<C> {
    /// Looks whether it is early enough.
    fn prepare(options: &RuntimeOptions, runtime: Runtime) -> Result<Self, ApplyError> {
        // Looks without `get`, which would initialise what it looks at.
        let is_set = C::storage().lock().is_some();
        if is_set && is_given(options, runtime) {
            return Err(too_late(options, runtime));
        }
        let config = (!is_set).then(|| overlay(options, runtime)).transpose()?;
        Ok(Self { runtime, config })
    }

    /// Sets, reads back, compares.
    fn commit(
        self,
        options: &RuntimeOptions,
        source: &impl Fn(&str) -> String,
    ) -> Result<Vec<Applied>, ApplyError> {
        let Self { runtime, config } = self;
        let is_set_here = config.is_some_and(|config| C::try_set(config));
        if !is_set_here && is_given(options, runtime) {
            return Err(too_late(options, runtime));
        }
        // Another thread may have been quicker; where nothing was asked for, what it has stays.
        let not_given = match is_set_here {
            true => Applied::DEFAULT,
            false => Applied::FOUND,
        };
        let json = |config: &C| {
            serde_json::to_value(config).map_err(|problem| OverlayError::Refused {
                runtime,
                keys: "its own configuration".into(),
                problem: problem.to_string(),
            })
        };
        let tree = json(C::get().as_ref())?;
        if let Some((key, wanted, found)) = difference(options, runtime, &tree) {
            return Err(not_in_force(key, wanted, found, ""));
        }
        let defaults = json(&C::default())?;
        let at = |tree: &Json, path| resolve(tree, path).cloned().unwrap_or(Json::Null);
        let given = |spec: &OptionSpec| options.get(spec.path).is_some();
        let records = options
            .read()
            .filter(|spec| spec.runtime() == runtime)
            .map(|spec| Applied {
                key: spec.path.to_owned(),
                value: at(&tree, spec.inner_path()),
                default: at(&defaults, spec.inner_path()),
                source: if given(spec) {
                    source(spec.path)
                } else {
                    not_given.to_owned()
                },
            });
        Ok(records.collect())
    }
}

/// Whether there is an option of a runtime.
fn is_given(options: &RuntimeOptions, runtime: Runtime) -> bool {
    options.iter().any(|(spec, _)| spec.runtime() == runtime)
}

fn too_late(options: &RuntimeOptions, runtime: Runtime) -> ApplyError {
    let keys: Vec<String> = options
        .iter()
        .filter(|(spec, _)| spec.runtime() == runtime)
        .map(|(spec, _)| format!("`{}`", spec.path))
        .collect();
    ApplyError::TooLate {
        runtime,
        keys: keys.join(", "),
    }
}

fn not_in_force(key: &str, wanted: Json, found: Json, reason: &'static str) -> ApplyError {
    ApplyError::NotInForce {
        key: key.to_owned(),
        wanted: wanted.to_string(),
        found: found.to_string(),
        reason,
    }
}

/// Reads back what CubeCL makes of its configuration elsewhere: a stream policy or an environment that the program chose
/// itself would win over the configuration without a word.
#[cfg(feature = "cubecl")]
fn effects(options: &RuntimeOptions) -> Result<(), ApplyError> {
    use cubecl_environment::{environment, stream};

    const REASON: &str = ": the program itself chose it";
    for (spec, value) in options.iter() {
        let found: Json = match spec.path {
            "cubecl.streaming.policy" => serde_json::to_value(stream::policy()).unwrap_or_default(),
            "cubecl.environment.name" => environment::active().as_ref().into(),
            "cubecl.environment.path" => match value {
                Value::Directory(_) => {
                    serde_json::json!({ "directory": environment::root().to_string_lossy() })
                }
                _ => continue,
            },
            _ => continue,
        };
        if found != value.to_json() {
            return Err(not_in_force(spec.path, value.to_json(), found, REASON));
        }
    }
    Ok(())
}
