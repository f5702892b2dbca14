//! Loading: every weight by name and shape, all that does not fit reported at once, and nothing read that is not needed.

use super::Role;
use super::files::weights_of;
use crate::{EncoderError, TextEncoder};
use burn::tensor::FloatDType;
use bytes::Bytes;
use flow_core::device::ComputeDevice;
use flow_core::tensors::cast;
use flow_core::{ParamLayout, ParamSpec, RawTensor, Weights};
use flow_models::ModelError;
use flow_models::weights::{
    Duplicated, LoadReport, Misplaced, Misshapen, Missing, NotFinite, Source, StoredDtype, StoredTensor,
    Unknown, Unreadable,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What loading found besides the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Tensors of the files that are no part of the encoder and were not looked at, sorted.
    pub ignored: Vec<String>,
}

/// Loads the weights of `encoder` from `folder`, one file or shards, in f32, bf16 or f16, in `variant` if one is named; or from a
/// file or an index of shards. Values are those of f32, or of the type that `device` computes in, rounded from f32; a device that
/// computes in bf16 never holds them in f32. One tensor at a time is on the host.
///
/// # Errors
/// [`EncoderError::Folder`] for a folder that is not whole; [`EncoderError::Model`] for files that cannot be read, are damaged or
/// stand for others (Git LFS), with everything that is missing, unknown, misshapen, in several files, or of another precision.
pub fn load(
    encoder: &dyn TextEncoder,
    folder: &Path,
    variant: Option<&str>,
    device: &ComputeDevice,
) -> Result<(Weights, Loaded), EncoderError> {
    let source = open(folder, variant)?;
    let mut tensors = Vec::new();
    for file in &source.files {
        let parsed = file.parse()?.tensors.into_iter();
        tensors.extend(parsed.map(|tensor| (file.path.as_path(), tensor)));
    }
    let wanted = Wanted {
        layout: encoder.layout(),
        role: &|name| encoder.role(name),
    };
    load_tensors(wanted, folder, tensors, &source.placed, device)
}

/// The weight files of `folder`, one file or shards, in `variant` if one is named; or a file or an index of shards.
///
/// # Errors
/// As [`load`], which opens them so.
pub fn open(folder: &Path, variant: Option<&str>) -> Result<Source, EncoderError> {
    Ok(Source::open(&weights_of(folder, variant)?)?)
}

/// What is wanted of files: the weights of a layout, which may have other names there.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The weights.
    pub layout: &'a Arc<ParamLayout>,
    /// What a tensor of this name is to them.
    pub role: &'a dyn Fn(&str) -> Role,
}

/// As [`load`], of `tensors`, each with the file it is in, of which `placed` says in which one the index has it. `from` is where they
/// come from, for errors.
///
/// # Errors
/// As [`load`].
pub fn load_tensors<'t>(
    wanted: Wanted<'_>,
    from: &Path,
    tensors: Vec<(&'t Path, StoredTensor<'t>)>,
    placed: &BTreeMap<String, PathBuf>,
    device: &ComputeDevice,
) -> Result<(Weights, Loaded), EncoderError> {
    let layout = wanted.layout;
    let mut found = Found::default();
    for (file, tensor) in tensors {
        found.add(wanted, file, tensor);
    }
    found.settle();
    let report = found.report(from, layout, placed);
    if !report.is_clean() {
        return Err(ModelError::Mismatch(Box::new(report)).into());
    }
    let value = |index: usize, spec: &ParamSpec| found.value(from, index, spec, device);
    let weights = Weights::from_values(layout.clone(), device, value)?;
    // A device keeps what it took for f32 values that were rounded.
    device.release_unused();
    let mut ignored = found.ignored;
    ignored.sort();
    Ok((weights, Loaded { ignored }))
}

type Copies<'a> = Vec<(&'a Path, StoredTensor<'a>)>;

/// Tensors of files by what they are to the encoder.
#[derive(Default)]
struct Found<'a> {
    /// By position in the layout, each with all the files it is in.
    weights: BTreeMap<usize, Copies<'a>>,
    steads: BTreeMap<usize, Copies<'a>>,
    ignored: Vec<String>,
    unknown: Vec<String>,
}

impl<'a> Found<'a> {
    fn add(&mut self, wanted: Wanted<'_>, file: &'a Path, tensor: StoredTensor<'a>) {
        let (name, among) = match (wanted.role)(&tensor.name) {
            Role::Ignored => return self.ignored.push(tensor.name),
            Role::Weight(name) => (name, &mut self.weights),
            Role::Stead(name) => (name, &mut self.steads),
        };
        match wanted.layout.find(&name) {
            Some(index) => among.entry(index).or_default().push((file, tensor)),
            None => self.unknown.push(tensor.name),
        }
    }

    /// Takes what stands in a weight's stead where the weight is not there.
    fn settle(&mut self) {
        for (index, copies) in std::mem::take(&mut self.steads) {
            match self.weights.entry(index) {
                Entry::Vacant(free) => {
                    free.insert(copies);
                }
                Entry::Occupied(_) => {
                    let names = copies.into_iter().map(|(_, tensor)| tensor.name);
                    self.ignored.extend(names);
                }
            }
        }
    }

