//! Trains without the command line: two iterations of GRPO on a tiny DiT towards bright images.
//! `cargo run --release -p flow-train --example train -- FOLDER`; the run is written to `FOLDER/example`.

use flow_train::config::{self, Config};
use flow_train::report::{Manifest, OnExists, RunDirectory};
use flow_train::trainer::observer::{IterationSummary, Observer};
use flow_train::trainer::setup::{self, Environment, WithAlgorithm};
use flow_train::trainer::{Session, TrainError, algorithm::Algorithm};
use flow_train::{Registries, environment, versions, worker_pool};
use std::error::Error;
use std::path::{Path, PathBuf};

const CONFIG: &str = r#"
config_version = 1
run = { name = "example", steps = 2, on_exists = "new" }
data = { kind = "digits" }
rewards = [{ kind = "target-colour", rgb = [1.0, 1.0, 1.0] }]
scheduler = { steps = 4 }
sampling = { prompts_per_step = 2, group_size = 4, micro_batch = 8 }
evaluation = { prompts = 2, images_per_prompt = 2 }

[model.dit]
hidden = 16
layers = 2
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }
"#;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("give the folder that the run is written to")?;
    let mut config = config::parse_named("example", CONFIG, &[])?.config;
    config.run.dir = PathBuf::from(folder);
    let registries = Registries::built_in()?;
    // `install` makes the pool's threads the ones that kernels use.
    worker_pool(&config)?.install(|| {
        let environment = environment(&config, Path::new("."), &registries)?;
        let tokens = setup::model(&config, &environment)?.model.spec().tokens;
        let train = Train {
            config: &config,
            environment: &environment,
        };
        let run = setup::with_algorithm(&config, tokens, train)??;
        println!("{}", run.display());
        Ok(())
    })
}

/// Receives the algorithm that the config names; the session is compiled for each of them.
struct Train<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
}

impl WithAlgorithm for Train<'_> {
    type Output = Result<PathBuf, TrainError>;

    fn with<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        let run = &self.config.run;
        let parts = setup::parts(self.config, self.environment, algorithm)?;
        let directory = RunDirectory::open(&run.dir, &run.name, OnExists::New)?;
        let path = directory.path().to_owned();
        let mut manifest = Manifest::new(
            &directory.name(),
            vec![],
            serde_json::json!(self.config),
            Path::new("."),
        );
        manifest.versions.extend(versions());
        Session::start(parts, directory, &manifest)?.run(&mut Print)?;
        Ok(path)
    }
}

/// Watches a run.
struct Print;

impl Observer for Print {
    fn iteration(&mut self, summary: &IterationSummary) {
        println!(
            "iteration {}: reward {:.4}, loss {:.2e}",
            summary.done, summary.reward, summary.loss
        );
    }
}
