//! An accelerator that records how it is treated: set up once before it computes, named where it falls short.

use crate::support::{RunTo, Visit, config, environment, registries, with_parts};
use burn::tensor::Tensor;
use flow_accel::{Accelerator, AcceleratorStage, Engagement, Meter, Refusal, Safety, Target};
use flow_core::{Backends, Exec, FlowModel, ModelInput, Stopped, VelocityDriver, Weights};
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{Observer, Silent};
use flow_trainer::trainer::Parts;
use flow_trainer::setup;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RecordingParams {
    #[serde(default)]
    falls_short: bool,
    #[serde(default)]
    panics: bool,
}

#[derive(Debug)]
struct Recording {
    set_ups: Arc<AtomicUsize>,
    falls_short: bool,
    panics: bool,
}

impl Accelerator for Recording {
    fn name(&self) -> &str {
        "recording"
    }
    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }
    fn set_up(&self, weights: &Weights) -> Result<(), Refusal> {
        assert!(!weights.layout().is_empty());
        self.set_ups.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        let driver = Driver {
            inner: plan.velocities.clone(),
            set_ups: self.set_ups.clone(),
            meter: target.meter.clone(),
            falls_short: self.falls_short,
            panics: self.panics,
        };
        Ok(Backends {
            velocities: Arc::new(driver),
            ..plan
        })
    }
}

#[derive(Debug)]
struct Driver {
    inner: Arc<dyn VelocityDriver>,
    set_ups: Arc<AtomicUsize>,
    meter: Meter,
    falls_short: bool,
    panics: bool,
}

impl VelocityDriver for Driver {
    fn name(&self) -> &str {
        "recording"
    }
    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        assert_eq!(
            self.set_ups.load(Ordering::SeqCst),
            1,
            "set up once before it computes"
        );
        assert!(!self.panics, "the device fell off the bus");
        if self.falls_short {
            self.meter
                .falls_short("calls_not_recorded", "the memory is full; make room");
        }
        self.meter.count(Engagement::CallAnswered, 1);
        self.inner.run(exec, model, input)
    }
}

/// Notices that a person would see.
#[derive(Default)]
struct Notices(Vec<String>);

impl Observer for Notices {
    fn notice(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

fn with_recording<V: Visit>(overrides: &[&str], visit: V) -> V::Output {
    let mut registries = registries();
    let set_ups = Arc::new(AtomicUsize::new(0));
    let build = move |params: RecordingParams| {
        Ok(Recording {
            set_ups: set_ups.clone(),
            falls_short: params.falls_short,
            panics: params.panics,
        })
    };
    (registries.accelerators)
        .register("recording", AcceleratorStage::Both, "For tests.", build)
        .expect("a free name");
    with_parts(&config(overrides), &environment(&registries), visit)
}

/// What computes with accelerators besides a run.
#[derive(Clone, Copy)]
enum Computes {
    Audit,
    Drift,
}

impl Visit for Computes {
    type Output = Result<(), TrainError>;

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Self::Output {
        let mut parts = parts.set_up()?;
        match self {
            Self::Audit => parts.audit(&mut Silent).map(|_| ()),
            Self::Drift => parts.drift(0, &mut Silent).map(|_| ()),
        }
    }
}

const PLAIN: &str = "acceleration.shared={ name = \"recording\" }";

#[test]
fn an_accelerator_is_set_up_once_before_a_run_an_audit_and_a_comparison_compute() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    };
    with_recording(&[PLAIN], run).expect("the run ends");
    for computes in [Computes::Audit, Computes::Drift] {
        with_recording(&[PLAIN], computes).expect("it ends");
    }
}

struct Observed<'a>(RunTo<'a>);

impl Visit for Observed<'_> {
    type Output = (Result<String, TrainError>, Vec<String>);

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Self::Output {
        let mut notices = Notices::default();
        let left = self.0.observed(parts, &mut notices);
        (left.map(|left| left.metrics), notices.0)
    }
}

