//! The weights of teachers: frozen models of the run's architecture, of files of their own.

use super::model::outline;
use super::paths::start_in_config;
use super::{Environment, ModelParts};
use crate::algorithm::{Teacher, TeacherSource, teacher_of};
use crate::error::TrainError;
use flow_config::Config;
use flow_core::{ParamSpec, RawTensor, Weights};
use flow_data::{Dataset, Prompt};
use flow_models::lora::is_adapter;
use flow_models::weights::describe;
use flow_models::{
    AdapterFile, Architecture, ModelError, add_lora, initialize_adapters_on_frozen, load_into,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads the teachers. Adapters stand on the weights of `model`, and share those of them that do not change.
///
/// # Errors
/// A file that is not there, or is not of this architecture, by the key that names it.
pub(super) fn teachers(
    config: &Config,
    environment: &Environment<'_>,
    model: &ModelParts,
    wanted: &[Teacher],
) -> Result<Vec<Weights>, TrainError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let outline = outline(config, &environment.plugins.models, &environment.device)?;
    let architecture = &*outline.model;
    let load = |(index, teacher): (usize, &Teacher)| {
        let (key, file) = file_of(environment.base, (index, teacher))?;
        let name = teacher.name.clone();
        let loaded = match &teacher.source {
            // Those of a run of adapters are put onto the weights that the run begins with or goes on from.
            TeacherSource::Adapter(_) => match model.absent.first() {
                Some(absent) if !model.weights.layout().has_adapters() => return Err(absent.error()),
                _ => adapted(architecture, model, &file, environment),
            },
            TeacherSource::Weights(_) => whole(architecture, &file, environment),
        };
        loaded.map_err(|source| TrainError::Teacher {
            name,
            key,
            file,
            source: Box::new(source),
        })
    };
    wanted.iter().enumerate().map(load).collect()
}

/// The key that names a teacher's file, and the file.
///
/// # Errors
/// If it is not there.
fn file_of(base: &Path, (index, teacher): (usize, &Teacher)) -> Result<(String, PathBuf), TrainError> {
    let (key, path) = match &teacher.source {
        TeacherSource::Adapter(path) => ("adapter", path),
        TeacherSource::Weights(path) => ("weights", path),
    };
    let (key, file) = (format!("algorithm.teachers.{index}.{key}"), base.join(path));
    match file.exists() {
        true => Ok((key, file)),
        false => Err(TrainError::NoTeacher {
            name: teacher.name.clone(),
            key,
            start: start_in_config(path, base),
            file,
        }),
    }
}

/// That the files of teachers are there.
///
/// # Errors
/// The first one that is not.
pub(super) fn check_files(wanted: &[Teacher], base: &Path) -> Result<(), TrainError> {
    let mut teachers = wanted.iter().enumerate();
    teachers.try_for_each(|teacher| file_of(base, teacher).map(drop))
}

/// The weights of `model` with the adapters of a file, whatever adapters the run trains.
fn adapted(
    architecture: &dyn Architecture,
    model: &ModelParts,
    file: &Path,
    environment: &Environment<'_>,
) -> Result<Weights, ModelError> {
    let (device, kernels) = (&environment.device, &*environment.plan.kernels);
    let adapter = AdapterFile::read(architecture, file)?;
    let found = adapter.config();
    let mut layout = (**architecture.layout()).clone();
    let base = layout.len();
    add_lora(architecture, &mut layout, &found.targets, found.rank, found.alpha)?;
    let frozen = vec![false; layout.len()];
    let value = |index: usize, spec: &ParamSpec| -> Result<RawTensor, ModelError> {
        Ok(match index < base {
            true => model.weights.values(&[index], kernels).remove(0),
            false => device.with_persistent_allocation(|| device.zeros(&spec.shape)),
        })
    };
    // As the run's: those of the base come first in both layouts.
    let forms = model.weights.forms().iter().take(base).copied().collect();
    let mut weights = Weights::from_stored(Arc::new(layout), device, forms, value)?;
    adapter.fill(&mut weights)?;
    weights.freeze(&frozen);
    Ok(weights)
}

/// A whole model of a file or folder.
fn whole(
    architecture: &dyn Architecture,
    file: &Path,
    environment: &Environment<'_>,
) -> Result<Weights, ModelError> {
    if is_adapter(file)? {
        return Err(ModelError::Format {
            path: file.to_owned(),
            problem: "it holds adapters (LoRA) and no model; name it as the teacher's `adapter`".into(),
        });
    }
    if let Some(description) = describe(file)? {
        description.expect(architecture)?;
    }
    let layout = architecture.layout().clone();
    let frozen = vec![false; layout.len()];
    let device = &environment.device;
    let mut weights = initialize_adapters_on_frozen(architecture, &layout, 0, device, &frozen, Arc::from([]));
    load_into(&mut weights, file)?;
    weights.freeze(&frozen);
    Ok(weights)
}

/// That each prompt names a teacher, where there are several.
///
/// # Errors
/// The first prompt that names none of them.
pub(super) fn check_prompts(
    wanted: &[Teacher],
    dataset: &dyn Dataset,
    prompts: &[Prompt],
) -> Result<(), TrainError> {
    if wanted.len() < 2 {
        return Ok(());
    }
    prompts.iter().try_for_each(|prompt| {
        let Err(problem) = teacher_of(wanted, prompt) else {
            return Ok(());
        };
        let place = dataset.place(prompt).map(|place| format!("{place}: "));
        let place = place.unwrap_or_default();
        Err(TrainError::setting(format!(
            "{place}the prompt `{}`: {problem}",
            prompt.text
        )))
    })
}
