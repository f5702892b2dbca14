//! The curves of a report: charts whose values a script shows where the pointer is.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::charts::{ChartGroup, RunChart};
use super::words::counted;
use crate::curve::LineChart;
use crate::escape::escape;

/// Charts of the groups, and pictures in `curves/` that are none of them: `(name, SVG)`.
pub(super) fn write_curves(
    out: &mut String,
    groups: &[ChartGroup],
    pictures: &[(String, String)],
) -> std::fmt::Result {
    writeln!(out, "<section id=\"curves\">\n<h2>Curves</h2>")?;
    let drawn = groups.iter().flat_map(|group| &group.charts);
    let drawn: Vec<&str> = drawn.filter_map(|chart| chart.file).collect();
    let others: Vec<&(String, String)> = (pictures.iter())
        .filter(|(name, _)| !drawn.contains(&name.as_str()))
        .collect();
    if groups.is_empty() && others.is_empty() {
        writeln!(out, "<p class=\"faint\">The run has written no curves.</p>")?;
    }
    for group in groups {
        let count = counted(group.charts.len(), "curve");
        if group.open {
            writeln!(out, "<h3>{}</h3>", group.title)?;
        } else {
            writeln!(
                out,
                "<details><summary>{} <span class=\"faint\">{count}</span></summary>",
                group.title
            )?;
        }
        writeln!(out, "<div class=\"curves\">")?;
        group
            .charts
            .iter()
            .try_for_each(|chart| write_run_chart(out, chart))?;
        writeln!(out, "</div>")?;
        if !group.open {
            writeln!(out, "</details>")?;
        }
    }
    if !others.is_empty() {
        writeln!(out, "<div class=\"curves\">")?;
        for (name, svg) in others {
            // As an image and not as markup: whatever a file in `curves/` contains, it cannot run or load anything.
            let (name, data) = (escape(name), STANDARD.encode(svg));
            writeln!(
                out,
                "<figure><img alt=\"the curve {name}\" src=\"data:image/svg+xml;base64,{data}\"></figure>"
            )?;
        }
        writeln!(out, "</div>")?;
    }
    writeln!(out, "</section>")
}

fn write_run_chart(out: &mut String, chart: &RunChart) -> std::fmt::Result {
    write_chart(out, &chart.chart, chart.note)
}

/// One chart with the values of its points.
pub(super) fn write_chart(out: &mut String, chart: &LineChart, note: Option<&str>) -> std::fmt::Result {
    let (svg, values) = chart.inline();
    write!(
        out,
        "<figure class=\"plot\" data-plot=\"{}\">{svg}",
        escape(&values)
    )?;
    if let Some(note) = note {
        write!(out, "<figcaption>{}</figcaption>", escape(note))?;
    }
    writeln!(out, "</figure>")
}
