//! The pictures of a report: the first and the last grid of a kind side by side, those between folded, each at full size by a click.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::GridFigure;
use super::words::counted;
use crate::escape::escape;

/// Grids of one kind that are in the page; of more, the first, the last and evenly spaced ones between. The others are linked.
const SHOWN_GRIDS: usize = 6;

/// `prompts` are the texts of the rows, as far as they are known.
pub(super) fn write_pictures(out: &mut String, grids: &[GridFigure], prompts: &[String]) -> std::fmt::Result {
    writeln!(out, "<section id=\"images\">\n<h2>Images</h2>")?;
    if grids.is_empty() {
        writeln!(out, "<p class=\"faint\">The run has written no image grids.</p>")?;
    }
    for figures in grids.chunk_by(|a, b| a.kind == b.kind) {
        write_kind(out, figures, prompts)?;
    }
    writeln!(out, "</section>")
}

fn write_kind(out: &mut String, figures: &[GridFigure], prompts: &[String]) -> std::fmt::Result {
    let title = match figures[0].kind.as_str() {
        "eval" => "Held-out prompts, the same noise each time".into(),
        kind => escape(kind),
    };
    writeln!(out, "<h3>{title}</h3>\n<div class=\"timeline\">")?;
    let shown = spread(figures.len());
    let shown: Vec<&GridFigure> = shown.into_iter().map(|index| &figures[index]).collect();
    let (first, last) = (shown[0], shown[shown.len() - 1]);
    writeln!(out, "<div class=\"pair\">")?;
    write_figure(out, first, prompts, "before")?;
    if shown.len() > 1 {
        write_figure(out, last, prompts, "after")?;
    }
    writeln!(out, "</div>")?;
    let others = figures.len().saturating_sub(2);
    if others > 0 {
        let between = &shown[1..shown.len() - 1];
        writeln!(
            out,
            "<details class=\"between\"><summary>Between <span class=\"faint\">{}</span></summary>\n<div class=\"grids\">",
            counted(others, "grid")
        )?;
        for figure in between {
            write_figure(out, figure, prompts, "between")?;
        }
        writeln!(out, "</div>")?;
        let left_out: Vec<&GridFigure> = (figures.iter())
            .filter(|figure| !shown.iter().any(|shown| shown.step == figure.step))
            .collect();
        if !left_out.is_empty() {
            write!(out, "<p class=\"faint\">In <code>images/</code>:")?;
            for figure in left_out {
                write!(out, " <a href=\"{}\">step {}</a>", href(figure), figure.step)?;
            }
            writeln!(out, "</p>")?;
        }
        writeln!(out, "</details>")?;
    }
    writeln!(out, "</div>")
}

fn write_figure(out: &mut String, figure: &GridFigure, prompts: &[String], place: &str) -> std::fmt::Result {
    let step = figure.step;
    let data = STANDARD.encode(&figure.png);
    let (width, height) = (png_side(&figure.png, 16), png_side(&figure.png, 20));
    // A picture shrunk to a phone's width could not be read: a wide one scrolls instead.
    let wide = if width > 600 { " wide" } else { "" };
    let caption = match (step, figure.kind.as_str()) {
        (0, "eval") => "before training".to_owned(),
        _ => format!("after step {step}"),
    };
    writeln!(
        out,
        "<figure class=\"{place}{wide}\"><figcaption>{caption}</figcaption><a href=\"{}\" title=\"full size\">\
         <img width=\"{width}\" height=\"{height}\" alt=\"{}\" src=\"data:image/png;base64,{data}\"></a></figure>",
        href(figure),
        escape(&alternative(figure, prompts))
    )
}

/// What the picture shows, in words.
fn alternative(figure: &GridFigure, prompts: &[String]) -> String {
    let when = match figure.step {
        0 => "before training".to_owned(),
        step => format!("after step {step}"),
    };
    if figure.kind != "eval" {
        return format!("grid of images, {}, {when}", figure.kind);
    }
    let named: Vec<&str> = prompts.iter().take(3).map(String::as_str).collect();
    let named = match (named.as_slice(), prompts.len()) {
        ([], _) => String::new(),
        (named, count) if count > named.len() => format!(": {} and others", named.join(", ")),
        (named, _) => format!(": {}", named.join(", ")),
    };
    format!("images of held-out prompts {when}, a row for each prompt, with the score of each image{named}")
}

/// Where the file lies, from the run directory. The parts of its name are those of [`super::grid_of`].
fn href(figure: &GridFigure) -> String {
    let name = format!("{}-step-{:06}.png", figure.kind, figure.step);
    crate::escape::href(&[b"images", name.as_bytes()])
}

/// A side in a PNG's header (width in bytes 16 to 19, height in 20 to 23, big-endian), 0 if there is none.
fn png_side(png: &[u8], at: usize) -> u32 {
    png.get(at..at + 4).map_or(0, |bytes| {
        bytes.iter().fold(0, |side, byte| side << 8 | u32::from(*byte))
    })
}

/// Indices of at most [`SHOWN_GRIDS`] of `count` figures, the first and the last among them.
fn spread(count: usize) -> Vec<usize> {
    if count <= SHOWN_GRIDS {
        return (0..count).collect();
    }
    (0..SHOWN_GRIDS)
        .map(|index| index * (count - 1) / (SHOWN_GRIDS - 1))
        .collect()
}
