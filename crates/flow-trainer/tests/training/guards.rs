//! What stops a run, and what it says then.

use crate::support::{RunTo, Visit, config, environment, registries, with_parts};
use flow_core::device::ComputeDevice;
use flow_report::RunDirectory;
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Observer;
use flow_trainer::trainer::Parts;

/// A run one of whose weights is not a number.
struct Poisoned<'a>(RunTo<'a>);

impl Visit for Poisoned<'_> {
    type Output = TrainError;

    fn visit<A: Algorithm + 'static>(self, mut parts: Parts<A>) -> TrainError {
        let weights = &mut parts.state.weights.current;
        let shape = weights.layout().specs()[0].shape.clone();
        let values = vec![f32::NAN; shape.iter().product()];
        weights
            .set(0, ComputeDevice::cpu().plain(values, &shape))
            .expect("the same shape");
        self.0.visit(parts).expect_err("nothing can be learnt")
    }
}

#[test]
fn a_sample_that_is_not_finite_stops_the_run_with_its_number_and_prompt() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = Poisoned(RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    });
    let error = with_parts(&config(&["evaluation.every=0"]), &environment(&registries), run);
    let TrainError::NonFiniteSample {
        iteration: 1,
        sample: 0,
        prompt,
    } = &error
    else {
        panic!("{error}")
    };
    assert!(!prompt.is_empty());
    let summary =
        std::fs::read_to_string(root.path().join("run/summary.json")).expect("a summary is written");
    assert!(summary.contains("failed"), "{summary}");
}

#[test]
fn a_model_that_does_not_fit_the_data_is_an_error_that_gives_the_setting() {
    let registries = registries();
    let environment = environment(&registries);
    // The config's own rules catch this earlier; a caller of the library has only these.
    let mut narrow = config(&[]);
    narrow.model.set("dit", "conditioning.vocabulary", 9);
    let Err(error) = flow_trainer::setup::common(&narrow, &environment) else {
        panic!("9 words are too few")
    };
    assert!(error.to_string().contains("vocabulary = 15"), "{error}");
}

/// A run and what it says of its rewards.
struct Heard<'a>(RunTo<'a>);

impl Visit for Heard<'_> {
    type Output = Vec<String>;

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Vec<String> {
        #[derive(Default)]
        struct Ear(Vec<String>);
        impl Observer for Ear {
            fn notice(&mut self, text: &str) {
                self.0
                    .extend(text.starts_with("rewards fell").then(|| text.to_owned()));
            }
        }
        let mut ear = Ear::default();
        self.0
            .observed(parts, &mut ear)
            .unwrap_or_else(|error| panic!("{error}"));
        ear.0
    }
}

#[test]
fn a_run_whose_rewards_fell_says_so_once_and_at_its_end() {
    let registries = registries();
    let environment = environment(&registries);
    let said = |measured: &str| {
        let config = config(&[
            "rewards=[{ kind = \"target-colour\", rgb = [1.0, 1.0, 1.0] }]",
            &format!("eval_rewards=[{{ kind = \"target-colour\", rgb = {measured} }}]"),
            "optimizer.learning_rate=1e-2",
            "evaluation.every=1",
            "evaluation.prompts=8",
        ]);
        let root = tempfile::tempdir().expect("a temporary directory");
        let run = RunTo {
            root: root.path(),
            resume: false,
            until: 4,
        };
        let heard = with_parts(&config, &environment, Heard(run));
        let directory = RunDirectory::resume(root.path(), "run").expect("the run is there");
        let summary = directory.read_summary().expect("readable").expect("written");
        (heard, summary.notes.join("\n"))
    };
    // Trained towards white, measured by how black images are, and by how white.
    let ((heard, noted), white) = (said("[0.0, 0.0, 0.0]"), said("[1.0, 1.0, 1.0]"));
    assert_eq!(heard.len(), 1, "{heard:?}");
    let begun = "rewards fell: `target-colour` from -";
    assert!(
        heard[0].starts_with(begun) && noted.starts_with(begun),
        "{heard:?} {noted}"
    );
    assert_eq!(white, (vec![], String::new()));
}
