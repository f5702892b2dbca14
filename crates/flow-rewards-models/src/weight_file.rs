//! Weights in whatever form a reward was published: safetensors, or a file of `torch.save`.

use crate::pickle::PickledWeights;
use crate::problem::BuildError;
use flow_models::weights::{FileMap, Source, StoredTensor};
use flow_registry::Refusal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Opened weights.
#[derive(Debug)]
pub enum WeightFile {
    /// A file of safetensors, or shards.
    Safetensors(Source),
    /// A file of `torch.save`.
    Pickled(PickledWeights),
}

/// A tensor with the file it is in.
pub type Placed<'t> = (&'t Path, StoredTensor<'t>);

impl WeightFile {
    /// Opens a file, or a folder as transformers saves it.
    ///
    /// # Errors
    /// What is at the path instead, and how to mend it.
    pub fn open(path: &Path) -> Result<Self, BuildError> {
        if !path.exists() {
            return Err(absent(path));
        }
        if path.is_dir() {
            return Ok(Self::Safetensors(flow_text_encoder::weights::open(path, None)?));
        }
        let file = FileMap::open(path)?;
        if PickledWeights::is_one(&file) {
            return Ok(Self::Pickled(PickledWeights::read(file)?));
        }
        if let Some((what, help)) = foreign(&file.bytes) {
            return Err(Refusal::new(format!("`{}` {what}", path.display()), help).into());
        }
        drop(file);
        Ok(Self::Safetensors(Source::open(path)?))
    }

    /// All tensors.
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn tensors(&self) -> Result<Vec<Placed<'_>>, BuildError> {
        match self {
            Self::Pickled(file) => Ok(file.tensors().map(|tensor| (file.path(), tensor)).collect()),
            Self::Safetensors(source) => {
                let mut tensors = Vec::new();
                for file in &source.files {
                    let parsed = file.parse()?.tensors.into_iter();
                    tensors.extend(parsed.map(|tensor| (file.path.as_path(), tensor)));
                }
                Ok(tensors)
            }
        }
    }

    /// Values of the tensors whose names begin with one of `prefixes`, as the headers say.
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn count_values(&self, prefixes: &[&str]) -> Result<usize, BuildError> {
        let is_counted =
            |tensor: &StoredTensor<'_>| prefixes.iter().any(|prefix| tensor.name.starts_with(prefix));
        let tensors = self.tensors()?.into_iter().map(|(_, tensor)| tensor);
        let counted = tensors.filter(is_counted);
        Ok(counted.map(|tensor| tensor.shape.iter().product::<usize>()).sum())
    }

    /// Which file an index says that a tensor is in.
    pub fn placed(&self) -> BTreeMap<String, PathBuf> {
        match self {
            Self::Safetensors(source) => source.placed.clone(),
            Self::Pickled(_) => BTreeMap::new(),
        }
    }
}

/// That nothing is at `path`.
pub fn absent(path: &Path) -> BuildError {
    let problem = format!(
        "there is nothing at `{}`. Nothing is downloaded here: `flow-train fetch NAME` makes a folder of a repository of the Hugging \
         Face hub",
        path.display()
    );
    Refusal::new(problem, "name that folder").into()
}

/// What a file is, as the rest of a sentence, that begins with `bytes` and holds no weights; and what to do.
fn foreign(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let begins = |with: &[u8]| {
        bytes
            .get(..with.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(with))
    };
    if begins(b"version https://git-lfs") {
        return Some((
            "is a pointer of Git LFS, not the file that it stands for",
            "run `git lfs pull` in its folder, or fetch the file again",
        ));
    }
    if begins(b"<!doctype") || begins(b"<html") {
        return Some((
            "is a web page, as comes where a repository asks for its licence to be accepted first",
            "accept it in a browser, log in, and fetch the file again",
        ));
    }
    if begins(b"\x80\x02") {
        return Some((
            "is a file of `torch.save` as it was before PyTorch 1.6, which is not read here",
            "save it again, in Python: `torch.save(torch.load(FILE, weights_only=True), FILE)`",
        ));
    }
    None
}
