//! The tensors of a model, opened and not read: names, shapes and precisions at once, values when they are asked for.

use crate::names::list;
use crate::safetensors::{Dtype, StoredDtype, StoredTensor, parse};
use crate::{FolderError, WeightFiles};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Names shown in a message.
const SHOWN: usize = 12;

/// Mapped weight files and where each tensor lies in them.
#[derive(Debug)]
pub struct Tensors {
    folder: PathBuf,
    files: Vec<Mapped>,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    bytes: Mmap,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// What is known of a tensor before its values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its precision in the file.
    pub dtype: Dtype,
    /// Its shape, outermost axis first.
    pub shape: &'a [usize],
    /// Its size in the file.
    pub bytes: usize,
    /// The file it is in.
    pub file: &'a Path,
}

impl Tensors {
    /// Maps the files and reads their headers; no value is touched.
    ///
    /// # Errors
    /// [`FolderError::Io`]; [`FolderError::File`] for a file that is damaged, cut off, a pointer of Git LFS or no safetensors
    /// file, and for weights in 8 bits or other precisions that are not read; [`FolderError::Folder`] for tensors that are in
    /// several files, or not in the one in which the index has them.
    pub fn open(files: &WeightFiles) -> Result<Self, FolderError> {
        let mut tensors = Self {
            folder: files.folder.clone(),
            files: Vec::new(),
            entries: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        let mut twice = Vec::new();
        for path in &files.files {
            twice.extend(tensors.add(path)?);
        }
        let refused = |problem| {
            Err(FolderError::Folder {
                folder: files.folder.clone(),
                problem,
            })
        };
        if !twice.is_empty() {
            return refused(format!(
                "{} tensor(s) are in several of its weight files: {}; remove the files that are left over from another download",
                twice.len(),
                list(&twice, SHOWN)
            ));
        }
        let misplaced: Vec<&String> = files
            .placed
            .iter()
            .filter(|(name, file)| {
                let entry = tensors.entries.get(*name);
                entry.is_none_or(|entry| tensors.files[entry.file].path != **file)
            })
            .map(|(name, _)| name)
            .collect();
        if !misplaced.is_empty() {
            return refused(format!(
                "{} tensor(s) are not in the file in which the index has them: {}; index and shards are of different downloads, so \
                 download the folder again",
                misplaced.len(),
                list(&misplaced, SHOWN)
            ));
        }
        Ok(tensors)
    }

    /// Maps one more file and gives the names that were there before.
    fn add(&mut self, path: &Path) -> Result<Vec<String>, FolderError> {
        let io = |action| {
            move |source| FolderError::Io {
                action,
                path: path.to_owned(),
                source,
            }
        };
        let file = File::open(path).map_err(io("open"))?;
        // SAFETY: the map is only read. Another program that shortens the file meanwhile would end this process with a
        // bus error; our own writers never change a file in place, they rename a new one over it.
        let bytes = unsafe { Mmap::map(&file) }.map_err(io("map"))?;
        let refused = |problem| FolderError::File {
            path: path.to_owned(),
            problem,
        };
        let parsed = parse(&bytes).map_err(refused)?;
        let low: Vec<&StoredTensor<'_>> = parsed.tensors.iter().filter(|it| !is_read(it.dtype)).collect();
        if let Some(first) = low.first() {
            let names: Vec<&str> = low.iter().map(|it| it.name.as_str()).collect();
            return Err(refused(format!(
                "{} of {} tensors are {}: {}. {}",
                low.len(),
                parsed.tensors.len(),
                first.dtype,
                list(&names, 4),
                why_not(first.dtype)
            )));
        }
        let start = bytes.as_ptr() as usize;
        let mut twice = Vec::new();
        for tensor in parsed.tensors {
            let offset = tensor.bytes.as_ptr() as usize - start;
            let entry = Entry {
                file: self.files.len(),
                dtype: tensor.dtype,
                shape: tensor.shape,
                range: offset..offset + tensor.bytes.len(),
            };
            if self.entries.insert(tensor.name.clone(), entry).is_some() {
                twice.push(tensor.name);
            }
        }
        for (key, value) in parsed.metadata {
            self.metadata.entry(key).or_insert(value);
        }
        self.files.push(Mapped {
            path: path.to_owned(),
            bytes,
        });
        Ok(twice)
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Free text of the files; of several shards, the first file's word counts.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All tensors, sorted by name.
    pub fn infos(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.entries.iter().map(|(name, entry)| self.info_of(name, entry))
    }

    /// One tensor.
    pub fn info(&self, name: &str) -> Option<TensorInfo<'_>> {
        let (name, entry) = self.entries.get_key_value(name)?;
        Some(self.info_of(name, entry))
    }

    fn info_of<'a>(&'a self, name: &'a str, entry: &'a Entry) -> TensorInfo<'a> {
        TensorInfo {
            name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: entry.range.len(),
            file: &self.files[entry.file].path,
        }
    }

    /// The stored values of a tensor, still on the disk until they are looked at.
    ///
    /// # Errors
    /// [`FolderError::Tensor`] if there is no such tensor, with the nearest name.
    pub fn tensor(&self, name: &str) -> Result<StoredTensor<'_>, FolderError> {
        let entry = self.entries.get(name).ok_or_else(|| {
            let hint = flow_registry::nearest(name, self.entries.keys().map(String::as_str))
                .map(|near| format!("; the nearest name is `{near}`"))
                .unwrap_or_default();
            FolderError::Tensor {
                name: name.to_owned(),
                path: self.folder.clone(),
                problem: format!("there is none among {}{hint}", self.entries.len()),
            }
        })?;
        Ok(StoredTensor {
            name: name.to_owned(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            bytes: &self.files[entry.file].bytes[entry.range.clone()],
        })
    }

    /// The values of a tensor of `shape` as f32, in which every value of the three precisions is exact.
    ///
    /// # Errors
    /// [`FolderError::Tensor`] if there is no such tensor, it has another shape, or holds no real numbers.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, FolderError> {
        let tensor = self.tensor(name)?;
        let refused = |problem| FolderError::Tensor {
            name: name.to_owned(),
            path: self.entries.get(name).map_or_else(
                || self.folder.clone(),
                |entry| self.files[entry.file].path.clone(),
            ),
            problem,
        };
        if tensor.shape != shape {
            return Err(refused(format!(
                "its shape is {:?}, and {shape:?} is needed; weights and config are of different models",
                tensor.shape
            )));
        }
        let dtype = tensor.dtype;
        tensor
            .to_f32()
            .ok_or_else(|| refused(format!("it is {dtype}; weights are F32, BF16 or F16")))
    }

    /// How many numbers the tensors hold, those with real numbers.
    pub fn parameters(&self) -> usize {
        let entries = self
            .entries
            .values()
            .filter(|it| StoredDtype::of(it.dtype).is_some());
        entries.map(|entry| entry.shape.iter().product::<usize>()).sum()
    }

    /// Bytes of all tensors in the files.
    pub fn bytes(&self) -> usize {
        self.entries.values().map(|entry| entry.range.len()).sum()
    }

    /// The precision of most numbers.
    pub fn usual_dtype(&self) -> Option<StoredDtype> {
        let mut counts = [
            (StoredDtype::F32, 0),
            (StoredDtype::Bf16, 0),
            (StoredDtype::F16, 0),
        ];
        for entry in self.entries.values() {
            let numbers: usize = entry.shape.iter().product();
            let dtype = StoredDtype::of(entry.dtype);
            if let Some((_, count)) = counts.iter_mut().find(|(it, _)| Some(*it) == dtype) {
                *count += numbers;
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > 0).map(|(dtype, _)| dtype)
    }
}

/// Precisions of weights, and of the counters and positions that some files have beside them.
fn is_read(dtype: Dtype) -> bool {
    StoredDtype::of(dtype).is_some() || matches!(dtype, Dtype::I64 | Dtype::I32 | Dtype::BOOL)
}

/// Why weights of a precision are not read, and what to do.
fn why_not(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => {
            "Weights are read as F32, BF16 or F16: in Python, `model.float().save_pretrained(FOLDER)`"
        }
        Dtype::U8 | Dtype::I8 => {
            "The weights are quantised, for bitsandbytes or the like, and cannot be trained as they are: download the model's own \
             weights, in BF16 or F16"
        }
        _ => {
            "The weights are of few bits and would need scales that the format does not define, so they are not read: download the \
             model's own weights, in BF16 or F16"
        }
    }
}
