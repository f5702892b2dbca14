//! Where the plot of a chart lies, its axes, and how points get from values to pixels.

use std::fmt::Write as _;

use super::{COLOURS, DRAWN_POINTS, LineChart, MARKED_POINTS, Series, thinned};
use crate::escape::escape;
use crate::statistics::ValueRange;
use crate::ticks::{labels, nice_ticks};

pub(super) struct LegendEntry {
    pub name: String,
    pub colour: usize,
    pub dashed: bool,
    pub left: f64,
    pub baseline: f64,
}

/// Where the plot lies in the picture and which values its edges stand for.
pub(super) struct Frame {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub x_range: (f64, f64),
    pub y_range: (f64, f64),
    x_ticks: Vec<f64>,
    y_ticks: Vec<f64>,
    y_labels: Vec<String>,
    x_labels: Vec<String>,
    pub legend: Vec<LegendEntry>,
    pub empty: bool,
}

/// A generous guess of a text's width at 12 pixels, for layout without font metrics.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

impl Frame {
    pub(super) fn of(chart: &LineChart) -> Self {
        let (width, right) = (420.0, 404.0);
        let mut legend = Vec::new();
        let (mut x, mut baseline) = (14.0, 46.0);
        let names = chart
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| (series.name.clone(), index, false));
        let reference = chart.reference.iter().map(|(_, name)| (name.clone(), 0, true));
        // One unnamed line needs no legend.
        for (name, index, dashed) in names.chain(reference).filter(|(name, _, _)| !name.is_empty()) {
            let room = text_width(&name) + 21.0;
            if x > 14.0 && x + room > right {
                (x, baseline) = (14.0, baseline + 18.0);
            }
            legend.push(LegendEntry {
                name,
                colour: index % COLOURS,
                dashed,
                left: x,
                baseline,
            });
            x += room + 16.0;
        }
        let top = if legend.is_empty() { 60.0 } else { baseline + 38.0 };
        let bottom = top + 180.0;

