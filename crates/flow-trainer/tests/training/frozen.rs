//! Runs of adapters: a checkpoint leaves out the weights that a file gives, and a run goes on only with that file.

use crate::support::{Left, RunTo, Visit, config, environment, registries, scramble};
use flow_report::{CheckpointReader, CheckpointWriter};
use flow_trainer::setup::{self, Environment};
use flow_trainer::{FrozenWeights, TrainError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Adapters with an average and a copy of the first ones.
const SETS: [&str; 4] = [
    "model.finetune=\"lora\"",
    "lora.targets=[\"to_q\", \"to_v\"]",
    "ema.enabled=true",
    "algorithm.kl={ kind = \"velocity\", beta = 0.1, reference = \"snapshot\" }",
];

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// With weights `base.safetensors`, and others in `other.safetensors`.
    fn new(environment: &Environment<'_>) -> Self {
        let place = Self {
            folder: tempfile::tempdir().expect("a temporary directory"),
        };
        for (name, seed) in [("base", 11), ("other", 12)] {
            let mut model = setup::model(&config(&[]), environment).expect("a model");
            scramble(&mut model.weights, seed);
            let path = place.weights(name);
            flow_models::save(
                &model.weights,
                &path,
                flow_models::StoredDtype::F32,
                &BTreeMap::new(),
            )
            .expect("weights are written");
        }
        place
    }

    fn weights(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.safetensors"))
    }

    /// Runs to iteration `until` in `name`, on from its newest checkpoint if there is one; `held` with all weights in checkpoints.
    fn run(
        &self,
        environment: &Environment<'_>,
        (name, until): (&str, u64),
        held: bool,
    ) -> Result<Left, TrainError> {
        let weights = format!("model.weights='{}'", self.weights("base").display());
        let config = config(&[&SETS[..], &[&weights]].concat());
        let algorithm = setup::algorithm(&config, environment.plugins, 16)?;
        let mut trainer = setup::trainer(&config, environment, algorithm)?;
        if held {
            trainer.frozen = FrozenWeights::InCheckpoint;
        }
        let root = self.folder.path().join(name);
        let resume = root.join("run").exists();
        RunTo {
            root: &root,
            resume,
            until,
        }
        .visit(trainer)
    }

    /// The sections of a checkpoint: how many values, by set.
    fn values(&self, name: &str, step: u64) -> BTreeMap<String, u64> {
        let path = self
            .folder
            .path()
            .join(format!("{name}/run/checkpoints/step-{step:06}.ckpt"));
        let reader = CheckpointReader::open(&path).expect("a whole checkpoint");
        let mut sets = BTreeMap::new();
        for section in reader.sections() {
            let set = section.name.split('/').next().unwrap_or_default().to_owned();
            *sets.entry(set).or_insert(0) += section.bytes / 4;
        }
        sets
    }

    /// Writes a checkpoint anew without what older versions did not say.
    fn as_before(&self, name: &str, step: u64) {
        let path = self
            .folder
            .path()
            .join(format!("{name}/run/checkpoints/step-{step:06}.ckpt"));
        let reader = CheckpointReader::open(&path).expect("a whole checkpoint");
        let mut meta = reader.meta().clone();
        assert_eq!(meta["frozen"], "held");
        meta.as_object_mut().expect("an object").remove("frozen");
        let mut writer = CheckpointWriter::new(step, meta);
        for section in reader.sections() {
            let bytes = reader.section(&section.name).expect("it is there");
            writer.section(&section.name, bytes).expect("a new name");
        }
        writer.write_to(&path).expect("it can be written");
    }

    fn forget(&self, name: &str, step: u64) {
        let path = format!("{name}/run/checkpoints/step-{step:06}.ckpt");
        std::fs::remove_file(self.folder.path().join(path)).expect("it was saved");
    }
}

/// Rank 8 on `to_q` and `to_v` of two blocks of width 16: `A` and `B` of each.
const TRAINED: u64 = 2 * 2 * (8 * 16 + 16 * 8);

