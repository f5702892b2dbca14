//! `[runtime.options]`: checked against this build, and made effective before the first device is opened.

use crate::EnvironmentError;
use flow_config::{Config, Resolved, Source};
use flow_runtime::{Applied, Context, Feature, RuntimeOptions};
use std::path::Path;

/// What is compiled into this build besides what every build has: CubeCL with the feature `cuda`, its caches on disk with
/// `kernel-cache`.
pub(crate) const FEATURES: &[Feature] = if cfg!(feature = "kernel-cache") {
    &[Feature::Cubecl, Feature::Cuda, Feature::Persistence]
} else if cfg!(feature = "cuda") {
    &[Feature::Cubecl, Feature::Cuda]
} else {
    &[]
};

/// The options of a config. Relative paths start from `base`.
///
/// # Errors
/// [`EnvironmentError::RuntimeOptions`] with everything that is wrong: unknown options, values out of range, options
/// that nothing in this build or run reads.
pub fn runtime_options(config: &Config, base: &Path) -> Result<RuntimeOptions, EnvironmentError> {
    let acceleration = &config.acceleration;
    let of_run = acceleration.shared.iter().chain(&acceleration.rollout);
    let entries = of_run.chain(&config.exploration.accelerators);
    let context = Context {
        device: config.device.kind,
        features: FEATURES.iter().copied().collect(),
        accelerators: entries.map(|entry| entry.name.clone()).collect(),
        variable_shapes: config.has_ragged_batches(),
        base: base.to_owned(),
    };
    Ok(flow_runtime::parse(&config.runtime.options, &context)?)
}

/// Makes the options of a config effective, and reads each value back. Call it before the first device is opened, and once
/// per process. What no option says is the runtimes' own default: files and environment variables of theirs do not count.
///
/// # Errors
/// As [`runtime_options`], and [`EnvironmentError::Apply`] if a runtime has its configuration already, or has another
/// value in force than it was given.
pub fn apply_runtime_options(resolved: &Resolved, base: &Path) -> Result<Vec<Applied>, EnvironmentError> {
    let options = runtime_options(&resolved.config, base)?;
    let source = |key: &str| {
        let quoted = format!("runtime.options.\"{key}\"");
        let source = resolved.sources.get(&quoted);
        source.unwrap_or(&Source::Default).to_string()
    };
    Ok(flow_runtime::apply(&options, source)?)
}

/// Makes the runtimes' own defaults effective, for what opens a device and computes nothing by a config's options.
///
/// # Errors
/// As [`apply_runtime_options`].
pub fn apply_no_runtime_options() -> Result<(), EnvironmentError> {
    flow_runtime::apply(&RuntimeOptions::default(), |_| String::new())?;
    Ok(())
}
