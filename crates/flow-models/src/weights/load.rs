//! Loading weights.

use super::report::SHOWN;
use super::{
    Duplicated, LoadReport, Misplaced, Misshapen, Missing, Source, StoredDtype, StoredTensor, Unknown,
    Unreadable, parse,
};
use crate::nearest::nearest;
use crate::{Architecture, ModelError, initialize_adapters};
use flow_core::device::ComputeDevice;
use flow_core::{ParamKind, ParamLayout, ParamSpec, Weights};
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
/// As [`load_into`].
pub fn load(
    model: &dyn Architecture,
    path: &Path,
    device: &ComputeDevice,
) -> Result<(Weights, Loaded), ModelError> {
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
/// unknown, missing, misshapen, duplicated, misplaced or unreadable. `weights` is unchanged then.
pub fn load_into(weights: &mut Weights, path: &Path) -> Result<Loaded, ModelError> {
    load_expected(weights, path, Expected::Everything)
}

/// What a file is to hold.
#[derive(Clone, Copy)]
pub(crate) enum Expected<'a> {
    /// A model.
    Everything,
    /// All adapters and nothing else; the function gives a tensor's name in the layout.
    Adapters(&'a dyn Fn(&str) -> &str),
}

impl Expected<'_> {
    fn name<'n>(&self, name: &'n str) -> &'n str {
        match self {
            Self::Everything => name,
            Self::Adapters(rename) => rename(name),
        }
    }

    /// Whether a tensor of the file may go to `spec`.
    fn admits(&self, spec: &ParamSpec) -> bool {
        matches!(self, Self::Everything) || spec.kind == ParamKind::Adapter
    }
}

/// Tensors by their name in the layout, each with all the files it is in.
type Found<'a> = BTreeMap<String, Vec<(&'a Path, StoredTensor<'a>)>>;

/// As [`load_into`], of what is `expected`.
pub(crate) fn load_expected(
    weights: &mut Weights,
    path: &Path,
    expected: Expected<'_>,
) -> Result<Loaded, ModelError> {
    let source = Source::open(path)?;
    let mut found = Found::new();
    let mut metadata = BTreeMap::new();
    for (file, bytes) in &source.files {
        let parsed = parse(bytes).map_err(|problem| ModelError::Format {
            path: file.clone(),
            problem,
        })?;
        for (key, value) in parsed.metadata {
            metadata.entry(key).or_insert(value);
        }
        for tensor in parsed.tensors {
            let copies = found.entry(expected.name(&tensor.name).to_owned()).or_default();
            copies.push((file, tensor));
        }
    }

    let layout = weights.layout().clone();
    let mut report = LoadReport {
        path: path.to_owned(),
        ..LoadReport::default()
    };
    compare_found(&mut report, &layout, &found, expected);
    let kept = compare_declared(&mut report, &layout, &found, expected);
    compare_places(&mut report, &found, &source.placed);
    if !report.is_clean() {
        suggest(&mut report);
        return Err(ModelError::Mismatch(Box::new(report)));
    }
    for (name, copies) in found {
        let [(_, tensor)] = copies.as_slice() else {
            unreachable!("duplicates were reported");
        };
        let values = tensor.to_f32().expect("unreadable precisions were reported");
        weights.set_host(layout.position(&name)?, values)?;
    }
    Ok(Loaded { metadata, kept })
}

/// Reports what is wrong with the tensors that are there.
fn compare_found(report: &mut LoadReport, layout: &ParamLayout, found: &Found<'_>, expected: Expected<'_>) {
    for (name, copies) in found {
        let (_, tensor) = &copies[0];
        if copies.len() > 1 {
            report.duplicated.push(Duplicated {
                name: name.clone(),
                files: copies.iter().map(|(file, _)| (*file).to_owned()).collect(),
            });
        }
        let spec = layout
            .position(name)
            .ok()
            .map(|position| &layout.specs()[position]);
        let Some(spec) = spec.filter(|spec| expected.admits(spec)) else {
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
fn compare_declared(
    report: &mut LoadReport,
    layout: &ParamLayout,
    found: &Found<'_>,
    expected: Expected<'_>,
) -> Vec<String> {
    let specs = layout.specs();
    let is_adapter = |spec: &ParamSpec| spec.kind == ParamKind::Adapter;
    let holds_adapters = specs
        .iter()
        .any(|spec| is_adapter(spec) && found.contains_key(&spec.name));
    let mut kept = Vec::new();
    for spec in specs.iter().filter(|spec| !found.contains_key(&spec.name)) {
        let may_stay = match (expected, spec.kind) {
            (Expected::Adapters(_), kind) => kind != ParamKind::Adapter,
            (Expected::Everything, ParamKind::Base) => false,
            (Expected::Everything, ParamKind::Buffer) => true,
            (Expected::Everything, ParamKind::Adapter) => !holds_adapters,
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
