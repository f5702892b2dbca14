//! Writes a complete run directory with made-up numbers: two processes, the second going on from the first one's
//! checkpoint, then summary and report. `cargo run --release -p flow-report --example tour -- DIRECTORY`

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use flow_report::*;
use serde_json::json;

const PROMPTS: [(&str, [f32; 3], usize); 4] = [
    ("three red circles", [0.8, -0.6, -0.6], 3),
    ("one blue square, top left", [-0.7, -0.4, 0.8], 1),
    ("two green triangles", [-0.6, 0.5, -0.5], 2),
    ("four yellow circles, jagged & quiet", [0.8, 0.7, -0.7], 4),
];
const SIDE: usize = 32;
const STEPS: u64 = 200;
const KILLED_AT: u64 = 117;

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("runs"), PathBuf::from);
    let clock = Stopwatch::start();
    let name = {
        let run = RunDirectory::open(&root, "tour", OnExists::New)?;
        run.write_manifest(&manifest(&run.name(), &root))?;
        train(&run, 0, KILLED_AT)?;
        run.name()
    };

    // A second process finds the newest valid checkpoint and goes on from it.
    let run = RunDirectory::resume(&root, &name)?;
    run.notices()
        .iter()
        .for_each(|notice| println!("notice: {notice}"));
    let latest = run.checkpoints(KEEP).latest()?;
    let checkpoint = latest.found.ok_or("no valid checkpoint")?;
    println!(
        "resuming after step {} from {}",
        checkpoint.step(),
        checkpoint.path().display()
    );
    let mut manifest = run.read_manifest()?;
    let (command, config) = (manifest.command.clone(), manifest.config.clone());
    let file = checkpoint.path().strip_prefix(run.path())?.display().to_string();
    manifest.add_resume(
        checkpoint.step(),
        &file,
        command,
        &config,
        &root,
        run.notices().to_vec(),
    );
    run.write_manifest(&manifest)?;
    train(&run, checkpoint.step(), STEPS)?;

    curves(&run)?;
    run.write_summary(&summary(&clock)?)?;
    println!("wrote {}", run.write_report()?.display());
    Ok(())
}

const KEEP: NonZeroUsize = NonZeroUsize::new(3).unwrap();

fn manifest(run: &str, root: &Path) -> Manifest {
    let config = json!({
        "config_version": 1,
        "run": {"seed": 7, "output": "runs", "on_exists": "new"},
        "model": {"kind": "dit", "depth": 6, "width": 128, "lora": {"rank": 8, "targets": ["attn.qkv", "mlp.fc1"]}},
        "trainer": {"algorithm": "grpo", "learning_rate": 3e-4, "steps": STEPS, "group_size": 8},
        "data": {"name": "shapes", "held_out": "combinations <new>"},
    });
    let mut manifest = Manifest::new(run, std::env::args().collect(), config, root);
    let source = |key: &str, source: &str| (key.to_owned(), source.to_owned());
    manifest.config_sources.extend([
        source("config_version", "configs/shapes-grpo.toml:1"),
        source("run", "default"),
        source("run.seed", "--set run.seed=7"),
        source("model", "preset small"),
        source("model.lora", "configs/shapes-grpo.toml:12"),
        source("trainer", "configs/shapes-grpo.toml:20"),
        source("trainer.group_size", "default"),
        source("data", "configs/shapes-grpo.toml:31"),
    ]);
    manifest.versions.insert("burn".into(), "0.22.1".into());
    manifest
        .device
        .extend([("backend".into(), json!("flex")), ("dtype".into(), json!("f32"))]);
    manifest
}

/// Steps `after + 1 ..= last`: metrics, events, a grid and a checkpoint now and then.
fn train(run: &RunDirectory, after: u64, last: u64) -> Result<(), Box<dyn Error>> {
    let resumed_from = (after > 0).then_some(after);
    let start = resumed_from.map_or(MetricsStart::Fresh, MetricsStart::AfterStep);
    let (mut metrics, mut timing, mut events) =
        (run.metrics(start)?, run.timing()?, run.events(resumed_from)?);
    metrics
        .notices()
        .iter()
        .for_each(|notice| println!("notice: {notice}"));
    let mut checkpoints = run.checkpoints(KEEP);
    let clock = Stopwatch::start();
    for step in if after == 0 { 0 } else { after + 1 }..=last {
        let reward = reward(step) + 0.04 * noise(step);
        let record = MetricRecord::new(step, "train")
            .with("reward_mean", reward)
            .with(
                "loss",
                0.3 * (-0.01 * step as f32).exp() + 0.02 * noise(step + 9000),
            )
            .with("gradient_norm", 1.0 + 0.3 * noise(step + 5000))
            .with("max_abs_ratio_minus_1", 0.0_f32);
        metrics.append(&record)?;
        events.record(&record)?;
        timing.append(&MetricRecord::new(step, "train").with("wall_ms", clock.wall_s() * 1e3))?;
        if step.is_multiple_of(20) {
            let values: Vec<f64> = (0..24).map(|prompt| held_out(step, prompt)).collect();
            let interval = mean_interval(&values, IntervalMethod::StudentT)?;
            let record = MetricRecord::new(step, "eval")
                .with("reward_mean", interval.mean)
                .with("reward_low", interval.low.unwrap_or(interval.mean))
                .with("reward_high", interval.high.unwrap_or(interval.mean));
            metrics.append(&record)?;
            events.record(&record)?;
        }
        if step.is_multiple_of(40) {
            let mut grid = ImageGrid::new().title(format!("held-out prompts, step {step}"));
            for (index, (prompt, ..)) in PROMPTS.iter().enumerate() {
                grid.row(*prompt, tiles(index, step)?);
            }
            events.image("eval", step, &run.write_grid("eval", step, &grid)?)?;
        }
        if step > 0 && step.is_multiple_of(25) {
            metrics.sync()?;
            let mut checkpoint = CheckpointWriter::new(step, json!({"metrics": metrics.position()}));
            checkpoint.section("weights", vec![step as u8; 4096])?;
            checkpoints.save(&checkpoint)?;
        }
    }
    if last == STEPS {
        let prompts: Vec<String> = PROMPTS.iter().map(|(prompt, ..)| (*prompt).to_owned()).collect();
        let side = |step| {
            (0..PROMPTS.len())
                .map(|index| tiles(index, step))
                .collect::<Result<Vec<_>>>()
        };
        let headers = ["before (step 0)", "after (step 200)"];
        let grid = ImageGrid::before_after(headers, &prompts, side(0)?, side(STEPS)?)?;
        run.write_grid("before-after", STEPS, &grid)?;
    }
    Ok(())
}

