//! Coefficients in the precision in which they are used.
//!
//! A config is read in 64 bits, and the arithmetic of training is f32. A coefficient that f32 makes 0, 1 or infinite would switch
//! off what it is for, or break it, without a word.

use super::Rules;
use crate::codes;
use crate::resolved::leaves;
use crate::sections::Dynamics;
use crate::tree::dotted;

/// Sections whose numbers are used on the host in f64.
const IN_F64: [&str; 2] = ["advantage.", "scheduler."];
/// The least noise that is more than rounding beside latents, whose values are about 1: some hundred distances of f32 there.
const LEAST_NOISE: f64 = 1e-5;

pub(super) fn check(rules: &mut Rules<'_>) {
    noise(rules);
    let mut found = Vec::new();
    for (path, value) in leaves(rules.config) {
        let key = dotted(&path);
        if IN_F64.iter().any(|section| key.starts_with(section)) {
            continue;
        }
        let values = match &value {
            serde_json::Value::Array(entries) => entries.iter().filter_map(float).collect(),
            one => float(one).into_iter().collect::<Vec<f64>>(),
        };
        let is_clip = key.ends_with(".clip_range");
        found.extend(
            values
                .into_iter()
                .filter_map(|value| Some((key.clone(), value, becomes(value, is_clip)?))),
        );
    }
    for (key, value, becomes) in found {
        let message =
            format!("`{key}` is {value:e}, which is {becomes} in f32, the precision in which it is used");
        rules
            .error(codes::RULE_PRECISION, &[&key], message)
            .help("f32 has about 7 digits, and magnitudes from 1.2e-38 to 3.4e38; take a number that it can tell from that");
    }
}

/// Noise is added to latents in f32: of less than their rounding nothing is left, and no log-probability tells one step from
/// another.
fn noise(rules: &mut Rules<'_>) {
    let scheduler = &rules.config.scheduler;
    if scheduler.dynamics == Dynamics::Ode {
        return;
    }
    let steps = 0..scheduler.steps;
    let mut levels = steps.filter_map(|step| scheduler.noise_level_at(step));
    let Some(level) = levels.find(|level| *level > 0.0 && *level < LEAST_NOISE) else {
        return;
    };
    let message = format!(
        "`scheduler.noise_level` is {level:e}, and so little noise is lost in f32, the precision of latents, whose values are about 1"
    );
    rules
        .error(codes::RULE_PRECISION, &["scheduler.noise_level"], message)
        .help(format!(
            "take {LEAST_NOISE:e} or more, 0.1 to 1 are usual; for steps without noise set it to 0, or `scheduler.dynamics = \"ode\"`"
        ));
}

/// A number that was written with a fraction or an exponent; whole ones are counts.
fn float(value: &serde_json::Value) -> Option<f64> {
    value.is_f64().then(|| value.as_f64()).flatten()
}

/// What f32 makes of `value`, if that is something else in kind.
fn becomes(value: f64, is_clip: bool) -> Option<&'static str> {
    let narrow = value as f32;
    if value != 0.0 && narrow.abs() < f32::MIN_POSITIVE {
        // Processors and kernels may take what is below the normal numbers for 0.
        return Some("0");
    }
    if !narrow.is_finite() {
        return Some("infinite");
    }
    if value != 1.0 && narrow == 1.0 {
        return Some("1");
    }
    if is_clip && value != 0.0 && 1.0 + narrow == 1.0 {
        return Some("no distance from a ratio of 1");
    }
    None
}
