//! Distillation: losses and gradients against host computations in f64, runs that learn from a teacher, and teachers that do not fit.

use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{SITE, host, in_context, mean, rows};
use crate::support::{
    BASE, Left, RunTo, Visit, bits, config, environment, registries, scramble, with_trainer,
};
use burn::tensor::Tensor;
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec, Weights};
use flow_trainer::algorithm::{
    Algorithm, LossContext, LossPoint, LossTarget, Opd, OpdSettings, TeacherConfig,
};
use flow_trainer::policy::CallSite;
use flow_trainer::rollout::StepRecord;
use flow_trainer::scheduler::Schedule;
use flow_trainer::setup::{self, Environment};
use flow_trainer::{TrainError, Trainer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Weights of the model of a config, drawn from `seed`, in a file.
pub fn weights_file(environment: &Environment<'_>, folder: &Path, overrides: &[&str], seed: u64) -> PathBuf {
    let mut model = setup::model(&config(overrides), environment).expect("a model");
    scramble(&mut model.weights, seed);
    let path = folder.join(format!("teacher-{seed}.safetensors"));
    let dtype = flow_models::StoredDtype::F32;
    flow_models::save(&model.weights, &path, dtype, &BTreeMap::new()).expect("weights are written");
    path
}

/// Adapters of another rank than the run's, in a file.
fn adapter_file(environment: &Environment<'_>, folder: &Path) -> PathBuf {
    let overrides = [
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_v\"]",
        "lora.rank=3",
    ];
    let mut model = setup::model(&config(&overrides), environment).expect("a model");
    scramble(&mut model.weights, 31);
    let path = folder.join("adapter.safetensors");
    let dtype = flow_models::StoredDtype::F32;
    flow_models::save_adapters(&model.weights, &path, dtype, &BTreeMap::new()).expect("adapters are written");
    path
}

/// The algorithm with one teacher, `key` naming its file, and further settings.
pub fn taught_by(key: &str, file: &Path, more: &str) -> String {
    let file = file.display();
    format!(
        "algorithm={{ kind = \"diffusion-opd\", teachers = [{{ name = \"one\", {key} = '{file}' }}]{more} }}"
    )
}

const ODE: &str = "scheduler.dynamics=\"ode\"";

/// The velocity at a recorded step, `[4, N]`.
pub fn velocity<'w>(
    context: &LossContext<'_, '_>,
    record: &StepRecord,
    guidance: f32,
    open: impl FnOnce(CallContext) -> Exec<'w>,
) -> Tensor<2> {
    let (policy, conditions) = context.policy.under(guidance, &context.batch.conditions);
    let site = CallSite {
        step: record.step.step as u32,
        stochastic: record.step.is_stochastic(),
        sigma: Some(record.step.sigma),
        ..SITE
    };
    let exec = open(policy.call(site, &context.batch.samples));
    let sigma = context.device.tensor(vec![record.step.sigma as f32; 4], [4]);
    policy.velocity(&exec, Tensor::from_dispatch(record.x.clone()), sigma, &conditions)
}

/// A loss with two teachers, of which the second is guided: rows take turns.
struct CheckOpd {
    target: LossTarget,
    self_normalise: bool,
}

impl CheckOpd {
    /// What is compared, of the latents and velocities of a row.
    fn compared(&self, record: &StepRecord, x: &[f64], v: &[f64]) -> Vec<f64> {
        let step = &record.step;
        let of = |(x, v): (&f64, &f64)| match self.target {
            LossTarget::Mean => step.mean_x * x + step.mean_v * v,
            LossTarget::Velocity => *v,
            LossTarget::Image => x - step.sigma * v,
        };
        x.iter().zip(v).map(of).collect()
    }

    fn algorithm(&self, schedule: &Schedule) -> Opd {
        let teacher = |(name, guidance_scale): (&str, Option<f64>)| TeacherConfig {
            name: name.into(),
            adapter: None,
            weights: Some(name.into()),
            guidance_scale,
        };
        let settings = OpdSettings {
            teachers: [("one", None), ("two", Some(2.5))].map(teacher).to_vec(),
            loss_target: self.target,
            self_normalise: self.self_normalise,
            ..OpdSettings::default()
        };
        Opd::new(settings, schedule).expect("both have a file")
    }
}

