//! Writing a file: the same values give the same bytes, and a file is there whole or not at all.

use super::StoredDtype;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A tensor that is to be written: its name, its shape, and a key under which its values are found.
pub type Named = (String, Vec<usize>, usize);

/// A file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("cannot write `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A value that the precision cannot hold.
    #[error(
        "weight `{name}` holds {value:e}, beyond the range of {dtype} (±{limit:e}); store it as f32 or bf16"
    )]
    OutOfRange {
        /// The tensor.
        name: String,
        /// Its first value out of range.
        value: f32,
        /// The precision.
        dtype: &'static str,
        /// The largest value it holds.
        limit: f32,
    },
}

/// Writes tensors to the safetensors file `path` in precision `dtype` (rounded to nearest, ties to even), sorted by name.
///
/// `metadata` is free text; `format` is set to `pt`, which loaders in Python ask for, unless it is given.
///
/// # Errors
/// [`WriteError`]. A file that was there before is unharmed then.
pub fn write(
    mut tensors: Vec<Named>,
    values: &dyn Fn(usize) -> Vec<f32>,
    path: &Path,
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    tensors.sort();
    let header = header(&tensors, dtype, metadata);
    let mut out_of_range = None;
    let written = replace(path, &mut |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (name, _, key) in &tensors {
            let bytes = dtype.encode(&values(*key)).map_err(|value| {
                out_of_range = Some((name.clone(), value));
                io::Error::from(io::ErrorKind::InvalidData)
            })?;
            file.write_all(&bytes)?;
        }
        Ok(())
    });
    written.map_err(|source| match out_of_range {
        Some((name, value)) => WriteError::OutOfRange {
            name,
            value,
            dtype: dtype.name(),
            limit: dtype.limit(),
        },
        None => WriteError::Io {
            path: path.to_owned(),
            source,
        },
    })
}

/// The JSON header, padded to 8 bytes as the format asks. Written here because the `safetensors` crate keeps metadata
/// in a hash map, whose order changes from run to run.
fn header(tensors: &[Named], dtype: StoredDtype, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let mut metadata = metadata.clone();
    metadata.entry("format".into()).or_insert_with(|| "pt".into());
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!(metadata));
    let mut start = 0;
    for (name, shape, _) in tensors {
        let end = start + shape.iter().product::<usize>() * dtype.bytes();
        header.insert(
            name.clone(),
            json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [start, end] }),
        );
        start = end;
    }
    let mut bytes = Value::Object(header).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

/// Writes a temporary file beside `path`, syncs it, and renames it to `path`.
///
/// # Errors
/// The system's, or what `write` gives. A file that was there before is unharmed then.
pub fn replace(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut temporary: OsString = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let written = (|| {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
        write(&mut file)?;
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()?;
        fs::rename(&temporary, path)?;
        sync_directory(path)
    })();
    if written.is_err() {
        // What failed is the error to tell; a leftover is only untidy.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes the rename last through a power cut, where directories can be synced.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
