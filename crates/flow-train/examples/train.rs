//! Trains without the command line: two iterations of GRPO on a tiny DiT towards bright images, then an image of what came
//! of it. `cargo run --release -p flow-train --example train -- FOLDER`; the run is written to `FOLDER/example`.

use flow_train::trainer::observer::{IterationSummary, Observer};
use flow_train::{Registries, Sampling, Training, config};
use std::error::Error;
use std::path::PathBuf;

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

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or("give the folder that the run is written to")?;
    let catalog = Registries::built_in()?.catalog();
    let mut config = config::parse_named(&catalog, "example", CONFIG, &[])?.config;
    config.run.dir = PathBuf::from(folder);
    let trained = Training::new(&config).observer(&mut Print).run()?;
    println!("{}", trained.directory.display());
    let sampling = Sampling::new(&config).weights(&trained.weights[0]);
    let images = sampling.images(&["bold 7"])?;
    println!("an image of {} values", images[0].pixels_chw.len());
    Ok(())
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