fn curves(run: &RunDirectory) -> Result<()> {
    let metrics = run.read_metrics()?;
    let band = Some(("reward_low", "reward_high"));
    let eval = Series::from_metrics(&metrics, "held-out, 95 % interval", "eval", "reward_mean", band);
    let before = eval.points.first().map_or(0.0, |(_, value)| *value);
    let reward = LineChart::new("Reward", "step", "mean reward")
        .with(eval)
        .with(Series::from_metrics(
            &metrics,
            "rollouts",
            "train",
            "reward_mean",
            None,
        ))
        .reference(before, "before training");
    run.write_curve("1-reward", &reward)?;
    let loss = Series::from_metrics(&metrics, "", "train", "loss", None);
    run.write_curve("2-loss", &LineChart::new("Loss", "step", "GRPO loss").with(loss))?;
    let norm = Series::from_metrics(&metrics, "", "train", "gradient_norm", None);
    run.write_curve(
        "3-gradient-norm",
        &LineChart::new("Gradient norm", "step", "before clipping").with(norm),
    )
}

fn summary(clock: &Stopwatch) -> Result<RunSummary, Box<dyn Error>> {
    let at = |step| (0..24).map(|prompt| held_out(step, prompt)).collect::<Vec<f64>>();
    let (before, after) = (at(0), at(STEPS));
    let method = IntervalMethod::StudentT;
    Ok(RunSummary {
        status: RunStatus::Finished,
        steps: STEPS,
        images: STEPS * 64,
        rewards: vec![RewardChange {
            name: "shape rules".into(),
            measured_on: "24 held-out prompts".into(),
            before: mean_interval(&before, method)?,
            after: mean_interval(&after, method)?,
            difference: paired_difference(&before, &after, method)?,
        }],
        processes: 2,
        images_per_s: Some(STEPS as f64 * 64.0 / 249.2),
        wall_s: 274.0 + clock.wall_s(),
        wall_parts: vec![
            ("rollout".into(), 151.0),
            ("train".into(), 98.2),
            ("evaluation".into(), 24.6),
        ],
        peak_memory_gib: peak_resident_gib()
            .map(|gib| ("host, resident".into(), gib))
            .into_iter()
            .collect(),
        audit: Audit::Exact {
            rollouts: STEPS,
            elements: STEPS * 64 * 4,
        },
        notes: vec!["All numbers of this run are made up by the example.".into()],
        ..RunSummary::default()
    })
}

fn reward(step: u64) -> f32 {
    0.42 + 0.45 * (1.0 - (-0.015 * step as f32).exp())
}

fn held_out(step: u64, prompt: u64) -> f64 {
    f64::from(reward(step) - 0.02 + 0.1 * noise(1000 + prompt) + 0.05 * noise(step * 31 + prompt))
        .clamp(0.0, 1.0)
}

/// A number in [-1, 1] that depends on `index` alone.
fn noise(index: u64) -> f32 {
    let bits = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((bits ^ (bits >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Four samples of a prompt: discs that come out of the noise as training goes on.
fn tiles(prompt: usize, step: u64) -> Result<Vec<Tile>> {
    let (_, colour, count) = PROMPTS[prompt];
    let clean = reward(step);
    (0..4_u64)
        .map(|sample| {
            let pixel = |at: usize| {
                let (channel, y, x) = (at / (SIDE * SIDE), at / SIDE % SIDE, at % SIDE);
                let inside = (0..count).any(|disc| {
                    let turn = disc as f32 * std::f32::consts::TAU / count as f32 + sample as f32;
                    let (dy, dx) = (
                        y as f32 - 16.0 - 8.5 * turn.sin(),
                        x as f32 - 16.0 - 8.5 * turn.cos(),
                    );
                    dy * dy + dx * dx < 26.0
                });
                let paint = if inside { colour[channel] } else { 0.85 };
                clean * paint + (1.0 - clean) * 1.4 * noise(at as u64 + sample * 7919 + step)
            };
            let score = (clean + 0.08 * noise(sample + step * 5 + prompt as u64)).clamp(0.0, 1.0);
            let pixels_chw = (0..3 * SIDE * SIDE).map(pixel).collect();
            Ok(Tile::new(3, SIDE, SIDE, pixels_chw)?.label(format!("{score:.2}")))
        })
        .collect()
}
