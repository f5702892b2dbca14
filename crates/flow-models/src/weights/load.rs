//! Loading weights.

use super::report::SHOWN;
use super::{
    Duplicated, LoadReport, Misplaced, Misshapen, Missing, NotFinite, Source, StoredDtype, StoredTensor,
    Unknown, Unreadable, describe,
};
use crate::lora::{is_adapter, is_made_of_factors};
use crate::{Architecture, ModelError, initialize_adapters};
use flow_core::device::ComputeDevice;
use flow_core::{ParamKind, ParamLayout, ParamSpec, Weights};
use flow_registry::nearest;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What loading found besides the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Free text of the files; of several shards, the first file's word counts.
    pub metadata: BTreeMap<String, String>,
    /// Buffers and adapters that the file leaves out and that kept their values.
    pub kept: Vec<String>,
}

/// Loads the weights of `model` from a safetensors file, a directory, or a `*.safetensors.index.json`.
///
/// # Errors
/// As [`load_into`]; [`ModelError::OtherModel`] if the file, or a `config.json` beside it, has other constants than `model`.
pub fn load(
    model: &dyn Architecture,
    path: &Path,
    device: &ComputeDevice,
) -> Result<(Weights, Loaded), ModelError> {
    if let Some(description) = describe(path)? {
        description.expect(model)?;
    }
    let mut weights = initialize_adapters(model, model.layout(), 0, device);
    let loaded = load_into(&mut weights, path)?;
    Ok((weights, loaded))
}

/// Replaces `weights` by those of a safetensors file, a directory, or a `*.safetensors.index.json`, cast to f32.
///
/// Every base weight must be there. A buffer may be missing, and so may the adapters, all of them together: those
/// keep their values and are listed.
///
/// # Errors
/// [`ModelError::Io`]; [`ModelError::Format`] for a damaged file; [`ModelError::Mismatch`] with everything that is
/// unknown, missing, misshapen, duplicated, misplaced, unreadable or not finite; [`ModelError::Format`] for a file of
/// adapters alone. `weights` is unchanged then.
pub fn load_into(weights: &mut Weights, path: &Path) -> Result<Loaded, ModelError> {
    if path.is_dir() && is_adapter(path).unwrap_or(false) {
        return Err(adapters_alone(path));
    }
    let source = Source::open(path)?;
    load_from(weights, path, &source)
}

fn adapters_alone(path: &Path) -> ModelError {
    ModelError::Format {
        path: path.to_owned(),
        problem: "it holds adapters (LoRA) and no model; name the model in `model.weights`, and this in `model.adapter`".into(),
    }
}

/// Tensors by their name in the layout, each with all the files it is in.
type Found<'a> = BTreeMap<String, Vec<(&'a Path, StoredTensor<'a>)>>;

fn load_from(weights: &mut Weights, path: &Path, source: &Source) -> Result<Loaded, ModelError> {
    let mut found = Found::new();
    let mut metadata = BTreeMap::new();
    for file in &source.files {
        let parsed = file.parse()?;
        if is_made_of_factors(&parsed) {
            return Err(adapters_alone(&file.path));
        }
        for (key, value) in parsed.metadata {
            metadata.entry(key).or_insert(value);
        }
        for tensor in parsed.tensors {
            let copies = found.entry(tensor.name.clone()).or_default();
            copies.push((&file.path, tensor));
        }
    }

    let layout = weights.layout().clone();
    let mut report = LoadReport {
        path: path.to_owned(),
        ..LoadReport::default()
    };
    compare_found(&mut report, &layout, &found);
    let kept = compare_declared(&mut report, &layout, &found);
    compare_places(&mut report, &found, &source.placed);
    report.not_finite = not_finite(&found);
    if !report.is_clean() {
        suggest(&mut report);
        report.hint = hint(&report, &layout);
        return Err(ModelError::Mismatch(Box::new(report)));
    }
    for (name, copies) in found {
        let [(path, tensor)] = copies.as_slice() else {
            unreachable!("duplicates were reported");
        };
        let position = layout.position(&name)?;
        if StoredDtype::of(tensor.dtype) == Some(StoredDtype::Bf16) {
            let mut files = source.files.iter();
            let file = files.find(|file| file.path == *path).expect("it was found there");
            weights.set_host_bf16(position, file.bytes.slice_ref(tensor.bytes))?;
            continue;
        }
        let values = tensor.to_f32().expect("unreadable precisions were reported");
        weights.set_host(position, values)?;
    }
    Ok(Loaded { metadata, kept })
}