const INDEX: usize = 1;

impl Visit for CheckOpd {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let teacher = |seed| {
            let mut weights = trainer.state.weights.current.clone();
            scramble(&mut weights, seed);
            weights
        };
        trainer.state.weights.teachers = [21, 22].map(teacher).to_vec();
        let opd = self.algorithm(&trainer.schedule);
        let position = LossPoint::Recorded(INDEX);
        in_context(&mut trainer, position, |_, context, [pass, again]| {
            let record = &context.batch.records[INDEX];
            let (loss, gradients) = loss_in(pass, context, |in_pass| opd.loss(in_pass, position));

            let own = context.policy.guidance_scale;
            let v = velocity(context, record, own, |call| context.current.exec(call));
            let [first, second] = &context.teachers[..] else {
                panic!("there are two teachers");
            };
            let of_first = velocity(context, record, own, |call| first.pass.exec(call));
            let of_second = velocity(context, record, 2.5, |call| second.pass.exec(call));
            let targets = [host(&of_first.into_dispatch()), host(&of_second.into_dispatch())];
            let (x, v) = (host(&record.x), host(&v.into_dispatch()));
            let variance = match record.step.is_stochastic() {
                true => record.step.noise.powi(2),
                false => 1.0,
            };
            let (mut losses, mut factors, mut merged) = (Vec::new(), Vec::new(), Vec::new());
            for (row, (x, v)) in rows(&x).zip(rows(&v)).enumerate() {
                let target = rows(&targets[row % 2]).nth(row).expect("a row");
                let (ours, theirs) = (self.compared(record, x, v), self.compared(record, x, target));
                let d: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
                let size = match self.self_normalise {
                    true => mean(d.iter().map(|d| d.abs())) + 1e-8,
                    false => 1.0,
                };
                let square = mean(d.iter().map(|d| d * d));
                let of_velocities = mean(v.iter().zip(target).map(|(a, b)| (a - b).powi(2)));
                losses.push(square / variance / size);
                // How the loss rises with the squared distance of velocities.
                factors.push((square / of_velocities / variance / size / 4.0) as f32);
                merged.extend(target.iter().map(|value| *value as f32));
            }
            let expected = mean(losses.iter().copied());
            assert!(
                (loss - expected).abs() < 1e-4 * expected && expected > 1e-6,
                "{loss} and {expected}"
            );

            let values = merged.len() / 4;
            let target: Tensor<2> = context.device.tensor(merged, [4, values]);
            let v = velocity(context, record, own, |call| again.exec(call));
            let difference = v - Tensor::from_dispatch(plain(&target.into_dispatch()));
            let distances: Tensor<1> = (difference.clone() * difference).mean_dim(1).squeeze_dim(1);
            let surrogate = (distances * context.device.tensor(factors, [4])).sum_dim(0);
            expect_gradients(&gradients, &again.gradients(&surrogate), (1e-6, 1e-3));
        });
    }
}

#[test]
fn diffusion_opd_follows_its_formula_with_every_target_and_two_teachers() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(&environment, folder.path(), &[], 5);
    let algorithm = taught_by("weights", &file, "");
    // The second teacher's guidance needs the empty prompt, which the evaluation asks for here.
    let guided = "evaluation.guidance_scale=2.0";
    for (target, self_normalise, dynamics) in [
        (LossTarget::Mean, false, "ode"),
        (LossTarget::Mean, true, "flow-sde"),
        (LossTarget::Mean, false, "cps"),
        (LossTarget::Velocity, false, "ode"),
        (LossTarget::Image, true, "ode"),
    ] {
        let dynamics = format!("scheduler.dynamics=\"{dynamics}\"");
        let config = config(&[&algorithm, &dynamics, guided]);
        let check = CheckOpd {
            target,
            self_normalise,
        };
        with_trainer(&config, &environment, check);
    }
}

