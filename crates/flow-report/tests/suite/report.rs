//! The report: complete, self-contained, and safe against what users write.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flow_report::*;
use serde_json::json;
use sha2::{Digest as _, Sha256};

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
        prompts: vec![evil()],
        ..RunSummary::default()
    })
    .unwrap();
    let mut metrics = run.metrics(MetricsStart::Fresh).unwrap();
    let record = MetricRecord::new(0, EVIL).with(EVIL, 1.0);
    metrics.append(&record).unwrap();
    let record = MetricRecord::new(0, "eval").with(&format!("reward/{EVIL}"), 0.5);
    let record = record.with(&format!("prompts/{EVIL}"), vec![0.5_f64]);
    metrics.append(&record).unwrap();
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
    for forbidden in [
        "<script>alert",
        "\" onload",
        "http://",
        "https://",
        "<link",
        "@import",
    ] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(html.matches("<script").count(), 1, "the page's own");
    let sources: Vec<&str> = html.split("src=\"").skip(1).collect();
    assert!(!sources.is_empty() && sources.iter().all(|source| source.starts_with("data:image/")));
    let links = html.split("href=\"").skip(1);
    assert!(links.into_iter().all(|link| link.starts_with(['#', 'i'])));
    for chart in html.split("<svg").skip(1) {
        let chart = format!("<svg{}</svg>", chart.split_once("</svg>").unwrap().0);
        roxmltree::Document::parse(&chart).unwrap_or_else(|error| panic!("{error}: {chart}"));
    }
}

#[test]
fn a_browser_may_run_the_pages_own_script_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let html = fs::read_to_string(evil_run(root.path()).write_report().unwrap()).unwrap();
    let between = |from: &str, to: &str| html.split_once(from).unwrap().1.split_once(to).unwrap().0;
    let script = between("<script>", "</script>");
    let policy = between("Content-Security-Policy\" content=\"", "\"");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    let hash = STANDARD.encode(Sha256::digest(script));
    assert!(
        policy.contains(&format!("script-src 'sha256-{hash}'")),
        "the page's policy has another hash than its script, {hash}"
    );
    assert!(!script.contains("innerHTML"), "texts of a run stay texts");
}

#[test]
fn every_number_that_a_run_has_written_is_a_line_of_one_chart() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "a", OnExists::Error).unwrap();
    let train = [
        "reward",
        "reward/std",
        "reward/first",
        "reward/first/std",
        "reward/second",
        "loss",
        "kl",
        "clip_fraction",
        "acceleration/cache/step_skipped",
        "acceleration/cache/kept_mib_peak",
        "acceleration/cache/step_skipped/share/head",
        "drift/velocity_l1",
        "drift/latent_l1",
        "drift/velocity_l1/step_003",
        "gradient_norm",
        "learning_rate",
        "my_own",
    ];
    let mut metrics = run.metrics(MetricsStart::Fresh).unwrap();
    for step in 0..3 {
        let record = MetricRecord::new(step, "eval")
            .with("reward/first", 0.5)
            .with("reward/first/low", 0.4)
            .with("reward/first/high", 0.6)
            .with("prompts/first", vec![0.25_f64, 0.75])
            .with("reward/second", -40.0);
        metrics.append(&record).unwrap();
        let record = train
            .iter()
            .fold(MetricRecord::new(step, "train"), |record, key| {
                record.with(key, 1.5)
            });
        metrics.append(&record).unwrap();
        metrics
            .append(
                &MetricRecord::new(step, "mine")
                    .with("a_value", step)
                    .with("word", "x"),
            )
            .unwrap();
    }
    let mut timing = run.timing().unwrap();
    // The second time after a resume from step 1.
    for step in [1, 2, 2, 3] {
        let record = MetricRecord::new(step, "timing")
            .with("rollout_s", 0.5)
            .with("update_s", 1.0);
        timing.append(&record).unwrap_or_else(|error| panic!("{error}"));
        timing
            .append(&MetricRecord::new(step, "throughput").with("images_per_s", 7.0))
            .unwrap();
        timing
            .append(&MetricRecord::new(step, "device_memory").with("rollout_gib", 3.0))
            .unwrap();
    }
    let timing = Metrics::read(&run.path().join("timing.jsonl")).unwrap();
    let groups = run_charts(&run.read_metrics().unwrap(), &timing, None);
    let charts: Vec<&LineChart> = groups
        .iter()
        .flat_map(|group| &group.charts)
        .map(|chart| &chart.chart)
        .collect();
    let lines: usize = charts.iter().map(|chart| chart.series().len()).sum();
    assert_eq!(lines, 2 + train.len() + 1 + 4, "{charts:?}");
    let titles: Vec<&str> = charts.iter().map(|chart| chart.title()).collect();
    for title in [
        "Loss",
        "Learning rate",
        "Images per second",
        "Memory",
        "My own",
        "Mine: a value",
        "Distance from the reference",
    ] {
        assert!(titles.contains(&title), "{title} of {titles:?}");
    }
    // Rewards of other sizes are not on one axis.
    assert!(titles.contains(&"first on held-out prompts") && titles.contains(&"second on held-out prompts"));
    let seconds = charts
        .iter()
        .find(|chart| chart.title() == "Time of a step")
        .unwrap();
    assert_eq!(seconds.series()[0].points, [(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]);

    run.write_manifest(&Manifest::new("a", vec![], json!({}), root.path()))
        .unwrap();
    let html = fs::read_to_string(run.write_report().unwrap()).unwrap();
    assert_eq!(html.matches("data-plot=").count(), charts.len());
    assert!(html.contains("[1,0.5,0.4,0.6]"), "a point with its interval");
    assert!(html.contains("2 held-out prompts, one by one"));
}

