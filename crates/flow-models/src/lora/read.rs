//! LoRA files of any of the usual programs, read for a model.

use super::original::{LayerNames, OriginalLayer};
use super::peft::{CONFIG_FILE, METADATA_KEY, PREFIX, PeftConfig, WEIGHTS_FILE};
use super::tensor_name::{Role, adapter_of, is_of_text_encoder, parse};
use super::{AdapterConfig, stem};
use crate::weights::{FileMap, Parsed, StoredTensor};
use crate::{Architecture, ModelError};
use flow_core::{ParamLayout, Weights};
use flow_registry::nearest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a list of problems that are shown.
const SHOWN: usize = 20;

/// The adapters of a file, by layer of a model.
#[derive(Clone, Debug)]
pub struct AdapterFile {
    path: PathBuf,
    /// In the model's order.
    layers: Vec<LayerAdapter>,
}

/// The adapter of one layer.
#[derive(Clone, Debug)]
struct LayerAdapter {
    layer: String,
    rank: usize,
    /// Scale times rank.
    alpha: f32,
    /// `A`, `[rank, in]`.
    down: Vec<f32>,
    /// `B`, `[out, rank]`.
    up: Vec<f32>,
}

impl LayerAdapter {
    /// The factor of `B · A`, computed as a layout computes it.
    fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// Tensors of one layer of the file.
#[derive(Default)]
struct Factors<'a> {
    down: Option<StoredTensor<'a>>,
    up: Option<StoredTensor<'a>>,
    alpha: Option<StoredTensor<'a>>,
}

