//! From the table `[runtime.options]` of a config to typed values, with everything that is wrong at once.

use crate::spec::quoted;
use crate::value::nearest;
use crate::{
    CONTEXT_RULES, EXCLUDED, Excluded, Facts, Feature, Finding, OPTIONS, OptionSpec, OptionsError, Rule,
    Value, codes, find,
};
use flow_config::{DeviceKind, Severity};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What options are judged against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The run's device.
    pub device: DeviceKind,
    /// What is compiled into the build. [`Feature::Cubecl`] and [`Feature::Persistence`] count only if this crate has
    /// them too.
    pub features: BTreeSet<Feature>,
    /// Names of the accelerators in use; case does not matter, nor whether it is `-` or `_`.
    pub accelerators: BTreeSet<String>,
    /// Whether shapes change from step to step, for instance by mixed resolutions or a last batch that is smaller.
    pub variable_shapes: bool,
    /// Folder that relative paths start from; empty for the current one.
    pub base: PathBuf,
}

impl Context {
    /// Whether the build has a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        let here = match feature {
            Feature::Cubecl => cfg!(feature = "cubecl"),
            Feature::Persistence => cfg!(feature = "persistence"),
            Feature::Cuda => true,
        };
        here && self.features.contains(&feature)
    }

    /// Whether an accelerator is in use.
    pub fn has_accelerator(&self, name: &str) -> bool {
        let plain = |name: &str| name.to_ascii_lowercase().replace('-', "_");
        self.accelerators.iter().any(|used| plain(used) == plain(name))
    }
}

/// Options that passed every check. Made by [`parse`] only, so each value has the type of its option and something in
/// the build reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeOptions {
    values: BTreeMap<&'static str, Value>,
    warnings: Vec<Finding>,
    /// Paths of all options that something in the build and the run reads, given or not.
    read: BTreeSet<&'static str>,
}

impl RuntimeOptions {
    /// The value of an option, if it was given.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.values.get(path)
    }

    /// The options that were given, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, &Value)> {
        self.values
            .iter()
            .filter_map(|(path, value)| Some((find(path)?, value)))
    }

    /// The options that something in this build and run reads, given or not, sorted by path.
    pub fn read(&self) -> impl Iterator<Item = &'static OptionSpec> {
        self.read.iter().filter_map(|path| find(path))
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// What is probably not meant.
    pub fn warnings(&self) -> &[Finding] {
        &self.warnings
    }
}

/// Reads and checks the options of a config, `[runtime.options]`.
///
/// # Errors
/// Every [`Finding`] if one of them is an error: an unknown option, a value of the wrong type or out of range, an
/// option that nothing in this build or run reads, options that contradict one another.
pub fn parse(options: &BTreeMap<String, Json>, context: &Context) -> Result<RuntimeOptions, OptionsError> {
    let mut findings = Vec::new();
    let mut values = BTreeMap::new();
    for (key, json) in options {
        let Some(spec) = find(key) else {
            findings.push(unknown(key, json));
            continue;
        };
        match spec.kind.read(json, &context.base) {
            Ok(value) => {
                values.insert(spec.path, value);
            }
            Err(unfit) => {
                let mut finding = Finding::new(
                    Severity::Error,
                    unfit.code,
                    key,
                    format!("`{key}`: {}", unfit.message),
                )
                .help(format!("It takes {}.", spec.kind.describe()));
                finding.nearest = unfit.nearest;
                findings.push(finding);
            }
        }
        findings.extend(unread(spec, context));
    }
    let facts = Facts {
        values: &values,
        context,
    };
    for (path, value) in &values {
        let rules = find(path).map_or(&[][..], |spec| spec.conflicts);
        let found = rules.iter().filter(|rule| (rule.holds)(&facts, path));
        findings.extend(found.map(|rule| state(rule, path, &value.to_string())));
    }
    let found = CONTEXT_RULES.iter().filter(|rule| (rule.holds)(&facts, ""));
    findings.extend(found.map(|rule| state(rule, "", "")));

    // Stable: among equals the order is that of the options.
    findings.sort_by_key(|finding| finding.severity);
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(OptionsError { findings });
    }
    let read = OPTIONS.iter().filter(|spec| unread(spec, context).is_none());
    Ok(RuntimeOptions {
        values,
        warnings: findings,
        read: read.map(|spec| spec.path).collect(),
    })
}