#[test]
fn a_checkpoint_of_adapters_holds_what_is_trained_and_goes_on_to_the_same_bits() {
    let registries = registries();
    let environment = environment(&registries);
    let place = Place::new(&environment);
    let whole = place.run(&environment, ("whole", 4), false).expect("it runs");
    place.run(&environment, ("parts", 3), false).expect("it runs");
    let sets = ["average", "current", "first", "reference", "second"];
    let expected: BTreeMap<String, u64> = sets.into_iter().map(|set| (set.to_owned(), TRAINED)).collect();
    assert_eq!(place.values("parts", 2), expected);
    // The early end was evaluated, which the whole run is not.
    place.forget("parts", 3);
    let resumed = place.run(&environment, ("parts", 4), false).expect("it goes on");
    assert_eq!(whole, resumed);
}

#[test]
fn a_checkpoint_of_adapters_is_refused_without_the_weights_that_they_adapt() {
    let registries = registries();
    let environment = environment(&registries);
    let place = Place::new(&environment);
    place.run(&environment, ("run", 1), false).expect("it runs");
    let refused = |parts: &[&str]| {
        let text = match place.run(&environment, ("run", 2), false) {
            Ok(_) => panic!("it went on"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    };
    let (base, aside) = (place.weights("base"), place.weights("aside"));
    std::fs::rename(&base, &aside).expect("it is there");
    refused(&[
        "holds the adapters alone",
        "there is nothing at",
        "base.safetensors",
        "model.weights",
        "put it back",
    ]);
    std::fs::copy(place.weights("other"), &base).expect("it is there");
    refused(&["model.weights", "BLAKE3", "the file of then"]);
    std::fs::rename(&aside, &base).expect("it is there");
    place.run(&environment, ("run", 2), false).expect("it goes on");
}

#[test]
fn a_checkpoint_of_an_older_version_holds_all_weights_and_goes_on_with_the_file_and_without_it() {
    let registries = registries();
    let environment = environment(&registries);
    let place = Place::new(&environment);
    let whole = place.run(&environment, ("whole", 4), false).expect("it runs");
    for name in ["with", "without"] {
        place.run(&environment, (name, 3), true).expect("it runs");
        assert!(place.values(name, 2)["current"] > 4 * TRAINED, "all weights");
        place.forget(name, 3);
        place.as_before(name, 2);
    }
    let resumed = place.run(&environment, ("with", 4), false).expect("it goes on");
    assert_eq!(whole, resumed);
    assert_eq!(
        place.values("with", 4)["current"],
        TRAINED,
        "the file gives the rest"
    );

    std::fs::rename(place.weights("base"), place.weights("aside")).expect("it is there");
    let resumed = place
        .run(&environment, ("without", 4), false)
        .expect("it goes on");
    assert_eq!(whole, resumed);
    assert!(
        place.values("without", 4)["current"] > 4 * TRAINED,
        "no file gives the rest"
    );
    // And again, from what was written then.
    place
        .run(&environment, ("without", 5), false)
        .expect("it goes on");
}

#[test]
fn weights_that_no_file_gives_are_in_the_checkpoint() {
    let registries = registries();
    let environment = environment(&registries);
    let root = tempfile::tempdir().expect("a temporary directory");
    let config = config(&SETS);
    let algorithm = setup::algorithm(&config, environment.plugins, 16).expect("an algorithm");
    let trainer = setup::trainer(&config, &environment, algorithm).expect("a trainer");
    assert_eq!(trainer.frozen, FrozenWeights::InCheckpoint);
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    };
    run.visit(trainer).expect("it runs");
    let path: &Path = &root.path().join("run/checkpoints/step-000001.ckpt");
    let reader = CheckpointReader::open(path).expect("a whole checkpoint");
    let has = |name: &str| reader.sections().iter().any(|section| section.name == name);
    assert!(
        has("current/transformer_blocks.0.attn.to_q.weight"),
        "{:?}",
        reader.sections()
    );
}