/// A run whose teacher has these weights, or those of its file.
struct Learn<'a> {
    run: RunTo<'a>,
    teacher: Option<fn(&Weights) -> Weights>,
}

impl Visit for Learn<'_> {
    /// The trained weights before the run, and what it leaves.
    type Output = (Vec<Vec<u32>>, Result<Left, TrainError>);

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        let before = bits(&trainer.state.weights.current);
        if let Some(teacher) = self.teacher {
            trainer.state.weights.teachers = vec![teacher(&trainer.state.weights.current)];
        }
        (before, self.run.visit(trainer))
    }
}

/// A number that each iteration logged.
fn logged(left: &Left, name: &str) -> Vec<f64> {
    let records = left
        .metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
    records.filter_map(|record| record.get(name)?.as_f64()).collect()
}

#[test]
fn a_student_that_is_its_teacher_has_no_loss_and_does_not_move() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(&environment, folder.path(), &[], 5);
    let decays = "optimizer.weight_decay=0.0";
    for (name, dynamics, more) in [
        ("a", "ode", ", loss_target = \"image\""),
        ("b", "flow-sde", ", self_normalise = true"),
    ] {
        let dynamics = format!("scheduler.dynamics=\"{dynamics}\"");
        let config = config(&[&taught_by("weights", &file, more), &dynamics, decays]);
        let root = folder.path().join(name);
        let learn = Learn {
            run: RunTo {
                root: &root,
                resume: false,
                until: 1,
            },
            teacher: Some(Weights::clone),
        };
        let (before, left) = with_trainer(&config, &environment, learn);
        let left = left.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(logged(&left, "loss"), [0.0]);
        assert_eq!(logged(&left, "teacher_distance"), [0.0]);
        assert!(left.weights == before, "{dynamics}: the weights must not move");
    }
}

#[test]
fn a_student_comes_nearer_to_its_teacher() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(&environment, folder.path(), &[], 5);
    let algorithm = taught_by("weights", &file, ", loss_target = \"velocity\"");
    let config = config(&[
        &algorithm,
        ODE,
        "optimizer.learning_rate=3e-3",
        "evaluation.every=0",
    ]);
    let learn = Learn {
        run: RunTo {
            root: folder.path(),
            resume: false,
            until: 10,
        },
        teacher: None,
    };
    let (_, left) = with_trainer(&config, &environment, learn);
    let distances = logged(
        &left.unwrap_or_else(|error| panic!("{error}")),
        "teacher_distance",
    );
    let (first, last) = (distances[0], distances[distances.len() - 1]);
    assert!(last < 0.9 * first, "{distances:?}");
}

#[test]
fn a_resumed_distillation_is_the_uninterrupted_one_bit_for_bit() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let whole = weights_file(&environment, folder.path(), &[], 5);
    let adapter = adapter_file(&environment, folder.path());
    let of_weights = taught_by("weights", &whole, ", inner_epochs = 2");
    let of_adapter = taught_by("adapter", &adapter, "");
    let variants: [&[&str]; 3] = [
        &[&of_weights, ODE],
        &[&of_adapter, ODE, "ema.enabled=true"],
        &[&of_adapter, "model.finetune=\"lora\"", "lora.targets=[\"to_q\"]"],
    ];
    for (number, overrides) in variants.into_iter().enumerate() {
        let config = config(overrides);
        let go = |name: &str, resume, until| {
            let root = folder.path().join(format!("{name}-{number}"));
            let run = RunTo {
                root: &root,
                resume,
                until,
            };
            with_trainer(&config, &environment, run).unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
        };
        let uninterrupted = go("whole", false, 4);
        go("parts", false, 3);
        let newest = format!("parts-{number}/run/checkpoints/step-000003.ckpt");
        std::fs::remove_file(folder.path().join(newest)).expect("the run saved its end");
        assert_eq!(uninterrupted, go("parts", true, 4), "{overrides:?}");
        assert!(
            logged(&uninterrupted, "teacher_distance")
                .iter()
                .all(|it| *it > 0.0)
        );
    }
}

