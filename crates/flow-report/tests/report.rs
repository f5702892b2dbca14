//! The report: complete, self-contained, and safe against what users write.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flow_report::*;
use serde_json::json;

const EVIL: &str = "<script>alert('x')</script>\" onload=\"y & z";

fn evil_run(root: &std::path::Path) -> RunDirectory {
    let run = RunDirectory::open(root, "a & b", OnExists::Error).unwrap();
    let config = json!({"section": {EVIL: EVIL, "unset": null, "list": [1, "two"]}, "seed": 3});
    let mut manifest = Manifest::new("a & b <i>", vec!["flow-train".into(), EVIL.into()], config, root);
    manifest.config_sources.insert("section".into(), EVIL.into());
    manifest.device.insert(EVIL.into(), EVIL.into());
    let evil = || EVIL.to_owned();
    manifest.fallbacks.push(Fallback {
        what: evil(),
        wanted: evil(),
        used: evil(),
        why: evil(),
    });
    manifest.add_resume(5, EVIL, vec![], &json!({"seed": EVIL}), root, vec![evil()]);
    run.write_manifest(&manifest).unwrap();
    let values = [0.2, 0.4, 0.5];
    let interval = mean_interval(&values, IntervalMethod::StudentT).unwrap();
    let difference = paired_difference(&values, &[0.9, 0.8, 0.8], IntervalMethod::StudentT).unwrap();
    let change = RewardChange {
        name: evil(),
        measured_on: evil(),
        before: interval.clone(),
        after: interval,
        difference,
    };
    run.write_summary(&RunSummary {
        status: RunStatus::Failed { cause: evil() },
        rewards: vec![change],
        wall_parts: vec![(evil(), 1.0)],
        peak_memory_gib: vec![(evil(), 1.0)],
        audit: Audit::Deviated {
            rollouts: 1,
            elements: 2,
            largest: 1e-3,
            place: evil(),
            allowed: false,
        },
        notes: vec![evil()],
        ..RunSummary::default()
    })
    .unwrap();
    fs::write(run.path().join("curves/evil.svg"), format!("<svg>{EVIL}</svg>")).unwrap();
    run
}

#[test]
fn no_text_of_the_user_becomes_markup_and_nothing_is_loaded_from_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let run = evil_run(root.path());
    let html = fs::read_to_string(run.write_report().unwrap()).unwrap();
    assert!(
        html.matches("&lt;script&gt;").count() >= 15,
        "every place shows the text"
    );
    for forbidden in ["<script", "\" onload", "http://", "https://", "<link", "@import"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    let sources: Vec<&str> = html.split("src=\"").skip(1).collect();
    assert!(!sources.is_empty() && sources.iter().all(|source| source.starts_with("data:image/")));
}

#[test]
fn the_report_shows_every_section_with_the_runs_own_values() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "digits", OnExists::Error).unwrap();
    let config = json!({"trainer": {"lr": 0.0003, "steps": 200}, "data": "digits"});
    let mut manifest = Manifest::new(
        "digits",
        vec!["flow-train".into(), "--set a=b c".into()],
        config,
        root.path(),
    );
    manifest
        .config_sources
        .insert("trainer".into(), "configs/digits.toml:9".into());
    manifest
        .config_sources
        .insert("trainer.steps".into(), "default".into());
    run.write_manifest(&manifest).unwrap();
    let (before, after) = ([0.1, 0.3, 0.2], [0.6, 0.75, 0.72]);
    let method = IntervalMethod::StudentT;
    run.write_summary(&RunSummary {
        status: RunStatus::Interrupted { step: 120 },
        steps: 120,
        images: 7680,
        rewards: vec![RewardChange {
            name: "reads as".into(),
            measured_on: "3 held-out prompts".into(),
            before: mean_interval(&before, method).unwrap(),
            after: mean_interval(&after, method).unwrap(),
            difference: paired_difference(&before, &after, method).unwrap(),
        }],
        wall_s: 185.0,
        peak_memory_gib: vec![("host, resident".into(), 0.875)],
        audit: Audit::Exact {
            rollouts: 120,
            elements: 960,
        },
        ..RunSummary::default()
    })
    .unwrap();
    run.write_curve("reward", &LineChart::new("Reward", "step", "mean"))
        .unwrap();
    let mut grid = ImageGrid::new();
    grid.row("seven", vec![Tile::new(1, 8, 8, vec![0.0; 64]).unwrap()]);
    let mut first = Vec::new();
    for step in 0..20 {
        let picture = run.write_grid("eval", step * 10, &grid).unwrap();
        if step == 0 {
            first = picture.png;
        }
    }
    let html = fs::read_to_string(run.write_report().unwrap()).unwrap();
    for part in [
        "after step 120; --resume latest",
        "reads as · 3 held-out prompts",
        "<span>0.20</span><span class=\"arrow\">→</span><span>0.69</span>",
        "3 up, 0 down, 0 unchanged",
        "3 min 05 s",
        "0.88 GiB",
        "max|ratio − 1| = 0",
        "exact on 960 elements of 120 rollouts",
        "<td>lr</td><td><code>0.0003</code></td><td>configs/digits.toml:9</td>",
        "<tr class=\"faint\"><td>steps</td><td><code>200</code></td><td>default</td>",
        "<td>data</td><td><code>digits</code></td><td>not recorded</td>",
        "None: everything ran as configured.",
        "6 of 20 grids",
        "after step 0<",
        "after step 190<",
        "flow-train &#39;--set a=b c&#39;",
        "width=device-width",
    ] {
        assert!(html.contains(part), "{part} is missing");
    }
    assert!(html.contains(&STANDARD.encode(first)));
    let svg = fs::read_to_string(run.path().join("curves/reward.svg")).unwrap();
    assert!(html.contains(&STANDARD.encode(svg)));
    let again = fs::read_to_string(write_report(run.path()).unwrap()).unwrap();
    assert_eq!(html, again, "the same run gives the same bytes");
}

#[test]
fn a_run_that_has_just_begun_has_a_report_that_says_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    let error = write_report(run.path()).unwrap_err();
    assert!(
        matches!(error, ReportError::Read { .. }) && error.to_string().contains("run.json"),
        "{error}"
    );
    run.write_manifest(&Manifest::new("a", vec![], json!({}), root.path()))
        .unwrap();
    let html = fs::read_to_string(run.write_report().unwrap()).unwrap();
    for part in ["no summary yet", "no curves", "no image grids"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn a_summary_comes_back_as_written_and_an_old_one_with_fewer_fields_is_read() {
    let root = tempfile::tempdir().unwrap();
    let run = evil_run(root.path());
    let summary = run.read_summary().unwrap().unwrap();
    run.write_summary(&summary).unwrap();
    assert_eq!(run.read_summary().unwrap().unwrap(), summary);
    fs::write(run.path().join("summary.json"), "{\"steps\": 4}").unwrap();
    assert_eq!(
        run.read_summary().unwrap().unwrap(),
        RunSummary {
            steps: 4,
            ..RunSummary::default()
        }
    );
}
