//! Line charts as SVG text, written by hand so that the same data give the same bytes.
//!
//! Colours are CSS variables with a light and a dark value, so a chart fits the page it is opened in or put into.

mod data;
mod frame;

use std::fmt::Write as _;

use crate::escape::escape;
use crate::metrics::Metrics;
use crate::statistics::ValueRange;
use frame::Frame;

/// Points above which a series is thinned: more would not be seen.
const DRAWN_POINTS: usize = 960;
/// Points up to which each one is marked.
const MARKED_POINTS: usize = 40;
/// Between charts of a row.
const GAP: f64 = 12.0;

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// (x, y) in the order in which they are joined, that of x where there are more than a thousand. A y that is not finite
    /// interrupts the line.
    pub points: Vec<(f64, f64)>,
    /// (x, low, high) of an interval around the line; may be empty.
    pub band: Vec<(f64, f64, f64)>,
}

impl Series {
    /// A line without a band.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            band: Vec::new(),
        }
    }

    /// Adds an interval.
    #[must_use]
    pub fn band(mut self, band: Vec<(f64, f64, f64)>) -> Self {
        self.band = band;
        self
    }

    /// The series of `key` in the records of `kind`, with the band of two other keys if they are given.
    pub fn from_metrics(
        metrics: &Metrics,
        name: &str,
        kind: &str,
        key: &str,
        band: Option<(&str, &str)>,
    ) -> Self {
        let points = metrics
            .series(kind, key)
            .into_iter()
            .map(|(step, value)| (step as f64, value))
            .collect();
        let band = band
            .map(|(low, high)| metrics.band(kind, low, high))
            .unwrap_or_default();
        Self::new(name, points).band(
            band.into_iter()
                .map(|(step, low, high)| (step as f64, low, high))
                .collect(),
        )
    }
}

/// A line chart.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    title: String,
    x_label: String,
    y_label: String,
    series: Vec<Series>,
    reference: Option<(f64, String)>,
    round_x: bool,
    y_range: ValueRange,
}

impl LineChart {
    /// An empty chart.
    pub fn new(title: &str, x_label: &str, y_label: &str) -> Self {
        let [title, x_label, y_label] = [title, x_label, y_label].map(str::to_owned);
        Self {
            title,
            x_label,
            y_label,
            series: Vec::new(),
            reference: None,
            round_x: false,
            y_range: ValueRange::default(),
        }
    }

    /// Lets the x axis begin and end at ticks, as the y axis does: for an x that is measured, whose smallest and largest
    /// values mean nothing.
    #[must_use]
    pub fn round_x(mut self) -> Self {
        self.round_x = true;
        self
    }

    /// Ends the y axis where the values end by their nature: an axis of probabilities does not go on to 1.2.
    #[must_use]
    pub fn y_within(mut self, range: ValueRange) -> Self {
        self.y_range = range;
        self
    }

    /// Adds a line.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a dashed horizontal line, for example at the value before training.
    #[must_use]
    pub fn reference(mut self, y: f64, name: &str) -> Self {
        self.reference = Some((y, name.into()));
        self
    }

    /// The chart as a complete SVG document, which may also be put into HTML as it is.
    pub fn svg(&self) -> String {
        Self::row(&self.title, std::slice::from_ref(self))
    }

