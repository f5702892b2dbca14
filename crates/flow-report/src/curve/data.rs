//! The values of a chart's points for the script of a page, which shows them where the pointer is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::frame::Frame;
use super::{COLOURS, Series, thinned};

/// `[[left, right, top, bottom, x of left, x of right, y of bottom, y of top], [[name, colour, [[x, y, low, high], …]], …]]`: pixels
/// of the plot, the values at its edges, and each line's points with their interval if they have one. A y that is not finite is null.
/// At most about a thousand points of a line, those that are drawn.
pub(super) fn json(frame: &Frame, series: &[Series]) -> String {
    let edges = [
        frame.left,
        frame.right,
        frame.top,
        frame.bottom,
        frame.x_range.0,
        frame.x_range.1,
        frame.y_range.0,
        frame.y_range.1,
    ];
    let lines = series.iter().enumerate().map(|(index, series)| {
        let name = Value::from(series.name.as_str());
        format!("[{name},{},[{}]]", index % COLOURS, points(series))
    });
    format!(
        "[[{}],[{}]]",
        edges.map(short).join(","),
        lines.collect::<Vec<_>>().join(",")
    )
}

fn points(series: &Series) -> String {
    let bands: BTreeMap<u64, (f64, f64)> = (series.band.iter())
        .filter(|(_, low, high)| low.is_finite() && high.is_finite())
        .map(|(x, low, high)| (x.to_bits(), (*low, *high)))
        .collect();
    let mut out = String::new();
    for (x, y) in thinned(&series.points) {
        if !x.is_finite() {
            continue;
        }
        if !out.is_empty() {
            out.push(',');
        }
        // Writing to a String cannot fail.
        let _ = match bands.get(&x.to_bits()) {
            Some((low, high)) => write!(
                out,
                "[{},{},{},{}]",
                short(x),
                short(y),
                short(*low),
                short(*high)
            ),
            None => write!(out, "[{},{}]", short(x), short(y)),
        };
    }
    out
}

/// Six significant digits, as JSON; `null` for what is not finite.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "null".into();
    }
    // A step of a long run has more digits than a measured value needs.
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    if (1e-5..1e15).contains(&rounded.abs()) {
        rounded.to_string()
    } else {
        format!("{rounded:e}")
    }
}
