//! Pretrains or trains from a config file without the command line: how a program uses this crate.
//!
//! `cargo run --release -p flow-trainer --example headless -- train|pretrain CONFIG [KEY=VALUE]…`

use flow_accel::AcceleratorRegistry;
use flow_attention::AttentionRegistry;
use flow_config::Config;
use flow_core::{Backends, device::ComputeDevice};
use flow_kernels::KernelRegistry;
use flow_models::StoredDtype;
use flow_report::{Interval, Manifest, OnExists, RunDirectory, Stopwatch, peak_resident_gib};
use flow_trainer::Plugins;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::distributed::Distribution;
use flow_trainer::observer::{IterationSummary, Observer};
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_trainer::{TrainError, pretrain};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

struct Lines;

impl Observer for Lines {
    fn iteration(&mut self, summary: &IterationSummary) {
        if summary.done.is_multiple_of(summary.total.div_ceil(60)) {
            println!(
                "{}/{} reward {:.4} loss {:.5} gradient {:.4} |ratio-1| {:?} {:.2} s",
                summary.done,
                summary.total,
                summary.reward,
                summary.loss,
                summary.gradient_norm,
                summary.max_ratio_deviation,
                summary.wall_s
            );
        }
    }

    fn evaluation(&mut self, step: u64, rewards: &[(String, Interval)]) {
        for (name, interval) in rewards {
            println!("evaluation after {step}: {name} {}", interval.text(4));
        }
    }

    fn notice(&mut self, text: &str) {
        println!("{text}");
    }
}

struct Train<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
}

impl Train<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(), TrainError> {
        let run = &self.config.run;
        let trainer = setup::trainer(self.config, self.environment, algorithm)?;
        let directory = RunDirectory::open(&run.dir, &run.name, OnExists::New)?;
        let config =
            serde_json::to_value(self.config).map_err(|error| TrainError::setting(error.to_string()))?;
        let manifest = Manifest::new(
            &directory.name(),
            std::env::args().collect(),
            config,
            Path::new("."),
        );
        let mut trainer = trainer.start(directory, &manifest)?;
        let status = trainer.train(&mut Lines)?;
        println!("{status:?}; {}", trainer.directory().path().display());
        Ok(())
    }
}

fn pretrained(config: &Config, environment: &Environment<'_>) -> Result<(), Failure> {
    let settings = &config.pretrain;
    let dataset = setup::dataset(config, environment)?;
    let blank = Config {
        model: flow_config::ModelConfig {
            weights: None,
            ..config.model.clone()
        },
        ..config.clone()
    };
    let model = setup::model(&blank, environment)?;
    let device = &environment.device;
    let conditioner =
        flow_trainer::conditions::Conditioner::new(&*dataset, model.model.spec(), true, device)?;
    let mut optimizer = setup::optimizer_settings(config);
    optimizer.learning_rate = settings.learning_rate;
    optimizer.warmup_steps = settings.warmup as u64;
    optimizer.weight_decay = settings.weight_decay;
    let settings = pretrain::PretrainSettings {
        steps: settings.steps as u64,
        batch: settings.batch,
        label_noise: settings.label_noise,
        condition_dropout: settings.condition_dropout,
        balance_weight: settings.balance_weight,
        average_decay: settings.ema_decay,
        seed: settings.seed,
        optimizer,
    };
    let parts = pretrain::Pretraining {
        models: std::slice::from_ref(&model.model),
        plan: &environment.plan,
        dataset: &setup::pixel_examples(&*dataset)?,
        conditioner: &conditioner,
        device,
        distribution: &Distribution::of_config(&config.distributed, environment.exchange.clone()),
    };
    let done = pretrain::pretrain(&parts, model.weights, &settings, None, &mut Lines)?;
    let path = environment.base.join(&config.pretrain.output);
    let metadata = BTreeMap::from([("loss".to_owned(), format!("{:.6}", done.final_loss))]);
    flow_models::save(&done.weights, &path, StoredDtype::F32, &metadata)?;
    println!("loss {:.5}; {}", done.final_loss, path.display());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [task, path, overrides @ ..] = arguments.as_slice() else {
        return Err("usage: headless train|pretrain CONFIG [KEY=VALUE]…".into());
    };
    let plugins = Plugins::built_in()?;
    let config = flow_config::load(&plugins.catalog(), path, overrides)
        .map_err(|report| report.to_string())?
        .config;
    let (mut kernels, mut attention) = (KernelRegistry::default(), AttentionRegistry::default());
    flow_kernels::register(&mut kernels)?;
    flow_attention::register(&mut attention)?;
    let plan = Arc::new(Backends::new(attention.get("cpu")?, kernels.get("cpu")?));
    let base = Path::new(path).parent().unwrap_or(Path::new("."));
    let accelerators = AcceleratorRegistry::default();
    let environment = Environment {
        device: ComputeDevice::cpu(),
        plan,
        accelerators: &accelerators,
        plugins: &plugins,
        base,
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    };
    let watch = Stopwatch::start();
    match task.as_str() {
        "pretrain" => pretrained(&config, &environment)?,
        "train" => {
            let tokens = setup::common(&config, &environment)?.model.model.spec().tokens;
            let algorithm = setup::algorithm(&config, environment.plugins, tokens)?;
            let task = Train {
                config: &config,
                environment: &environment,
            };
            task.with(algorithm)?;
        }
        _ => return Err("the task is train or pretrain".into()),
    }
    println!(
        "{:.1} s, peak {:.2} GiB",
        watch.wall_s(),
        peak_resident_gib().unwrap_or(f64::NAN)
    );
    Ok(())
}