        let drawn = || {
            chart
                .series
                .iter()
                .flat_map(|series| &series.points)
                .filter(|(x, y)| x.is_finite() && y.is_finite())
        };
        let empty = drawn().next().is_none();
        let x_range = range(extremes(drawn().map(|(x, _)| *x)));
        let band = chart
            .series
            .iter()
            .flat_map(|series| &series.band)
            .flat_map(|(_, low, high)| [*low, *high]);
        let reference = chart.reference.iter().map(|(y, _)| *y);
        let values = extremes(drawn().map(|(_, y)| *y).chain(band).chain(reference));
        let y_range = range(values);
        let (mut y_ticks, y_step) = nice_ticks(y_range.0, y_range.1, 5);
        let y_range = (
            y_ticks[0].min(y_range.0),
            y_ticks[y_ticks.len() - 1].max(y_range.1),
        );
        let y_range = within(y_range, values, chart.y_range);
        y_ticks.retain(|tick| (y_range.0..=y_range.1).contains(tick));
        let y_labels = labels(&y_ticks, y_step);
        let widest = y_labels.iter().map(|text| text_width(text)).fold(0.0, f64::max);
        let left = 14.0 + widest + 8.0;
        let wanted = if chart.round_x { 8 } else { 5 };
        let (mut x_ticks, x_step) = nice_ticks(x_range.0, x_range.1, wanted);
        let x_range = if chart.round_x {
            (
                x_ticks[0].min(x_range.0),
                x_ticks[x_ticks.len() - 1].max(x_range.1),
            )
        } else {
            x_ticks.retain(|tick| (x_range.0..=x_range.1).contains(tick));
            x_range
        };
        let x_labels = labels(&x_ticks, x_step);
        let height = bottom + 48.0;
        Self {
            width,
            height,
            left,
            right,
            top,
            bottom,
            x_range,
            y_range,
            x_ticks,
            y_ticks,
            y_labels,
            x_labels,
            legend,
            empty,
        }
    }

    fn x(&self, value: f64) -> f64 {
        let share = fraction(value, self.x_range);
        self.left + share * (self.right - self.left)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        let share = fraction(value, self.y_range);
        self.bottom - share * (self.bottom - self.top)
    }

    pub(super) fn write_axes(&self, out: &mut String, x_label: &str) -> std::fmt::Result {
        let Self {
            left,
            right,
            top,
            bottom,
            ..
        } = *self;
        for (tick, text) in self.y_ticks.iter().zip(&self.y_labels) {
            let y = self.y(*tick);
            writeln!(out, "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>")?;
            writeln!(
                out,
                "<text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                left - 7.0,
                y + 4.0
            )?;
        }
        for (tick, text) in self.x_ticks.iter().zip(&self.x_labels) {
            let x = self.x(*tick);
            // A centred label at the right edge would leave the picture.
            let anchor = if x + 0.5 * text_width(text) > self.width {
                "end"
            } else {
                "middle"
            };
            writeln!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v4\"/>")?;
            writeln!(
                out,
                "<text class=\"tick {anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{text}</text>",
                bottom + 18.0
            )?;
        }
        writeln!(
            out,
            "<path class=\"axis\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>"
        )?;
        let middle = 0.5 * (left + right);
        writeln!(
            out,
            "<text class=\"note middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 38.0,
            escape(x_label)
        )
    }

    pub(super) fn write_band(&self, out: &mut String, series: &Series, colour: usize) -> std::fmt::Result {
        let finite = |(x, low, high): &(f64, f64, f64)| x.is_finite() && low.is_finite() && high.is_finite();
        for run in series
            .band
            .chunk_by(|a, b| finite(a) && finite(b))
            .filter(|run| run.iter().all(finite))
        {
            let every = run.len().div_ceil(DRAWN_POINTS);
            let mut kept: Vec<_> = run.iter().step_by(every).collect();
            if !(run.len() - 1).is_multiple_of(every) {
                kept.extend(run.last());
            }
            let upper = kept
                .iter()
                .map(|(x, _, high)| format!("{:.1} {:.1}", self.x(*x), self.y(*high)));
            let lower = kept
                .iter()
                .rev()
                .map(|(x, low, _)| format!("{:.1} {:.1}", self.x(*x), self.y(*low)));
            let corners: Vec<String> = upper.chain(lower).collect();
            writeln!(
                out,
                "<path class=\"band f{colour}\" d=\"M{}Z\"/>",
                corners.join("L")
            )?;
        }
        Ok(())
    }

    /// Draws a line and returns how many of its values are not finite.
    pub(super) fn write_line(
        &self,
        out: &mut String,
        series: &Series,
        colour: usize,
    ) -> Result<usize, std::fmt::Error> {
        let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        for run in series
            .points
            .chunk_by(|a, b| finite(a) && finite(b))
            .filter(|run| run.iter().all(finite))
        {
            let kept = thinned(run);
            let corners: Vec<String> = kept
                .iter()
                .map(|(x, y)| format!("{:.1} {:.1}", self.x(*x), self.y(*y)))
                .collect();
            if kept.len() > 1 {
                let dense = if kept.len() > MARKED_POINTS { " dense" } else { "" };
                writeln!(
                    out,
                    "<path class=\"line{dense} c{colour}\" d=\"M{}\"/>",
                    corners.join("L")
                )?;
            }
            // A few points are marked, so that one sees where was measured; a single one would not show otherwise.
            if kept.len() <= MARKED_POINTS {
                for (x, y) in &kept {
                    let (x, y) = (self.x(*x), self.y(*y));
                    writeln!(
                        out,
                        "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>"
                    )?;
                }
            }
        }
        Ok(series.points.iter().filter(|point| !finite(point)).count())
    }
}

/// The ends of an axis cut to `range`. An end that values lie beyond is none.
fn within(axis: (f64, f64), values: Option<(f64, f64)>, range: ValueRange) -> (f64, f64) {
    let Some((least, most)) = values else { return axis };
    let low = range.low.filter(|low| *low <= least);
    let high = range.high.filter(|high| *high >= most);
    let cut = (
        low.map_or(axis.0, |low| axis.0.max(low)),
        high.map_or(axis.1, |high| axis.1.min(high)),
    );
    if cut.0 < cut.1 { cut } else { axis }
}

/// Smallest and largest finite value.
pub(super) fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    // Bounded, so that widening the range and rounding it to ticks cannot overflow; what lies beyond is drawn at
    // the edge.
    let bounded = values.filter(|v| v.is_finite()).map(|v| v.clamp(-1e300, 1e300));
    bounded.fold(None, |ends: Option<(f64, f64)>, value| {
        Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    })
}

/// The ends of an axis for these values, widened if they are the same; 0 to 1 without any.
pub(super) fn range(ends: Option<(f64, f64)>) -> (f64, f64) {
    match ends {
        None => (0.0, 1.0),
        Some((low, high)) if low == high => {
            let around = if low == 0.0 { 1.0 } else { 0.5 * low.abs() };
            (low - around, high + around)
        }
        Some(ends) => ends,
    }
}

/// Where `value` lies between the ends, without overflow for ends near the largest numbers.
pub(super) fn fraction(value: f64, (low, high): (f64, f64)) -> f64 {
    ((0.5 * value - 0.5 * low) / (0.5 * high - 0.5 * low)).clamp(0.0, 1.0)
}