impl AdapterFile {
    /// Reads a file, or the folder of one: of diffusers (`pytorch_lora_weights.safetensors`), `peft`, `ai-toolkit` and
    /// ComfyUI (`diffusion_model.`), `kohya-ss` (`lora_unet_`, with `.alpha`), under our layers' names or those of the
    /// program that published the model. Which of them it is, is told by the tensors.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Format`]; [`ModelError::AdapterFile`] with everything in it that is not a plain
    /// low-rank adapter of a linear layer of `model`, or has a scale, a rank or a value that cannot be.
    pub fn read(model: &dyn Architecture, path: &Path) -> Result<Self, ModelError> {
        let file = find(path)?;
        let bytes = FileMap::open(&file)?;
        let parsed = bytes.parse()?;
        let config = config_beside(&file, &parsed)?;
        let layout = model.layout();
        let names: Vec<String> = model
            .linears()
            .iter()
            .map(|linear| stem(&layout.specs()[linear.weight.index()].name).to_owned())
            .collect();
        let known = LayerNames::new(&names, model.original_layers());
        let mut problems = Vec::new();
        let grouped = group(parsed.tensors, &known, &mut problems);
        let mut layers = Vec::new();
        for (name, factors) in &grouped {
            let original = known.find(name).expect("only known layers are kept");
            match assemble(name, factors, original, layout, config.as_ref()) {
                Ok(adapters) => layers.extend(adapters),
                Err(problem) => problems.push(problem),
            }
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = layers.iter().find(|it| !seen.insert(it.layer.clone())) {
            problems.push(format!(
                "`{}` has several adapters, under different names",
                twice.layer
            ));
        }
        if !problems.is_empty() {
            return Err(refusal(&file, &problems));
        }
        let order: BTreeMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
        layers.sort_by_key(|it| order[it.layer.as_str()]);
        Ok(Self { path: file, layers })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rank, scale and layers that [`add_lora`](super::add_lora) gives a model for this file. Where adapters differ, the
    /// largest rank and the first scale; [`fill`](Self::fill) makes the others equal to what they were.
    pub fn config(&self) -> AdapterConfig {
        let rank = self.layers.iter().map(|it| it.rank).max().unwrap_or(1);
        let first = self.layers.first();
        AdapterConfig {
            rank,
            alpha: first.map_or(1.0, |it| {
                if it.rank == rank {
                    it.alpha
                } else {
                    it.scale() * rank as f32
                }
            }),
            targets: self.layers.iter().map(|it| it.layer.clone()).collect(),
        }
    }

    /// Whether all adapters have one rank and one scale.
    pub fn is_uniform(&self) -> bool {
        let first = self.layers.first().map(|it| (it.rank, it.alpha));
        self.layers.iter().all(|it| Some((it.rank, it.alpha)) == first)
    }

    /// Puts the adapters into `weights`. Adapters of the layout that the file lacks keep their values.
    ///
    /// # Errors
    /// [`ModelError::AdapterFile`] if the layout has none for a layer of the file, or, where all of the file's have one rank and
    /// one scale, if it has others. `weights` is unchanged then.
    pub fn fill(&self, weights: &mut Weights) -> Result<(), ModelError> {
        let layout = weights.layout().clone();
        let adapters: BTreeMap<&str, _> = layout
            .adapters()
            .map(|(weight, adapter)| (stem(&layout.specs()[weight.index()].name), adapter))
            .collect();
        self.check(&layout, &adapters)?;
        for it in &self.layers {
            let adapter = adapters[it.layer.as_str()];
            let rank = layout.specs()[adapter.down.index()].shape[0];
            let is_of_that_scale = it.scale() == adapter.scale;
            let factor = f64::from(it.scale()) / f64::from(adapter.scale);
            let scaled = |value: f32| match is_of_that_scale {
                true => value,
                false => (f64::from(value) * factor) as f32,
            };
            // Further rows of `A` stay as they are: their columns of `B` are zero.
            let mut down = weights.host(adapter.down.index());
            down[..it.down.len()].copy_from_slice(&it.down);
            let mut up = vec![0.0; it.up.len() / it.rank * rank];
            for (row, from) in up.chunks_mut(rank).zip(it.up.chunks(it.rank)) {
                for (value, from) in row.iter_mut().zip(from) {
                    *value = scaled(*from);
                }
            }
            weights.set_host(adapter.down.index(), down)?;
            weights.set_host(adapter.up.index(), up)?;
        }
        Ok(())
    }

    fn check(
        &self,
        layout: &ParamLayout,
        adapters: &BTreeMap<&str, flow_core::params::Adapter>,
    ) -> Result<(), ModelError> {
        let mut problems = Vec::new();
        let uniform = self.is_uniform();
        for it in &self.layers {
            let Some(adapter) = adapters.get(it.layer.as_str()) else {
                problems.push(format!(
                    "`{}` has no adapter in the model; add it to `lora.targets`",
                    it.layer
                ));
                continue;
            };
            let rank = layout.specs()[adapter.down.index()].shape[0];
            if rank < it.rank || (uniform && rank != it.rank) {
                problems.push(format!(
                    "`{}` has rank {}, the model's adapter {rank}; set `lora.rank = {}`",
                    it.layer, it.rank, it.rank
                ));
            } else if uniform && it.scale() != adapter.scale {
                let (theirs, ours) = (it.alpha, adapter.scale * rank as f32);
                problems.push(format!("it was made with alpha {theirs}, the model's adapters have alpha {ours}; set `lora.alpha = {theirs}`"));
                break;
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(refusal(&self.path, &problems))
        }
    }
}

/// Replaces the adapters of `weights`, of `model`'s layout and more, by those of `path`, as [`AdapterFile::read`] and
/// [`AdapterFile::fill`] do.
///
/// # Errors
/// Theirs. `weights` is unchanged then.
pub fn load_adapters(model: &dyn Architecture, weights: &mut Weights, path: &Path) -> Result<(), ModelError> {
    AdapterFile::read(model, path)?.fill(weights)
}

/// Whether `path` is a LoRA file, or a folder with one and no model: told by the names of tensors.
///
/// # Errors
/// As [`AdapterFile::read`], about the file as a whole.
pub fn is_adapter(path: &Path) -> Result<bool, ModelError> {
    if path.is_dir() {
        let files = safetensors_files(path)?;
        if files.is_empty() {
            return Ok(false);
        }
        for file in files {
            if !has_factors(&file)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if path.extension().is_none_or(|ending| ending != "safetensors") {
        return Ok(false);
    }
    has_factors(path)
}

fn has_factors(file: &Path) -> Result<bool, ModelError> {
    let bytes = FileMap::open(file)?;
    let parsed = bytes.parse()?;
    Ok(is_made_of_factors(&parsed))
}

/// Whether most of a file's tensors are those of adapters.
pub(crate) fn is_made_of_factors(parsed: &Parsed<'_>) -> bool {
    let of_adapters = parsed
        .tensors
        .iter()
        .filter(|it| parse(&it.name).is_some())
        .count();
    of_adapters > 0 && 2 * of_adapters > parsed.tensors.len()
}

/// The file that a path of an adapter stands for.
fn find(path: &Path) -> Result<PathBuf, ModelError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    for name in [WEIGHTS_FILE, super::write::DIFFUSERS_FILE] {
        let file = path.join(name);
        if file.is_file() {
            return Ok(file);
        }
    }
    let mut files = Vec::new();
    for file in safetensors_files(path)? {
        if has_factors(&file)? {
            files.push(file);
        }
    }
    match files.as_slice() {
        [file] => Ok(file.clone()),
        [] => Err(ModelError::AdapterFile(format!(
            "`{}` holds no LoRA file; name a folder with `{WEIGHTS_FILE}` or `{}`, or a LoRA file itself",
            path.display(),
            super::write::DIFFUSERS_FILE
        ))),
        several => {
            let names: Vec<String> = several
                .iter()
                .filter_map(|file| Some(format!("`{}`", file.file_name()?.to_string_lossy())))
                .collect();
            Err(ModelError::AdapterFile(format!(
                "`{}` holds several LoRA files; name one of {}",
                path.display(),
                names.join(", ")
            )))
        }
    }
}

fn safetensors_files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let io = |source| ModelError::Io {
        action: "list",
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let file = entry.map_err(io)?.path();
        let is_hidden = file
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if file.extension().is_some_and(|ending| ending == "safetensors") && !is_hidden && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The config of a file: in its metadata, or in `peft`'s file beside it, which belongs to `peft`'s own names alone.
fn config_beside(file: &Path, parsed: &Parsed<'_>) -> Result<Option<PeftConfig>, ModelError> {
    let read = |from: &Path, text: &str| {
        PeftConfig::parse(text).map_err(|problem| {
            ModelError::AdapterFile(format!("the adapter config in `{}` {problem}", from.display()))
        })
    };
    let is_peft = file.file_name().is_some_and(|name| name == WEIGHTS_FILE)
        || parsed.tensors.iter().any(|it| it.name.starts_with(PREFIX));
    let beside = file.with_file_name(CONFIG_FILE);
    if is_peft && beside.is_file() {
        let text = fs::read_to_string(&beside).map_err(|source| ModelError::Io {
            action: "read",
            path: beside.clone(),
            source,
        })?;
        return read(&beside, &text);
    }
    let config = match parsed.metadata.get(METADATA_KEY) {
        Some(text) => read(file, text)?,
        None => None,
    };
    let has_alpha = |it: &StoredTensor<'_>| it.name.ends_with(".alpha");
    if is_peft && config.is_none() && !parsed.tensors.iter().any(has_alpha) {
        return Err(ModelError::AdapterFile(format!(
            "`{}` has `peft`'s names, and there is no `{CONFIG_FILE}` beside it: its scale is not known. Put that file back; \
             `lora_alpha` and `r` are in it",
            file.display()
        )));
    }
    Ok(config)
}

/// Tensors by layer of the file, for layers that the model has.
fn group<'a>(
    tensors: Vec<StoredTensor<'a>>,
    known: &LayerNames,
    problems: &mut Vec<String>,
) -> BTreeMap<String, Factors<'a>> {
    let mut grouped: BTreeMap<String, Factors<'a>> = BTreeMap::new();
    let mut adapters = BTreeSet::new();
    let mut unknown = BTreeSet::new();
    let mut text_encoders = 0;
    for tensor in tensors {
        adapters.extend(adapter_of(&tensor.name).map(str::to_owned));
        if is_of_text_encoder(&tensor.name) {
            text_encoders += 1;
            continue;
        }
        let Some((layer, role)) = parse(&tensor.name) else {
            problems.push(format!("`{}` is no tensor of an adapter", tensor.name));
            continue;
        };
        if let Role::Other(what) = role {
            problems.push(format!("`{}` is {what}, which cannot be read here; merge it into the model in the program that made it", tensor.name));
            continue;
        }
        if known.find(layer).is_none() {
            unknown.insert(layer.to_owned());
            continue;
        }
        let factors = grouped.entry(layer.to_owned()).or_default();
        let place = match role {
            Role::Down => &mut factors.down,
            Role::Up => &mut factors.up,
            Role::Alpha | Role::Other(_) => &mut factors.alpha,
        };
        if place.is_some() {
            problems.push(format!(
                "`{layer}` has two tensors for one factor; `{}` is the second",
                tensor.name
            ));
        }
        *place = Some(tensor);
    }
    if adapters.len() > 1 {
        let names: Vec<_> = adapters.into_iter().collect();
        problems.push(format!(
            "it holds several adapters ({}); save them one by one",
            names.join(", ")
        ));
    }
    if text_encoders > 0 {
        problems.push(format!(
            "{text_encoders} of its tensors adapt a text encoder, which is no part of this model; encode the prompts with it, and save the \
             transformer's adapter by itself"
        ));
    }
    for (index, layer) in unknown.into_iter().enumerate() {
        // Comparing all with all would take minutes on a large model of another kind.
        let near = (index < SHOWN).then(|| nearest(&layer, known.dotted())).flatten();
        let near = near.map(|near| format!(" (it has `{near}`)")).unwrap_or_default();
        problems.push(format!("the model has no linear layer `{layer}`{near}"));
    }
    grouped
}

/// The adapters of our layers that those of one original layer amount to.
fn assemble(
    name: &str,
    factors: &Factors<'_>,
    original: &OriginalLayer,
    layout: &ParamLayout,
    config: Option<&PeftConfig>,
) -> Result<Vec<LayerAdapter>, String> {
    let (Some(down), Some(up)) = (&factors.down, &factors.up) else {
        let lost = if factors.down.is_none() {
            "A (down)"
        } else {
            "B (up)"
        };
        return Err(format!("`{name}` lacks its factor {lost}"));
    };
    let shape = |layer: &str| {
        let position = layout
            .position(&format!("{layer}.weight"))
            .map_err(|error| error.to_string())?;
        let shape = &layout.specs()[position].shape;
        Ok::<_, String>((shape[0], shape[1]))
    };
    let (mut output, mut input) = (0, 0);
    for part in &original.parts {
        let (rows, columns) = shape(&part.layer)?;
        (output, input) = (output + rows, columns);
    }
    let [rank, columns] = down.shape[..] else {
        return Err(format!(
            "`{}` has shape {:?}; an adapter's factor has two axes",
            down.name, down.shape
        ));
    };
    if rank == 0 || columns != input || up.shape != [output, rank] {
        return Err(format!(
            "`{name}` has factors of shapes {:?} and {:?}; for this model they are [rank, {input}] and [{output}, rank]",
            down.shape, up.shape
        ));
    }
    let down_values = finite(down)?;
    let up_values = finite(up)?;
    let alpha = alpha(name, factors, original, rank, config)?;
    let scale = alpha / rank as f32;
    let mut adapters = Vec::new();
    let mut row = 0;
    for part in &original.parts {
        let (rows, _) = shape(&part.layer)?;
        let mut up = up_values[row * rank..(row + rows) * rank].to_vec();
        row += rows;
        if part.has_swapped_halves {
            up.rotate_left(rows / 2 * rank);
        }
        // A part of a stack whose rows are zero was not adapted.
        if original.parts.len() > 1 && up.iter().all(|value| *value == 0.0) {
            continue;
        }
        let whole = rank;
        let (down, up, rank) = without_idle_ranks(&down_values, &up, rank, input, original.parts.len());
        adapters.push(LayerAdapter {
            layer: part.layer.clone(),
            rank,
            alpha: if rank == whole { alpha } else { scale * rank as f32 },
            down,
            up,
        });
    }
    Ok(adapters)
}

/// The factors of a part of a stack without the ranks that only other parts use: files of stacked layers are often
/// block-diagonal.
fn without_idle_ranks(
    down: &[f32],
    up: &[f32],
    rank: usize,
    input: usize,
    parts: usize,
) -> (Vec<f32>, Vec<f32>, usize) {
    let is_used = |index: &usize| parts == 1 || up.chunks(rank).any(|row| row[*index] != 0.0);
    let used: Vec<usize> = (0..rank).filter(is_used).collect();
    if used.len() == rank {
        return (down.to_vec(), up.to_vec(), rank);
    }
    let rows = used
        .iter()
        .flat_map(|index| &down[index * input..(index + 1) * input]);
    let columns = up
        .chunks(rank)
        .flat_map(|row| used.iter().map(|index| row[*index]));
    (rows.copied().collect(), columns.collect(), used.len())
}

/// Alpha: of the layer's own tensor, of the config, or the rank, which is what every reader takes without either.
fn alpha(
    name: &str,
    factors: &Factors<'_>,
    original: &OriginalLayer,
    rank: usize,
    config: Option<&PeftConfig>,
) -> Result<f32, String> {
    let alpha = match (&factors.alpha, config) {
        (Some(alpha), _) => alpha.scalar().ok_or_else(|| {
            format!(
                "`{}` is no single number ({:?} of shape {:?})",
                alpha.name, alpha.dtype, alpha.shape
            )
        })?,
        (None, Some(config)) => {
            let layer = &original.parts[0].layer;
            let said = config.rank(layer);
            if said != rank {
                return Err(format!(
                    "its config says rank {said} of `{layer}`, and its tensors have rank {rank}; one of the two is of another \
                     adapter"
                ));
            }
            config.scale(layer) * rank as f64
        }
        (None, None) => rank as f64,
    };
    let scale = alpha as f32 / rank as f32;
    if !(scale.is_finite() && scale > 0.0) {
        return Err(format!(
            "`{name}` has alpha {alpha}; it must be a finite number above 0, for alpha / rank is the factor of an adapter"
        ));
    }
    Ok(alpha as f32)
}

fn finite(tensor: &StoredTensor<'_>) -> Result<Vec<f32>, String> {
    let values = tensor.to_f32().ok_or_else(|| {
        format!(
            "`{}` is of precision {:?}; F32, BF16 and F16 are read",
            tensor.name, tensor.dtype
        )
    })?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!(
            "`{}` holds {} at {:?}",
            tensor.name,
            values[at],
            tensor.place(at)
        )),
        None => Ok(values),
    }
}

fn refusal(file: &Path, problems: &[String]) -> ModelError {
    let mut text = format!("`{}` cannot be an adapter of this model", file.display());
    match problems {
        [one] => text.push_str(&format!(": {one}")),
        several => {
            text.push_str(&format!(", {} problems:", several.len()));
            for problem in several.iter().take(SHOWN) {
                text.push_str(&format!("\n    {problem}"));
            }
            if several.len() > SHOWN {
                text.push_str(&format!("\n    and {} more", several.len() - SHOWN));
            }
        }
    }
    ModelError::AdapterFile(text)
}