#[test]
fn a_run_does_not_go_on_with_another_teacher_in_the_place_of_its_own() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(&environment, folder.path(), &[], 5);
    let config = config(&[&taught_by("weights", &file, ""), ODE]);
    let go = |resume, until| {
        let run = RunTo {
            root: folder.path(),
            resume,
            until,
        };
        with_trainer(&config, &environment, run)
    };
    go(false, 1).unwrap_or_else(|error| panic!("{error}"));
    let other = weights_file(&environment, folder.path(), &[], 6);
    std::fs::rename(other, &file).expect("another file in its place");
    let text = go(true, 2).expect_err("the teacher is another").to_string();
    for part in [
        "algorithm.teachers[0].weights",
        "the run learns from other teachers",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

/// Why the trainer of a run cannot be built.
fn refused(environment: &Environment<'_>, overrides: &[&str]) -> String {
    let config = config(overrides);
    let algorithm =
        setup::algorithm(&config, environment.plugins, 16).unwrap_or_else(|error| panic!("{error}"));
    let trainer = setup::trainer(&config, environment, algorithm);
    trainer.err().expect("the teacher does not fit").to_string()
}

#[test]
fn a_teacher_that_is_not_there_or_of_another_model_is_named_with_its_key() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let wider = weights_file(&environment, folder.path(), &["model.dit.hidden=24"], 7);
    let adapter = adapter_file(&environment, folder.path());
    let missing = folder.path().join("none.safetensors");
    for (key, file, parts) in [
        (
            "adapter",
            &missing,
            ["none.safetensors", "`algorithm.teachers.0.adapter`"],
        ),
        ("weights", &wider, ["the teacher `one`", "teacher-7.safetensors"]),
        ("weights", &adapter, ["adapters (LoRA)", "`adapter`"]),
    ] {
        let text = refused(&environment, &[&taught_by(key, file, ""), ODE]);
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
    }
}

#[test]
fn prompts_that_name_no_teacher_are_refused_where_there_are_several() {
    let registries = registries();
    let environment = environment(&registries);
    let teachers = "algorithm={ kind = \"diffusion-opd\", teachers = [{ name = \"one\", adapter = \"a\" }, \
                    { name = \"two\", adapter = \"b\" }] }";
    let text = refused(&environment, &[teachers, ODE]);
    assert!(
        text.contains("`teacher`") && text.contains("`one`, `two`"),
        "{text}"
    );
}

#[test]
fn settings_of_a_distillation_that_do_not_fit_are_refused_before_anything_is_loaded() {
    let one = "teachers = [{ name = \"one\", adapter = \"a\" }]";
    for (settings, dynamics, part) in [
        (String::new(), "ode", "there is nothing to learn from"),
        ("teachers = [{ name = \"one\" }]".into(), "ode", "names no file"),
        (
            "teachers = [{ name = \"one\", adapter = \"a\", weights = \"b\" }]".into(),
            "ode",
            "names two files",
        ),
        (
            "teachers = [{ name = \"one\", adapter = \"a\" }, { name = \"one\", adapter = \"b\" }]".into(),
            "ode",
            "two teachers are called `one`",
        ),
        (
            format!("{one}, loss_target = \"velocity\""),
            "flow-sde",
            "is not \"ode\"",
        ),
        (
            format!("{one}, step_range = [0.8, 0.9]"),
            "ode",
            "none of the 4 steps",
        ),
        (
            format!("{one}, step_range = [0.7, 1.0]"),
            "flow-sde",
            "none of the stochastic steps",
        ),
    ] {
        let comma = if settings.is_empty() { "" } else { ", " };
        let overrides = [
            format!("algorithm={{ kind = \"diffusion-opd\"{comma}{settings} }}"),
            format!("scheduler.dynamics=\"{dynamics}\""),
        ];
        let report = test_catalog::parse_named("test.toml", BASE, &overrides);
        let text = report.expect_err("the settings do not fit").to_string();
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}