/// A finding of a rule.
fn state(rule: &Rule, path: &str, value: &str) -> Finding {
    let message = rule.message.replace("{option}", path).replace("{value}", value);
    Finding::new(rule.severity, rule.code, path, message).help(rule.help)
}

fn unknown(key: &str, json: &Json) -> Finding {
    let meant = match json {
        Json::Object(_) => flatten(key, json),
        _ => Vec::new(),
    };
    if !meant.is_empty() {
        let meant: Vec<String> = meant
            .iter()
            .map(|(path, value)| format!("\"{path}\" = {value}"))
            .collect();
        return Finding::new(
            Severity::Error,
            codes::NESTED_TABLE,
            key,
            format!("`{key}` is a table; names of options are one word with dots, in quotation marks"),
        )
        .help(format!("Write: {}.", meant.join("; ")));
    }
    if let Some((path, entry)) = never_read(key, json) {
        let message = format!("no build of flow-train reads `{path}`: {}", entry.why);
        return Finding::new(Severity::Error, codes::NEVER_READ, key, message).help("Remove it.");
    }
    let mut allowed: Vec<String> = OPTIONS.iter().map(|spec| spec.path.to_owned()).collect();
    allowed.sort();
    let nearest = nearest(key, OPTIONS.iter().map(|spec| spec.path));
    let help = match nearest {
        Some(_) => "",
        None => "Name one of those that are allowed, or remove it.",
    };
    Finding {
        nearest,
        allowed,
        help: help.to_owned(),
        ..Finding::new(
            Severity::Error,
            codes::UNKNOWN_OPTION,
            key,
            format!("there is no option `{}`", key.escape_debug()),
        )
    }
}

/// The options that a table of tables would name if its keys were joined by dots.
fn flatten(prefix: &str, json: &Json) -> Vec<(&'static str, Json)> {
    if let Some(spec) = find(prefix) {
        return vec![(spec.path, json.clone())];
    }
    let entries = json.as_object().into_iter().flatten();
    entries
        .flat_map(|(key, value)| flatten(&format!("{prefix}.{key}"), value))
        .collect()
}

/// What is not offered and has this path, or one above it.
pub(crate) fn excluded(path: &str) -> Option<&'static Excluded> {
    let covers = |entry: &&Excluded| {
        let below = path.strip_prefix(entry.path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    EXCLUDED.iter().find(covers)
}

/// The first entry of a runtime's configuration that a key, or a table of tables, names and that is not offered.
fn never_read(key: &str, json: &Json) -> Option<(String, &'static Excluded)> {
    if let Some(entry) = excluded(key) {
        return Some((key.escape_debug().to_string(), entry));
    }
    let below = json.as_object().into_iter().flatten();
    below
        .filter_map(|(name, json)| never_read(&format!("{key}.{name}"), json))
        .next()
}

/// Why nothing would read the option in this run. One reason: the first of build and device.
fn unread(spec: &OptionSpec, context: &Context) -> Option<Finding> {
    let OptionSpec { path, .. } = spec;
    let error = |code, message| Finding::new(Severity::Error, code, path, message);
    let missing = |feature: &&Feature| !context.has_feature(**feature);
    if spec.features.iter().any(|feature| missing(&feature))
        && let Some(build) = spec.build()
    {
        let message = format!("nothing in this build reads `{path}`: builds with the feature `{build}` do");
        return Some(error(codes::MISSING_FEATURE, message).help(format!(
            "Remove the option, or build with `cargo build --release --features {build}`."
        )));
    }
    if !spec.devices.contains(&context.device) {
        let devices: Vec<&str> = spec.devices.iter().map(|device| device_name(*device)).collect();
        return Some(
            error(
                codes::WRONG_DEVICE,
                format!(
                    "nothing reads `{path}` on the device \"{}\"; it is for {}",
                    device_name(context.device),
                    quoted(&devices)
                ),
            )
            .help("Remove the option, or choose such a device with `device.kind`."),
        );
    }
    None
}

/// The name of a device in configs.
pub(crate) fn device_name(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
    }
}