#[test]
fn what_an_accelerator_does_not_do_is_named_once_counted_and_stops_a_strict_run() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let short = "acceleration.shared={ name = \"recording\", params = { falls_short = true } }";
    let run = |name: &str, overrides: &[&str]| {
        let root = root.path().join(name);
        let run = RunTo {
            root: &root,
            resume: false,
            until: 2,
        };
        with_recording(overrides, Observed(run))
    };
    let (metrics, notices) = run("plain", &[short]);
    let metrics = metrics.expect("it goes on");
    let of_it = notices
        .iter()
        .filter(|notice| notice.contains("the memory is full"));
    assert_eq!(of_it.count(), 1, "{notices:#?}");
    assert_eq!(
        metrics
            .matches("acceleration/recording/calls_not_recorded")
            .count(),
        2
    );
    let (stopped, _) = run("strict", &[short, "acceleration.strict=true"]);
    let error = stopped.expect_err("it is strict");
    assert!(
        matches!(&error, TrainError::AcceleratorFellShort { name, .. } if name == "recording"),
        "{error}"
    );
    assert!(
        error.to_string().contains("the memory is full; make room"),
        "{error}"
    );
}

/// An evaluation, with whatever the config says of its accelerators.
fn evaluated(overrides: &[&str]) -> Result<Vec<String>, TrainError> {
    let mut registries = registries();
    let build = |params: RecordingParams| {
        Ok(Recording {
            set_ups: Arc::default(),
            falls_short: params.falls_short,
            panics: params.panics,
        })
    };
    (registries.accelerators)
        .register("recording", AcceleratorStage::Both, "For tests.", build)
        .expect("a free name");
    let (config, environment) = (config(overrides), environment(&registries));
    let common = setup::common(&config, &environment)?.set_up()?;
    let prompts: Vec<_> = common.dataset.held_out_prompts()[..2].to_vec();
    flow_trainer::sample(&common, &prompts, 2)?;
    let found = common.shortfalls("the evaluation")?;
    Ok(found.iter().map(ToString::to_string).collect())
}

#[test]
fn what_an_accelerator_does_not_do_ends_strict_evaluations_and_comparisons_as_it_ends_a_strict_run() {
    let short = "acceleration.shared={ name = \"recording\", params = { falls_short = true } }";
    let strict = "acceleration.strict=true";
    let named = evaluated(&[short]).expect("it goes on");
    assert_eq!(
        named,
        [
            "the accelerator `recording` did not do all it is in force for in the evaluation: the memory is full; make room"
        ]
    );
    assert_eq!(evaluated(&[PLAIN, strict]).expect("nothing is amiss"), [""; 0]);
    with_recording(&[short], Computes::Drift).expect("it goes on");
    let ended = [
        evaluated(&[short, strict]).map(|_| ()),
        with_recording(&[short, strict], Computes::Drift),
    ];
    for error in ended {
        let error = error.expect_err("it is strict");
        assert!(
            matches!(&error, TrainError::AcceleratorFellShort { name, .. } if name == "recording"),
            "{error}"
        );
        assert!(
            error.to_string().contains("acceleration.strict = false"),
            "{error}"
        );
    }
}

#[test]
fn a_panic_within_a_run_is_an_error_that_says_what_the_panic_said() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    };
    let panics = "acceleration.shared={ name = \"recording\", params = { panics = true } }";
    let error = with_recording(&[panics], run).expect_err("it panics");
    let TrainError::Stopped(stopped @ Stopped::Panicked { .. }) = &error else {
        panic!("{error}")
    };
    assert!(
        stopped.is_defect() && error.to_string().contains("fell off the bus"),
        "{error}"
    );
    let summary = std::fs::read_to_string(root.path().join("run/summary.json")).expect("a summary");
    assert!(summary.contains("fell off the bus"), "{summary}");
}
