//! Where the run ran, what it fell back to, and how often it was resumed.

use std::fmt::Write as _;

use super::words;
use crate::escape::escape;
use crate::manifest::Manifest;

pub(super) fn write_fallbacks(out: &mut String, manifest: &Manifest) -> std::fmt::Result {
    writeln!(out, "<section id=\"fallbacks\">\n<h2>Fallbacks</h2>")?;
    if manifest.fallbacks.is_empty() {
        writeln!(out, "<p class=\"ok\">None: everything ran as configured.</p>")?;
    } else {
        writeln!(
            out,
            "<div class=\"scroll\"><table><thead><tr><th>What</th><th>Wanted</th><th>Used</th><th>Why</th></tr></thead><tbody>"
        )?;
        for fallback in &manifest.fallbacks {
            let cells = [&fallback.what, &fallback.wanted, &fallback.used, &fallback.why];
            write!(out, "<tr>")?;
            for cell in cells {
                write!(out, "<td>{}</td>", escape(cell))?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</tbody></table></div>")?;
    }
    writeln!(out, "</section>")
}

pub(super) fn write_environment(out: &mut String, manifest: &Manifest) -> std::fmt::Result {
    writeln!(out, "<section id=\"environment\">\n<h2>Environment</h2>\n<dl>")?;
    let host = &manifest.host;
    let mut rows: Vec<(String, String)> = Vec::new();
    rows.extend(
        manifest
            .device
            .iter()
            .map(|(key, value)| (format!("device {}", key.replace('_', " ")), words::value(value))),
    );
    rows.push((
        "host".into(),
        format!("{} ({} {})", host.name, host.os, host.arch),
    ));
    rows.extend(host.cpu.iter().map(|cpu| ("processor".into(), cpu.clone())));
    rows.push(("CPU threads".into(), host.cpu_threads.to_string()));
    rows.extend(
        host.memory_gib
            .map(|gib| ("memory".into(), format!("{gib:.2} GiB"))),
    );
    rows.push(("git".into(), manifest.git.text()));
    write_pairs(out, &rows)?;
    writeln!(out, "</dl>")?;
    let versions: Vec<(String, String)> = manifest.versions.clone().into_iter().collect();
    if !versions.is_empty() {
        writeln!(out, "<details><summary>Versions</summary><dl>")?;
        write_pairs(out, &versions)?;
        writeln!(out, "</dl></details>")?;
    }
    write_resumes(out, manifest)?;
    writeln!(out, "</section>")
}

fn write_pairs(out: &mut String, rows: &[(String, String)]) -> std::fmt::Result {
    for (key, value) in rows {
        let (key, value) = (escape(key), escape(value));
        writeln!(out, "<div><dt>{key}</dt><dd>{value}</dd></div>")?;
    }
    Ok(())
}

fn write_resumes(out: &mut String, manifest: &Manifest) -> std::fmt::Result {
    if manifest.resumes.is_empty() {
        return Ok(());
    }
    let times = words::times(manifest.resumes.len());
    writeln!(out, "<h3 id=\"resumes\">Resumed {times}</h3>\n<ul>")?;
    for resume in &manifest.resumes {
        let (at, checkpoint) = (words::moment(&resume.at), escape(&resume.checkpoint));
        write!(
            out,
            "<li>{}: after step {} from <code>{checkpoint}</code>",
            escape(&at),
            resume.from_step
        )?;
        for change in &resume.config_changes {
            let (before, after) = (words::value(&change.before), words::value(&change.after));
            let (key, before, after) = (escape(&change.key), escape(&before), escape(&after));
            write!(
                out,
                "<br><code>{key}</code> changed from <code>{before}</code> to <code>{after}</code>"
            )?;
        }
        for notice in &resume.notices {
            write!(out, "<br><span class=\"faint\">{}</span>", escape(notice))?;
        }
        writeln!(out, "</li>")?;
    }
    writeln!(out, "</ul>")
}
