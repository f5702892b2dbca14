//! The settings of diffusion-OPD and their rules.

use crate::algorithm::{Teacher, TeacherSource};
use crate::scheduler::StepCoefficients;
use flow_config::codes::RULE_DISTILLATION;
use flow_config::{DistillationFacts, Dynamics, Rules, Window};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The settings of diffusion-OPD, `kind = "diffusion-opd"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OpdSettings {
    /// The models that are learned from, at least one. With several each prompt names its own: `teacher` in its metadata.
    pub teachers: Vec<TeacherConfig>,
    /// What is compared with the teacher.
    pub loss_target: LossTarget,
    /// Whether a row's loss is divided by the mean absolute difference from the teacher, which is not differentiated.
    pub self_normalise: bool,
    /// At which steps of the rollout: from `lo` times to `hi` times the number of steps, both included, counted from 0 at the noise.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub step_range: [f64; 2],
    /// Passes over the trajectories of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for OpdSettings {
    fn default() -> Self {
        Self {
            teachers: Vec::new(),
            loss_target: LossTarget::Mean,
            self_normalise: false,
            step_range: [0.0, 0.99],
            inner_epochs: 1,
        }
    }
}

/// An entry of `[[algorithm.teachers]]`: a frozen model of the run's architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TeacherConfig {
    /// Its name, by which prompts name it.
    pub name: String,
    /// A LoRA file, or the folder of one, over the weights that the run begins from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
    /// A file or folder with all weights of the model, in the place of `adapter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Its guidance: classifier-free, or the scale that a model embeds; without it that of the rollout.
    #[schemars(range(min = 0.0, max = 100.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guidance_scale: Option<f64>,
}

/// What diffusion-OPD compares with the teacher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LossTarget {
    /// The mean of the step (Flow-Factory's `xt`), over its variance where the step is stochastic.
    #[default]
    Mean,
    /// The velocity (`v`); for deterministic steps.
    Velocity,
    /// The image that the velocity points at, `x - sigma v` (`x0`); for deterministic steps.
    Image,
}

impl LossTarget {
    /// How what is compared changes with the velocity at a step.
    pub(super) fn slope(self, step: &StepCoefficients) -> f64 {
        match self {
            Self::Mean => step.mean_v,
            Self::Velocity => 1.0,
            Self::Image => -step.sigma,
        }
    }
}

impl OpdSettings {
    /// The teachers, of settings that passed their rules.
    pub(super) fn teachers(&self) -> Result<Vec<Teacher>, String> {
        if self.teachers.is_empty() {
            return Err(
                "`algorithm.teachers` is empty, and there is nothing to learn from; name a teacher".into(),
            );
        }
        let teacher = |it: &TeacherConfig| {
            let source = match (&it.adapter, &it.weights) {
                (Some(path), None) => TeacherSource::Adapter(path.clone()),
                (None, Some(path)) => TeacherSource::Weights(path.clone()),
                _ => {
                    return Err(format!(
                        "the teacher `{}` needs `adapter` or `weights`, one of the two",
                        it.name
                    ));
                }
            };
            Ok(Teacher {
                name: it.name.clone(),
                source,
                guidance_scale: it.guidance_scale,
            })
        };
        self.teachers.iter().map(teacher).collect()
    }

    /// What a run has to hold for the teachers.
    pub(super) fn facts(&self) -> DistillationFacts {
        let adapters = self.teachers.iter().filter(|it| it.adapter.is_some()).count();
        DistillationFacts {
            step_range: self.step_range,
            adapters,
            models: self.teachers.len() - adapters,
            networks: 0,
        }
    }
}

/// The numbers of the steps in a range of fractions, of `steps` steps.
pub(super) fn steps_within([lo, hi]: [f64; 2], steps: usize) -> Vec<usize> {
    let range: RangeInclusive<f64> = lo * steps as f64..=hi * steps as f64;
    (0..steps)
        .filter(|step| range.contains(&(*step as f64)))
        .collect()
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &OpdSettings, rules: &mut Rules<'_>, path: &str) {
    check_teachers(&settings.teachers, rules, path);
    check_range(settings, rules, path);
    let dynamics = rules.config().scheduler.dynamics;
    if settings.loss_target != LossTarget::Mean && dynamics != Dynamics::Ode {
        let key = format!("{path}.loss_target");
        let message = format!(
            "`{key}` compares velocities or images, which say nothing of a step's noise, and `scheduler.dynamics` is not \"ode\""
        );
        rules
            .error(RULE_DISTILLATION, &[&key, "scheduler.dynamics"], message)
            .help(format!(
                "set `scheduler.dynamics = \"ode\"`, or `{key} = \"mean\"`"
            ));
    }
}