#[test]
fn runs_of_a_folder_are_compared_by_what_differs_and_what_came_out() {
    let root = tempfile::tempdir().unwrap();
    for (name, rate) in [("slow & steady", 1e-4), ("fast", 1e-3)] {
        let run = RunDirectory::open(root.path(), name, OnExists::Error).unwrap();
        let config =
            json!({"run": {"name": name, "seed": 3}, "optimizer": {"learning_rate": rate}, "unset": null});
        run.write_manifest(&Manifest::new(name, vec![], config, root.path()))
            .unwrap();
        let mut metrics = run.metrics(MetricsStart::Fresh).unwrap();
        for step in 0..3 {
            metrics
                .append(&MetricRecord::new(step, "train").with("reward", 0.25 * step as f64))
                .unwrap();
        }
    }
    fs::create_dir(root.path().join("no run")).unwrap();
    // What lies there besides: a run that cannot be read.
    fs::create_dir(root.path().join("broken")).unwrap();
    fs::write(root.path().join("broken/run.json"), "{").unwrap();
    assert_eq!(runs_in(root.path()).unwrap().len(), 3);
    let found = write_comparison(root.path()).unwrap();
    let html = fs::read_to_string(&found.path).unwrap();
    let names: Vec<&str> = found.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["fast", "slow & steady"]);
    assert_eq!(found.unreadable[0].0, "broken");
    assert!(html.contains("broken is left out: "));
    for part in [
        "2 runs",
        "<td>slow &amp; steady</td><td>no summary yet</td>",
        "<tr><td>optimizer.learning_rate</td><td><code>0.001</code></td><td><code>0.0001</code></td></tr>",
    ] {
        assert!(html.contains(part), "{part} is missing");
    }
    assert!(!html.contains("run.seed") && !html.contains("run.name") && !html.contains("unset"));
    assert_eq!(html.matches("data-plot=").count(), 1);
}