/// Reports what is wrong with the tensors that are there.
fn compare_found(report: &mut LoadReport, layout: &ParamLayout, found: &Found<'_>) {
    for (name, copies) in found {
        let (_, tensor) = &copies[0];
        if copies.len() > 1 {
            report.duplicated.push(Duplicated {
                name: name.clone(),
                files: copies.iter().map(|(file, _)| (*file).to_owned()).collect(),
            });
        }
        let spec = layout.find(name).map(|position| &layout.specs()[position]);
        let Some(spec) = spec else {
            report.unknown.push(Unknown {
                name: name.clone(),
                nearest: None,
            });
            continue;
        };
        if spec.shape != tensor.shape {
            report.misshapen.push(Misshapen {
                name: name.clone(),
                expected: spec.shape.clone(),
                found: tensor.shape.clone(),
            });
        }
        if StoredDtype::of(tensor.dtype).is_none() {
            report.unreadable.push(Unreadable {
                name: name.clone(),
                dtype: format!("{:?}", tensor.dtype),
            });
        }
    }
}

/// Reports the weights that are not there and gives those that may keep their values.
fn compare_declared(report: &mut LoadReport, layout: &ParamLayout, found: &Found<'_>) -> Vec<String> {
    let specs = layout.specs();
    let is_adapter = |spec: &ParamSpec| spec.kind == ParamKind::Adapter;
    let holds_adapters = specs
        .iter()
        .any(|spec| is_adapter(spec) && found.contains_key(&spec.name));
    let mut kept = Vec::new();
    for spec in specs.iter().filter(|spec| !found.contains_key(&spec.name)) {
        let may_stay = match spec.kind {
            ParamKind::Base => false,
            ParamKind::Buffer => true,
            ParamKind::Adapter => !holds_adapters,
        };
        if may_stay {
            kept.push(spec.name.clone());
        } else {
            report.missing.push(Missing {
                name: spec.name.clone(),
                nearest: None,
            });
        }
    }
    kept
}

/// Tensors with a value that is infinite or not a number. All threads look: files may be of many gigabytes.
fn not_finite(found: &Found<'_>) -> Vec<NotFinite> {
    let tensors: Vec<&StoredTensor<'_>> = found.values().map(|copies| &copies[0].1).collect();
    let look = |tensor: &&StoredTensor<'_>| {
        let dtype = StoredDtype::of(tensor.dtype)?;
        let (first, count) = dtype.not_finite(tensor.bytes)?;
        let width = dtype.bytes();
        let value = dtype.decode(&tensor.bytes[first * width..(first + 1) * width])[0];
        Some(NotFinite {
            name: tensor.name.clone(),
            value,
            place: tensor.place(first),
            count,
        })
    };
    tensors.par_iter().filter_map(look).collect()
}

/// Reports tensors that the index has elsewhere.
fn compare_places(report: &mut LoadReport, found: &Found<'_>, placed: &BTreeMap<String, PathBuf>) {
    for (name, file) in placed {
        let copies = found.get(name).map(Vec::as_slice).unwrap_or_default();
        if !copies.iter().any(|(at, _)| *at == file.as_path()) {
            report.misplaced.push(Misplaced {
                name: name.clone(),
                file: file.clone(),
            });
        }
    }
}

/// Prefixes of wrappers and of files that hold more than a model.
const PREFIXES: [&str; 7] = [
    "module.",
    "_orig_mod.",
    "transformer.",
    "model.diffusion_model.",
    "diffusion_model.",
    "model.",
    "base_model.model.",
];
/// Parts of names in the programs that published SD3 and Wan.
const ORIGINAL: [&str; 3] = ["joint_blocks.", ".self_attn.q.", ".cross_attn.q."];

/// What the unknown names have in common.
fn hint(report: &LoadReport, layout: &ParamLayout) -> Option<String> {
    let names = || report.unknown.iter().map(|it| it.name.as_str());
    let is_original = |name: &str| ORIGINAL.iter().any(|part| name.contains(part));
    if names().any(is_original) {
        return Some(
            "These are names of the program that published the model. Diffusers gives them those that are read here: in Python, \
             `MODEL_CLASS.from_single_file(FILE).save_pretrained(FOLDER)`"
                .into(),
        );
    }
    let is_known_behind = |prefix: &str, name: &str| {
        let inner = name.strip_prefix(prefix);
        inner.is_some_and(|inner| layout.position(inner).is_ok())
    };
    let prefix = PREFIXES
        .iter()
        .find(|prefix| report.unknown.len() > 1 && names().all(|name| is_known_behind(prefix, name)))?;
    Some(format!(
        "Every name begins with `{prefix}`, and the model has the rest of it: save the inner model, not what wraps it"
    ))
}

/// Fills in the nearest names, where they will be read: comparing all with all would take minutes on a large model.
fn suggest(report: &mut LoadReport) {
    let missing: BTreeSet<String> = report.missing.iter().map(|it| it.name.clone()).collect();
    let unknown: BTreeSet<String> = report.unknown.iter().map(|it| it.name.clone()).collect();
    for it in report.missing.iter_mut().take(SHOWN) {
        it.nearest = nearest(&it.name, unknown.iter().map(String::as_str)).map(str::to_owned);
    }
    for it in report.unknown.iter_mut().take(SHOWN) {
        it.nearest = nearest(&it.name, missing.iter().map(String::as_str)).map(str::to_owned);
    }
}
