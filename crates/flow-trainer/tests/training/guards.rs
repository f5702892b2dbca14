//! What stops a run, and what it says then.

use crate::support::{RunTo, Visit, config, environment, registries, with_parts};
use flow_core::device::ComputeDevice;
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::session::Parts;

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
    let tokens = flow_config::TokenConditioning {
        vocabulary: 9,
        max_tokens: 2,
    };
    narrow.model.dit.conditioning = flow_config::Conditioning::Tokens(tokens);
    let Err(error) = flow_trainer::setup::common(&narrow, &environment) else {
        panic!("9 words are too few")
    };
    assert!(error.to_string().contains("vocabulary = 15"), "{error}");
}
