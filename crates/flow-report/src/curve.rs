//! Line charts as SVG text, written by hand so that the same data give the same bytes.
//!
//! Colours are CSS variables with a light and a dark value, so a chart fits the page it is opened in or put into.

use std::fmt::Write as _;

use crate::escape::escape;
use crate::metrics::Metrics;
use crate::ticks::{labels, nice_ticks};

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
        }
    }

    /// Lets the x axis begin and end at ticks, as the y axis does: for an x that is measured, whose smallest and largest
    /// values mean nothing.
    #[must_use]
    pub fn round_x(mut self) -> Self {
        self.round_x = true;
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
const STYLE: &str = "\
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

struct LegendEntry {
    name: String,
    colour: usize,
    dashed: bool,
    left: f64,
    baseline: f64,
}

/// Where the plot lies in the picture and which values its edges stand for.
struct Frame {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x_range: (f64, f64),
    y_range: (f64, f64),
    x_ticks: Vec<f64>,
    y_ticks: Vec<f64>,
    y_labels: Vec<String>,
    x_labels: Vec<String>,
    legend: Vec<LegendEntry>,
    empty: bool,
}

/// A generous guess of a text's width at 12 pixels, for layout without font metrics.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

impl Frame {
    fn of(chart: &LineChart) -> Self {
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
        let x_range = range(drawn().map(|(x, _)| *x));
        let band = chart
            .series
            .iter()
            .flat_map(|series| &series.band)
            .flat_map(|(_, low, high)| [*low, *high]);
        let reference = chart.reference.iter().map(|(y, _)| *y);
        let y_range = range(drawn().map(|(_, y)| *y).chain(band).chain(reference));
        let (y_ticks, y_step) = nice_ticks(y_range.0, y_range.1, 5);
        let y_range = (
            y_ticks[0].min(y_range.0),
            y_ticks[y_ticks.len() - 1].max(y_range.1),
        );
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

    fn y(&self, value: f64) -> f64 {
        let share = fraction(value, self.y_range);
        self.bottom - share * (self.bottom - self.top)
    }

    fn write_axes(&self, out: &mut String, x_label: &str) -> std::fmt::Result {
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

    fn write_band(&self, out: &mut String, series: &Series, colour: usize) -> std::fmt::Result {
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
    fn write_line(&self, out: &mut String, series: &Series, colour: usize) -> Result<usize, std::fmt::Error> {
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

/// Smallest and largest finite value, widened if they are the same; 0 to 1 without any.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    // Bounded, so that widening the range and rounding it to ticks cannot overflow; what lies beyond is drawn at
    // the edge.
    let bounded = values.filter(|v| v.is_finite()).map(|v| v.clamp(-1e300, 1e300));
    let ends = bounded.fold(None, |ends: Option<(f64, f64)>, value| {
        Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    });
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
fn fraction(value: f64, (low, high): (f64, f64)) -> f64 {
    ((0.5 * value - 0.5 * low) / (0.5 * high - 0.5 * low)).clamp(0.0, 1.0)
}