    /// Everything that does not fit.
    fn report(&self, folder: &Path, layout: &ParamLayout, placed: &BTreeMap<String, PathBuf>) -> LoadReport {
        let mut report = LoadReport {
            path: folder.to_owned(),
            ..LoadReport::default()
        };
        let unknown = || self.unknown.iter().map(String::as_str);
        report.unknown = (self.unknown.iter())
            .map(|name| Unknown {
                name: name.clone(),
                nearest: nearest(name, layout.specs().iter().map(|spec| spec.name.as_str())),
            })
            .collect();
        for (index, spec) in layout.specs().iter().enumerate() {
            let Some(copies) = self.weights.get(&index) else {
                report.missing.push(Missing {
                    name: spec.name.clone(),
                    nearest: nearest(&spec.name, unknown()),
                });
                continue;
            };
            let (_, tensor) = &copies[0];
            if copies.len() > 1 {
                report.duplicated.push(Duplicated {
                    name: tensor.name.clone(),
                    files: copies.iter().map(|(file, _)| (*file).to_owned()).collect(),
                });
            }
            if tensor.shape != spec.shape {
                report.misshapen.push(Misshapen {
                    name: tensor.name.clone(),
                    expected: spec.shape.clone(),
                    found: tensor.shape.clone(),
                });
            }
            if !is_readable(tensor) {
                report.unreadable.push(Unreadable {
                    name: tensor.name.clone(),
                    dtype: format!("{:?}", tensor.dtype),
                });
            }
            if let Some(elsewhere) = placed.get(&tensor.name).filter(|place| **place != copies[0].0) {
                report.misplaced.push(Misplaced {
                    name: tensor.name.clone(),
                    file: elsewhere.clone(),
                });
            }
        }
        report.hint = hint(&report);
        report
    }

    /// The value of the weight at `index`, on `device`, in memory that lasts.
    fn value(
        &self,
        folder: &Path,
        index: usize,
        spec: &ParamSpec,
        device: &ComputeDevice,
    ) -> Result<RawTensor, EncoderError> {
        let copies = self.weights.get(&index).and_then(|copies| copies.first());
        let found = copies.and_then(|(_, tensor)| Some((tensor, StoredDtype::of(tensor.dtype)?)));
        let Some((tensor, stored)) = found else {
            unreachable!("what is missing and what cannot be read were reported")
        };
        if let Some((first, count)) = stored.not_finite(tensor.bytes) {
            let width = stored.bytes();
            let report = LoadReport {
                path: folder.to_owned(),
                not_finite: vec![NotFinite {
                    name: tensor.name.clone(),
                    value: stored.decode(&tensor.bytes[first * width..(first + 1) * width])[0],
                    place: tensor.place(first),
                    count,
                }],
                ..LoadReport::default()
            };
            return Err(ModelError::Mismatch(Box::new(report)).into());
        }
        let lasting = |make: &(dyn Fn() -> Option<RawTensor> + Sync)| device.with_persistent_allocation(make);
        let narrow = match (device.compute_dtype(), stored) {
            // To the device as it is in the file, or rounded on the host: a device that computes in bf16 never has it in f32.
            (Some(FloatDType::BF16), StoredDtype::Bf16) => {
                lasting(&|| device.plain_bf16(Bytes::copy_from_slice(tensor.bytes), &spec.shape))
            }
            (Some(FloatDType::BF16), _) => {
                let values = stored.decode(tensor.bytes);
                lasting(&|| device.plain_rounded_bf16(&values, &spec.shape))
            }
            _ => None,
        };
        if let Some(value) = narrow {
            return Ok(value);
        }
        let values = stored.decode(tensor.bytes);
        Ok(match device.compute_dtype() {
            Some(dtype) => {
                let value = device.plain(values, &spec.shape);
                device.with_persistent_allocation(|| cast(&value, dtype))
            }
            None => device.with_persistent_allocation(|| device.plain(values, &spec.shape)),
        })
    }
}

/// Least likeness of a weight's name: those of one file are alike by nature.
const ALIKE: f64 = 0.7;

/// The candidate that is most like `name`, if any is like it at all.
fn nearest<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<String> {
    flow_registry::nearest_within(ALIKE, name, candidates).map(str::to_owned)
}

fn is_readable(tensor: &StoredTensor<'_>) -> bool {
    let of_one = StoredTensor {
        bytes: &[],
        ..tensor.clone()
    };
    of_one.to_f32().is_some()
}

/// What the problems have in common, and what to do about it.
fn hint(report: &LoadReport) -> Option<String> {
    let is_narrow = |it: &Unreadable| {
        it.dtype.starts_with("F8") || it.dtype.starts_with("F4") || it.dtype.starts_with("F6")
    };
    if report.unreadable.iter().any(is_narrow) {
        return Some(
            "These are weights in 8 bits or fewer, without the scales that belong to them: take the folder of the bf16 or f16 weights"
                .into(),
        );
    }
    if !report.missing.is_empty() && !report.unknown.is_empty() {
        return Some(
            "These are weights of another class than the folder's `config.json` says; both must be of one `save_pretrained`".into(),
        );
    }
    None
}