    /// A line without axes, the height of a line of text.
    pub(crate) fn spark(points: &[(f64, f64)]) -> String {
        let (xs, ys): (Vec<f64>, Vec<f64>) = (points.iter())
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .copied()
            .unzip();
        let scaled = |values: &[f64], size: f64| -> Vec<f64> {
            let ends = frame::range(frame::extremes(values.iter().copied()));
            let at = |value: &f64| 2.0 + size * frame::fraction(*value, ends);
            values.iter().map(at).collect()
        };
        let corners: Vec<String> = (scaled(&xs, 92.0).iter())
            .zip(scaled(&ys, 18.0))
            .map(|(x, y)| format!("{x:.1} {:.1}", 22.0 - y))
            .collect();
        format!(
            "<svg class=\"chart spark\" viewBox=\"0 0 96 22\" aria-hidden=\"true\"><path class=\"line c0\" d=\"M{}\"/></svg>",
            corners.join("L")
        )
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The lines.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Whether no line has a point to draw.
    pub(crate) fn is_empty(&self) -> bool {
        Frame::of(self).empty
    }

    /// The chart as markup for a page that has [`STYLE`], and the values of its points for a script (see [`data`]).
    pub(crate) fn inline(&self) -> (String, String) {
        let mut out = String::new();
        let frame = Frame::of(self);
        // Writing to a String cannot fail.
        let _ = self.write_inline(&mut out, &frame);
        (out, data::json(&frame, &self.series))
    }

    fn write_inline(&self, out: &mut String, frame: &Frame) -> std::fmt::Result {
        writeln!(
            out,
            "<svg viewBox=\"0 0 {} {}\" class=\"chart\" role=\"img\" aria-label=\"{}\">",
            frame.width,
            frame.height,
            escape(&self.description())
        )?;
        self.write(out, frame)?;
        writeln!(out, "</svg>")
    }

    /// The title with the first and the last value of each line, for those who cannot see the chart.
    fn description(&self) -> String {
        let mut text = self.title.clone();
        for series in &self.series {
            let mut finite = series.points.iter().filter(|(_, y)| y.is_finite());
            let Some(first) = finite.next() else { continue };
            let last = finite.next_back().unwrap_or(first);
            let name = if series.name.is_empty() { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "{name}{}: {} at {} {}, {} at {} {}",
                series.name,
                data::short(first.1),
                self.x_label,
                data::short(first.0),
                data::short(last.1),
                self.x_label,
                data::short(last.0)
            );
        }
        text
    }

    /// Several charts beside one another as one SVG document, called `title` by those who cannot see it.
    pub fn row(title: &str, charts: &[Self]) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = Self::write_row(&mut out, title, charts);
        out
    }

    fn write_row(out: &mut String, title: &str, charts: &[Self]) -> std::fmt::Result {
        let frames: Vec<Frame> = charts.iter().map(Frame::of).collect();
        let gaps = GAP * frames.len().saturating_sub(1) as f64;
        let width = frames.iter().map(|frame| frame.width).sum::<f64>() + gaps;
        let height = frames.iter().map(|frame| frame.height).fold(0.0, f64::max);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" class=\"chart\" role=\"img\" \
             aria-label=\"{}\">\n<style>{STYLE}</style>",
            escape(title)
        )?;
        let mut left = 0.0;
        for (chart, frame) in charts.iter().zip(&frames) {
            if left > 0.0 {
                writeln!(out, "<g transform=\"translate({left} 0)\">")?;
            }
            chart.write(out, frame)?;
            if left > 0.0 {
                writeln!(out, "</g>")?;
            }
            left += frame.width + GAP;
        }
        writeln!(out, "</svg>")
    }

    fn write(&self, out: &mut String, frame: &Frame) -> std::fmt::Result {
        let Frame {
            width, height, top, ..
        } = *frame;
        writeln!(
            out,
            "<rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>"
        )?;
        writeln!(
            out,
            "<text class=\"title\" x=\"14\" y=\"24\">{}</text>",
            escape(&self.title)
        )?;
        for entry in &frame.legend {
            let (x, y) = (entry.left, entry.baseline);
            let swatch = if entry.dashed {
                "reference".into()
            } else {
                format!("line c{}", entry.colour)
            };
            writeln!(out, "<path class=\"{swatch}\" d=\"M{x} {:.1}h16\"/>", y - 4.0)?;
            writeln!(
                out,
                "<text class=\"note\" x=\"{}\" y=\"{y}\">{}</text>",
                x + 21.0,
                escape(&entry.name)
            )?;
        }
        writeln!(
            out,
            "<text class=\"note\" x=\"14\" y=\"{:.1}\">{}</text>",
            top - 13.0,
            escape(&self.y_label)
        )?;
        frame.write_axes(out, &self.x_label)?;
        let (left, right, bottom) = (frame.left, frame.right, frame.bottom);
        if frame.empty {
            let (x, y) = (0.5 * (left + right), 0.5 * (top + bottom));
            writeln!(
                out,
                "<text class=\"note middle\" x=\"{x:.1}\" y=\"{y:.1}\">no finite values yet</text>"
            )?;
        }
        for (index, series) in self.series.iter().enumerate() {
            frame.write_band(out, series, index % COLOURS)?;
        }
        if let Some((y, _)) = self.reference.as_ref().filter(|(y, _)| y.is_finite()) {
            writeln!(
                out,
                "<path class=\"reference\" d=\"M{left:.1} {:.1}H{right:.1}\"/>",
                frame.y(*y)
            )?;
        }
        let mut gaps = 0;
        // The first series is the one that matters, so it is drawn last, on top.
        for (index, series) in self.series.iter().enumerate().rev() {
            gaps += frame.write_line(out, series, index % COLOURS)?;
        }
        if gaps > 0 {
            let text = format!(
                "{gaps} value{} NaN or infinite, not drawn",
                if gaps == 1 { " is" } else { "s are" }
            );
            writeln!(
                out,
                "<text class=\"warn end\" x=\"{right:.1}\" y=\"{:.1}\">{text}</text>",
                top - 13.0
            )?;
        }
        Ok(())
    }
}