fn check_teachers(teachers: &[TeacherConfig], rules: &mut Rules<'_>, path: &str) {
    let list = format!("{path}.teachers");
    if teachers.is_empty() {
        let kind = format!("{path}.kind");
        rules
            .error(
                RULE_DISTILLATION,
                &[&list, &kind],
                format!("`{list}` is empty, and there is nothing to learn from"),
            )
            .help("add a `[[algorithm.teachers]]` table with its `name` and an `adapter` or `weights`");
    }
    for (index, teacher) in teachers.iter().enumerate() {
        let name = &teacher.name;
        let of_key = |key: &str| format!("{list}.{index}.{key}");
        if teachers[..index].iter().any(|other| other.name == *name) {
            rules
                .error(
                    RULE_DISTILLATION,
                    &[&of_key("name")],
                    format!("two teachers are called `{name}`"),
                )
                .help("give each a name of its own: prompts name their teacher");
        }
        let (key, problem) = match (&teacher.adapter, &teacher.weights) {
            (None, None) => ("name", "names no file"),
            (Some(_), Some(_)) => ("weights", "names two files"),
            _ => continue,
        };
        rules
            .error(
                RULE_DISTILLATION,
                &[&of_key(key)],
                format!("the teacher `{name}` {problem}"),
            )
            .help("give it an `adapter`, a LoRA over the weights of the run, or `weights`, a whole model; one of the two");
    }
}

fn check_range(settings: &OpdSettings, rules: &mut Rules<'_>, path: &str) {
    let key = format!("{path}.step_range");
    let [lo, hi] = settings.step_range;
    let scheduler = &rules.config().scheduler;
    let steps = scheduler.steps;
    let within = steps_within([lo, hi], steps);
    if within.is_empty() {
        rules
            .error(
                RULE_DISTILLATION,
                &[&key, "scheduler.steps"],
                format!("`{key}` is [{lo}, {hi}], in which none of the {steps} steps lies"),
            )
            .help("have lo <= hi, and widen it; [0, 0.99] has all steps");
        return;
    }
    // Steps without noise are not compared beside steps with noise.
    let stochastic: Vec<usize> = match &scheduler.window {
        _ if scheduler.dynamics == Dynamics::Ode => return,
        Window::All(_) => (0..steps.saturating_sub(1)).collect(),
        Window::List(list) => list.steps.clone(),
        Window::Random(_) | Window::Sliding(_) | Window::Contiguous(_) => return,
    };
    if !stochastic.iter().any(|step| within.contains(step)) {
        rules
            .error(
                RULE_DISTILLATION,
                &[&key, "scheduler.window"],
                format!("`{key}` is [{lo}, {hi}], in which none of the stochastic steps {stochastic:?} lies"),
            )
            .help(
                "widen it, choose other steps in `scheduler.window`, or set `scheduler.dynamics = \"ode\"`",
            );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step from sigma 0.8 to 0.6, whose diffusion is `s`.
    fn step(s: f64) -> StepCoefficients {
        let (sigma, dt) = (0.8, -0.2);
        let drift = s * s / (2.0 * sigma);
        StepCoefficients {
            step: 0,
            sigma,
            sigma_next: sigma + dt,
            dt,
            std_dev: s,
            mean_x: 1.0 + drift * dt,
            mean_v: (1.0 + drift * (1.0 - sigma)) * dt,
            noise: s * (-dt).sqrt(),
            history: 0.0,
            log_prob: None,
        }
    }

    #[test]
    fn what_is_compared_changes_with_the_velocity_as_computed_by_hand() {
        // Velocities 0.3 of the student and 0.1 of the teacher.
        let square = |target: LossTarget, step: &StepCoefficients| (target.slope(step) * 0.2).powi(2);
        let ode = step(0.0);
        for (target, expected) in [
            (LossTarget::Velocity, 0.04),
            (LossTarget::Image, 0.0256),
            (LossTarget::Mean, 0.0016),
        ] {
            assert!((square(target, &ode) - expected).abs() < 1e-12, "{target:?}");
        }
        let sde = step(0.5);
        assert!((sde.noise.powi(2) - 0.05).abs() < 1e-12);
        assert!((square(LossTarget::Mean, &sde) / 0.05 - 0.034_031_25).abs() < 1e-12);
    }

    #[test]
    fn a_range_of_fractions_has_the_steps_at_both_of_its_ends() {
        assert_eq!(steps_within([0.0, 0.99], 10), (0..10).collect::<Vec<_>>());
        assert_eq!(steps_within([0.25, 0.5], 4), [1, 2]);
        assert_eq!(steps_within([0.0, 0.5], 10), [0, 1, 2, 3, 4, 5]);
        assert!(steps_within([0.55, 0.6], 4).is_empty());
        assert!(steps_within([0.6, 0.2], 10).is_empty());
    }
}