#[test]
fn what_was_trained_on_is_summed_by_its_weights_and_shown_with_first_last_and_best() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "grey", OnExists::Error).unwrap();
    let mut metrics = run.metrics(MetricsStart::Fresh).unwrap();
    // The third iteration has a reward that is no number, and evaluations are no rollouts.
    for (step, grey, size) in [
        (1, 0.25, -2.0),
        (2, 0.75, -1.0),
        (3, f64::NAN, 0.0),
        (4, 0.5, -1.0),
    ] {
        let record = MetricRecord::new(step, "train")
            .with("reward", 9.0)
            .with("reward/grey <i>", grey)
            .with("reward/size", size);
        metrics.append(&record).unwrap();
        metrics
            .append(&MetricRecord::new(step, "eval").with("reward/grey <i>", 7.0))
            .unwrap();
    }
    let terms = vec![("grey <i>".to_owned(), 2.0), ("size".to_owned(), 0.5)];
    let trained = TrainedReward::of(&run.read_metrics().unwrap(), terms).unwrap();
    let at = |step: u64, mean: f64| RewardAt { step, mean };
    assert_eq!(
        (trained.first, trained.last, trained.best),
        (at(1, -0.5), at(4, 0.5), at(2, 1.0))
    );
    assert_eq!(trained.name(), "2 × grey <i> + 0.5 × size");
    let alone = TrainedReward {
        terms: vec![("grey".into(), 1.0)],
        ..trained.clone()
    };
    assert_eq!(alone.name(), "grey");
    let terms = vec![("never recorded".to_owned(), 1.0)];
    assert_eq!(TrainedReward::of(&run.read_metrics().unwrap(), terms), None);

    run.write_manifest(&Manifest::new("grey", vec![], json!({}), root.path()))
        .unwrap();
    let summary = RunSummary {
        trained: Some(trained),
        ..RunSummary::default()
    };
    run.write_summary(&summary).unwrap();
    assert_eq!(run.read_summary().unwrap(), Some(summary));
    let html = fs::read_to_string(run.write_report().unwrap()).unwrap();
    for part in [
        "2 × grey &lt;i&gt; + 0.5 × size · trained on",
        "<span>-0.5000</span><span class=\"arrow\">→</span><span>0.5000</span>",
        "+1.0000 from iteration 1 to iteration 4; highest 1.0000 in iteration 2",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let comparison = write_comparison(root.path()).unwrap();
    let page = fs::read_to_string(comparison.path).unwrap();
    assert!(page.contains("<td>2 × grey &lt;i&gt; + 0.5 × size: -0.500 → 0.500</td>"));
}

#[test]
fn a_summary_from_before_there_was_a_trained_reward_is_read() {
    let old =
        json!({ "status": { "state": "finished" }, "steps": 3, "images": 12, "rewards": [], "notes": ["a"] });
    let read: RunSummary = serde_json::from_value(old).unwrap();
    assert_eq!((read.steps, read.trained, read.notes.len()), (3, None, 1));
}

#[test]
fn the_report_shows_every_section_with_the_runs_own_values() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "digits", OnExists::Error).unwrap();
    let config = json!({"trainer": {"lr": 0.0003, "steps": 200, "set_to_it": 1.0}, "data": "digits"});
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
    let defaults = [("trainer.lr", json!(0.001)), ("trainer.set_to_it", json!(1))];
    manifest.config_defaults = defaults.map(|(key, value)| (key.to_owned(), value)).into();
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
        "<span class=\"faint\">trainer.</span>lr</td><td><code>0.0003</code></td><td>0.001</td><td>configs/digits.toml:9</td>",
        "<tr><td>steps</td><td><code>200</code></td></tr>",
        "Defaults <span class=\"faint\">2 settings",
        "<tr><td>set_to_it</td><td><code>1.0</code></td></tr>",
        "data</td><td><code>digits</code></td><td></td><td>not recorded</td>",
        "None: everything ran as configured.",
        "18 grids",
        "<a href=\"images/eval-step-000010.png\">step 10</a>",
        "before training<",
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

#[test]
fn a_comparison_is_written_over_an_earlier_one_and_over_no_other_file() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::open(root.path(), "one", OnExists::Error).unwrap();
    run.write_manifest(&Manifest::new("one", vec![], json!({}), root.path()))
        .unwrap();
    let page = write_comparison(root.path()).unwrap().path;
    write_comparison(root.path()).expect("an earlier one");
    for mine in ["my notes", "<!doctype html><title>Mine</title>", ""] {
        fs::write(&page, mine).unwrap();
        let error = write_comparison(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("comparison.html") && error.contains("move it away"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&page).unwrap(), mine);
    }
}