const COLOURS: usize = 6;

/// The palette is told apart with the common colour deficiencies: hues differ in lightness, too.
pub(crate) const STYLE: &str = "\
.chart{--paper:#fff;--ink:#1c1e22;--faint:#646973;--grid:#e6e7ea;--c0:#0b68c4;--c1:#d2560e;--c2:#148a63;--c3:#b03a8c;--c4:#7a6a00;--c5:#5b5bd6;\
font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;display:block;width:100%;height:auto}\
@media(prefers-color-scheme:dark){.chart{--paper:#1b1d21;--ink:#eceef1;--faint:#a0a6b0;--grid:#32353b;--c0:#6ab2ff;--c1:#ff9a5c;--c2:#4fcf9f;--c3:#f08fd0;--c4:#d9c24a;--c5:#a7a7ff}}\
.chart .paper{fill:var(--paper)}.chart text{fill:var(--ink)}.chart .title{font-weight:600;font-size:15px}\
.chart .note,.chart .tick{fill:var(--faint);font-size:12px}.chart .tick{font-variant-numeric:tabular-nums}\
.chart .middle{text-anchor:middle}.chart .end{text-anchor:end}.chart .warn{fill:var(--c1);font-size:12px}\
.chart .grid{stroke:var(--grid);fill:none}.chart .axis{stroke:var(--faint);fill:none}\
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.chart .dense{stroke-width:1.2}.chart .band{stroke:none;opacity:.18}\
.chart .reference{fill:none;stroke:var(--faint);stroke-dasharray:5 4}\
.chart .c0{stroke:var(--c0)}.chart .c1{stroke:var(--c1)}.chart .c2{stroke:var(--c2)}.chart .c3{stroke:var(--c3)}.chart .c4{stroke:var(--c4)}.chart .c5{stroke:var(--c5)}\
.chart .f0{fill:var(--c0)}.chart .f1{fill:var(--c1)}.chart .f2{fill:var(--c2)}.chart .f3{fill:var(--c3)}.chart .f4{fill:var(--c4)}.chart .f5{fill:var(--c5)}";

/// At most about [`DRAWN_POINTS`] points: of each stretch its lowest and its highest, so that no spike is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= DRAWN_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(DRAWN_POINTS / 2);
    let mut kept = Vec::with_capacity(DRAWN_POINTS);
    for part in points.chunks(stretch) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = [part.iter().min_by(by_y), part.iter().max_by(by_y)];
        let mut ends: Vec<(f64, f64)> = ends.into_iter().flatten().copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        kept.extend(ends);
    }
    kept
}
