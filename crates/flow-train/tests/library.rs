//! Runs of a program that has no command line.

use flow_train::config::{Config, OnExists};
use flow_train::report::RunStatus;
use flow_train::trainer::observer::{IterationSummary, Observer};
use flow_train::trainer::setup;
use flow_train::{Sampling, Training, train};
use std::fs;
use std::path::Path;

fn config(folder: &Path) -> Config {
    let text = r#"
        config_version = 1
        run = { name = "bright", steps = 3 }
        data = { kind = "digits" }
        rewards = [{ kind = "target-colour", rgb = [1.0, 1.0, 1.0] }]
        scheduler = { steps = 4 }
        sampling = { prompts_per_step = 2, group_size = 4, micro_batch = 8 }
        evaluation = { every = 3, prompts = 2, images_per_prompt = 2 }
        model = { dit = { hidden = 16, layers = 2, heads = 2 } }
        device = { threads = 2 }
    "#;
    let mut config = test_catalog::parse_str(text).expect("the config is right").config;
    config.run.dir = folder.to_owned();
    config
}

/// Stops a run after its first iteration.
#[derive(Default)]
struct Impatient {
    seen: usize,
}

impl Observer for Impatient {
    fn iteration(&mut self, _: &IterationSummary) {
        self.seen += 1;
    }

    fn interrupted(&self) -> bool {
        self.seen > 0
    }
}

#[test]
fn a_run_that_its_observer_stopped_goes_on_to_the_same_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut whole = config(folder.path());
    whole.run.name = "whole".into();
    let whole = train(&whole).expect("it trains");
    assert_eq!(whole.status, RunStatus::Finished);

    let mut config = config(folder.path());
    let mut observer = Impatient::default();
    let stopped = Training::new(&config)
        .observer(&mut observer)
        .run()
        .expect("it trains");
    assert_eq!(stopped.status, RunStatus::Interrupted { step: 1 });
    assert!(stopped.weights.is_empty());
    config.run.on_exists = OnExists::Resume;
    let resumed = train(&config).expect("it goes on");
    assert_eq!(resumed.status, RunStatus::Finished);
    assert_eq!(resumed.summary.steps, 3);
    let metrics = |run: &Path| fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    assert_eq!(metrics(&resumed.directory), metrics(&whole.directory));

    let images = |weights: &Path| {
        let sampling = Sampling::new(&config).weights(weights).seed(7);
        sampling.images(&["bold 7", "thin 3"]).expect("images")
    };
    let found = images(&resumed.weights[0]);
    assert_eq!(found, images(&whole.weights[0]));
    assert_eq!((found.len(), found[0].width), (2, 8));
}

#[test]
fn what_is_there_and_what_is_wrong_is_refused_by_name_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = config(folder.path());
    let said = |change: &dyn Fn(&mut Config)| {
        let mut config = good.clone();
        change(&mut config);
        train(&config).expect_err("it is refused").to_string()
    };
    for (change, expected) in [
        (
            &(|config: &mut Config| config.optimizer.learning_rate = f64::NAN) as &dyn Fn(&mut Config),
            "optimizer.learning_rate",
        ),
        (&|config| config.sampling.group_size = 0, "sampling.group_size"),
        (&|config| config.run.seed = u64::MAX, "TOML"),
        (&|config| config.rewards.clear(), "reward"),
        (&|config| config.model.set("dit", "heads", 3), "heads"),
        (&|config| config.run.name = "a/b".into(), "run.name"),
    ] {
        let said = said(change);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);

    train(&good).expect("it trains");
    let metrics = folder.path().join("bright").join("metrics.jsonl");
    let before = fs::read(&metrics).expect("metrics");
    let again = train(&good).expect_err("the run is there").to_string();
    assert!(again.contains("bright"), "{again}");
    assert_eq!(fs::read(&metrics).expect("metrics"), before);

    let prompt = Sampling::new(&good)
        .images(&["eleven"])
        .expect_err("no such prompt");
    assert!(prompt.to_string().contains("eleven"), "{prompt}");
}

#[test]
fn a_program_trains_a_diffusers_folder_whose_constants_its_config_does_not_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = test_support::pipeline_folder("sd3");
    fs::write(folder.path().join("prompts.txt"), "a cat\na dog\na cow\n").expect("it can be written");
    let mut config = config(folder.path());
    config.model = flow_train::config::ModelConfig {
        path: Some(model.path().to_owned()),
        width: Some(48),
        height: Some(64),
        ..Default::default()
    };
    let prompts = serde_json::json!({ "path": folder.path().join("prompts.txt"), "test_count": 1 });
    config.data =
        flow_train::config::DataConfig::new("prompts", prompts.as_object().expect("a table").clone());
    config.sampling.micro_batch = 2;
    config.run.steps = 1;
    config.evaluation.prompts = 1;
    let trained = train(&config).expect("it trains");
    assert_eq!(trained.status, RunStatus::Finished);
    let written = fs::read_to_string(trained.directory.join("run.json")).expect("a manifest");
    assert!(written.contains("\"architecture\": \"mmdit\""), "{written}");
    // A constant that the folder contradicts.
    config.model.architecture = "flux".into();
    let other = train(&config).expect_err("another model").to_string();
    assert!(
        other.contains("`model.architecture` is \"flux\", and \"mmdit\""),
        "{other}"
    );
}

#[test]
fn the_noise_levels_of_a_folder_are_those_of_its_scheduler() {
    let catalog = flow_train::Registries::built_in()
        .expect("names differ")
        .catalog();
    for name in ["sd3", "flux-dev"] {
        let folder = test_support::pipeline_folder(name);
        let mut config = catalog.defaults().clone();
        config.model.path = Some(folder.path().to_owned());
        (config.model.width, config.model.height) = (Some(48), Some(64));
        config.scheduler.steps = 7;
        let base = Path::new(".");
        let folders = setup::PipelineFolders::default();
        let config =
            setup::completed_by_folder(&config, catalog.defaults(), base, &folders).expect("a folder");
        let pipeline = setup::pipeline(&config, base, &folders).expect("a folder");
        // Tokens of 16 by 16 pixels.
        let tokens = (48 / 16) * (64 / 16);
        let ours = setup::schedule(&config, tokens).expect("a schedule");
        let theirs =
            flow_pipeline::sigmas(pipeline.family(), pipeline.scheduler(), 7, tokens).expect("levels");
        let pairs = ours.grid().sigmas().iter().zip(&theirs);
        assert_eq!(ours.grid().sigmas().len(), theirs.len());
        for (ours, theirs) in pairs {
            assert!((ours - theirs).abs() < 1e-12, "{name}: {ours} and {theirs}");
        }
    }
}

#[test]
fn a_folder_is_opened_once_however_often_it_is_asked_for() {
    let folder = test_support::pipeline_folder("sd3");
    let folders = setup::PipelineFolders::default();
    let opened = folders.open(folder.path(), None).expect("a folder");
    std::fs::remove_file(folder.path().join("model_index.json")).expect("it is there");
    let again = folders.clone().open(folder.path(), None).expect("it was opened");
    assert_eq!(again.family(), opened.family());
    // Another variant is another use of its files.
    assert!(folders.open(folder.path(), Some("fp16")).is_err());
}
