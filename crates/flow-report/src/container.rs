//! The checkpoint container: named byte sections and a JSON header in one file with a hash over all of it.
//!
//! Layout, all integers little-endian:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `FLOWCKPT` |
//! | 8 | 4 | container version, now 1 |
//! | 12 | 4 | reserved, 0 |
//! | 16 | 8 | length of the whole file |
//! | 24 | 8 | length of the header |
//! | 32 | header | JSON `{"step", "meta", "sections": [{"name", "offset", "bytes"}]}` |
//! | | | each section at a multiple of 64 from the start of the file, gaps filled with zeros |
//! | end − 32 | 32 | BLAKE3 of everything before |
//!
//! [`CheckpointReader::open`] checks magic, version, length and hash before it hands out a single byte.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::atomic::{Disk, Storage, atomic_write_in};
use crate::container_error::CheckpointError;
use crate::error::Result;

/// First bytes of every checkpoint.
pub const MAGIC: &[u8; 8] = b"FLOWCKPT";
/// The newest container version that this build reads, and the one it writes.
pub const VERSION: u32 = 1;

const FIXED_BYTES: u64 = 32;
const HASH_BYTES: u64 = 32;
const ALIGNMENT: u64 = 64;

/// One section as the header lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SectionEntry {
    /// The section's name.
    pub name: String,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    step: u64,
    meta: Value,
    sections: Vec<SectionEntry>,
}

type Streamed<'a> = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'a>;

enum Payload<'a> {
    Bytes(Cow<'a, [u8]>),
    Streamed { bytes: u64, write: Streamed<'a> },
}

impl Payload<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Streamed { bytes, .. } => *bytes,
        }
    }
}

/// Collects the sections of a checkpoint and writes them. Sections may borrow, so that weights are not copied.
pub struct CheckpointWriter<'a> {
    step: u64,
    meta: Value,
    sections: Vec<(String, Payload<'a>)>,
}

impl<'a> CheckpointWriter<'a> {
    /// A checkpoint of the state after `step` steps. `meta` is free JSON that the reader hands back.
    pub fn new(step: u64, meta: Value) -> Self {
        Self {
            step,
            meta,
            sections: Vec::new(),
        }
    }

    /// The step given to [`CheckpointWriter::new`].
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Adds a section, borrowed (`&[u8]`) or owned (`Vec<u8>`).
    ///
    /// # Errors
    /// If the name is empty or taken.
    pub fn section(
        &mut self,
        name: &str,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, CheckpointError> {
        self.add(name, Payload::Bytes(bytes.into()))
    }

    /// Adds a section of `bytes` bytes that `write` produces while the file is written. `write` may be called more
    /// than once, one time for each file, and must produce the same bytes each time.
    ///
    /// # Errors
    /// If the name is empty or taken.
    pub fn section_streamed(
        &mut self,
        name: &str,
        bytes: u64,
        write: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'a,
    ) -> Result<&mut Self, CheckpointError> {
        self.add(
            name,
            Payload::Streamed {
                bytes,
                write: Box::new(write),
            },
        )
    }

    fn add(&mut self, name: &str, payload: Payload<'a>) -> Result<&mut Self, CheckpointError> {
        let refuse = |problem: &str| CheckpointError::Section {
            name: name.into(),
            problem: problem.into(),
        };
        if name.is_empty() {
            return Err(refuse("needs a name"));
        }
        if self.sections.iter().any(|(taken, _)| taken == name) {
            return Err(refuse("is there twice"));
        }
        self.sections.push((name.into(), payload));
        Ok(self)
    }

    /// Writes the checkpoint atomically to `path`.
    ///
    /// # Errors
    /// As [`crate::atomic_write`]; the previous file at `path` stays as it is.
    pub fn write_to(&self, path: &Path) -> Result<WrittenCheckpoint> {
        self.write_in(&Disk, path)
    }

    /// [`CheckpointWriter::write_to`] on a given [`Storage`].
    ///
    /// # Errors
    /// As [`CheckpointWriter::write_to`].
    pub fn write_in(&self, storage: &dyn Storage, path: &Path) -> Result<WrittenCheckpoint> {
        let mut written = None;
        atomic_write_in(storage, path, "checkpoint", |out| {
            written = Some(self.stream(out)?);
            Ok(())
        })?;
        let (bytes, hash) = written.unwrap_or_default();
        Ok(WrittenCheckpoint {
            path: path.into(),
            step: self.step,
            bytes,
            blake3: hash,
        })
    }

    /// Writes the container into `out` and returns its length and hash.
    ///
    /// # Errors
    /// Errors of `out`, and `InvalidData` if a streamed section has another length than announced.
    pub fn stream(&self, out: &mut dyn Write) -> io::Result<(u64, String)> {
        let (header, entries) = self.header()?;
        let end = entries
            .last()
            .map_or(FIXED_BYTES + header.len() as u64, |last| last.offset + last.bytes);
        let mut out = HashingWriter {
            out,
            hasher: blake3::Hasher::new(),
            position: 0,
        };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&0_u32.to_le_bytes())?;
        out.write_all(&(end + HASH_BYTES).to_le_bytes())?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for ((name, payload), entry) in self.sections.iter().zip(&entries) {
            let gap = (entry.offset - out.position) as usize;
            out.write_all(&[0; ALIGNMENT as usize][..gap])?;
            match payload {
                Payload::Bytes(bytes) => out.write_all(bytes)?,
                Payload::Streamed { write, .. } => write(&mut out)?,
            }
            let found = out.position - entry.offset;
            if found != entry.bytes {
                let message = format!(
                    "section {name:?} wrote {found} bytes but announced {}",
                    entry.bytes
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        let hash = out.hasher.finalize();
        out.out.write_all(hash.as_bytes())?;
        Ok((end + HASH_BYTES, hash.to_hex().to_string()))
    }

    /// The header's bytes and the sections' places. Offsets have digits that count towards the header's own length,
    /// so they are laid out again until nothing moves.
    fn header(&self) -> io::Result<(Vec<u8>, Vec<SectionEntry>)> {
        let mut header_bytes = 0;
        loop {
            let mut position = FIXED_BYTES + header_bytes;
            let mut sections = Vec::with_capacity(self.sections.len());
            for (name, payload) in &self.sections {
                let offset = position.next_multiple_of(ALIGNMENT);
                position = offset + payload.bytes();
                sections.push(SectionEntry {
                    name: name.clone(),
                    offset,
                    bytes: payload.bytes(),
                });
            }
            let mut text = serde_json::to_vec(&Header {
                step: self.step,
                meta: self.meta.clone(),
                sections,
            })?;
            if text.len() as u64 <= header_bytes {
                // Spaces after the JSON keep the layout that the offsets were computed for.
                text.resize(header_bytes as usize, b' ');
                let header: Header = serde_json::from_slice(&text)?;
                return Ok((text, header.sections));
            }
            header_bytes = text.len() as u64;
        }
    }
}

struct HashingWriter<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
    position: u64,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.position += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A checkpoint that is on disk, whole and synced.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenCheckpoint {
    /// The file.
    pub path: PathBuf,
    /// The step it was written for.
    pub step: u64,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of its content without the trailing hash, in hex; equal states have equal hashes.
    pub blake3: String,
}

/// A verified checkpoint. Sections are read on demand from the file that was verified.
#[derive(Debug)]
pub struct CheckpointReader {
    path: PathBuf,
    file: File,
    step: u64,
    meta: Value,
    sections: Vec<SectionEntry>,
    blake3: String,
    bytes: u64,
}

impl CheckpointReader {
    /// Opens and verifies a checkpoint. Nothing of its content is used before length and hash are right.
    ///
    /// # Errors
    /// [`CheckpointError`]; no content, however broken, makes it panic.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let unreadable = |source| CheckpointError::Unreadable {
            path: path.into(),
            source,
        };
        let (mut file, header_bytes, expected) = open_fixed(path)?;

        let corrupt = |problem: String| CheckpointError::Corrupt {
            path: path.into(),
            problem,
        };
        file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let mut hasher = blake3::Hasher::new();
        let hashed = hasher
            .update_reader((&mut file).take(expected - HASH_BYTES))
            .map_err(unreadable)?
            .count();
        let mut stored = [0; HASH_BYTES as usize];
        file.read_exact(&mut stored).map_err(unreadable)?;
        let hash = hasher.finalize();
        // Comparing the count, too, catches a file that shrinks while it is read.
        if hash != blake3::Hash::from_bytes(stored) || hashed != expected - HASH_BYTES {
            return Err(corrupt(
                "its content does not have the hash that was written with it".into(),
            ));
        }

        let header = read_header(path, &mut file, header_bytes)?;
        let inside = FIXED_BYTES + header_bytes..=expected - HASH_BYTES;
        for SectionEntry { name, offset, bytes } in &header.sections {
            let end = offset.checked_add(*bytes);
            if !inside.contains(offset) || !end.is_some_and(|end| inside.contains(&end)) {
                return Err(corrupt(format!("section {name:?} lies outside of the file")));
            }
        }
        let blake3 = hash.to_hex().to_string();
        Ok(Self {
            path: path.into(),
            file,
            step: header.step,
            meta: header.meta,
            sections: header.sections,
            blake3,
            bytes: expected,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step whose state this is.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The free JSON given to the writer.
    pub fn meta(&self) -> &Value {
        &self.meta
    }

    /// The sections in the order they were added.
    pub fn sections(&self) -> &[SectionEntry] {
        &self.sections
    }

    /// BLAKE3 of the content in hex, the same as [`WrittenCheckpoint::blake3`].
    pub fn blake3(&self) -> &str {
        &self.blake3
    }

    /// Length of the file, header and hash included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `length` bytes of the file as it lies there, from `offset`: for whoever sends it to somebody that verifies it again.
    ///
    /// # Errors
    /// If they cannot be read, or the file has not so many.
    pub fn piece(&self, offset: u64, length: usize) -> Result<Vec<u8>, CheckpointError> {
        let unreadable = |source| CheckpointError::Unreadable {
            path: self.path.clone(),
            source,
        };
        let mut bytes = vec![0; length];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
        file.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    /// Reads a section into memory.
    ///
    /// # Errors
    /// An unknown name (the error lists the names there are), or an input error.
    pub fn section(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let entry = self
            .sections
            .iter()
            .find(|entry| entry.name == name)
            .ok_or_else(|| {
                let present = self.sections.iter().map(|entry| entry.name.clone()).collect();
                CheckpointError::MissingSection {
                    path: self.path.clone(),
                    name: name.into(),
                    present,
                }
            })?;
        let unreadable = |source| CheckpointError::Unreadable {
            path: self.path.clone(),
            source,
        };
        let mut bytes = vec![0; entry.bytes as usize];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(entry.offset)).map_err(unreadable)?;
        file.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }
}

/// Step and meta of the checkpoint at `path` by its header alone: length and header are checked, the content is not. For
/// looking through many files, or at one before the work of verifying it.
///
/// # Errors
/// As [`CheckpointReader::open`].
pub fn peek_checkpoint(path: &Path) -> Result<(u64, Value), CheckpointError> {
    let (mut file, header_bytes, _) = open_fixed(path)?;
    let header = read_header(path, &mut file, header_bytes)?;
    Ok((header.step, header.meta))
}

/// Opens a file and checks its first bytes; returns the lengths of the header and of the file.
fn open_fixed(path: &Path) -> Result<(File, u64, u64), CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable {
        path: path.into(),
        source,
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        let looks_like = "it is not a regular file".into();
        return Err(CheckpointError::Foreign {
            path: path.into(),
            looks_like,
        });
    }
    let mut fixed = Vec::with_capacity(FIXED_BYTES as usize);
    (&mut file)
        .take(FIXED_BYTES)
        .read_to_end(&mut fixed)
        .map_err(unreadable)?;
    let (header_bytes, expected) = check_fixed(path, &fixed, metadata.len())?;
    Ok((file, header_bytes, expected))
}

fn read_header(path: &Path, file: &mut File, header_bytes: u64) -> Result<Header, CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable {
        path: path.into(),
        source,
    };
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(FIXED_BYTES)).map_err(unreadable)?;
    // As long as the file at most, so no length in it makes this ask for memory that is not there.
    (&*file)
        .take(header_bytes)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    serde_json::from_slice(&text).map_err(|error| CheckpointError::Corrupt {
        path: path.into(),
        problem: format!("its header is not readable: {error}"),
    })
}

/// Checks magic, version and length; returns the lengths of the header and of the file.
fn check_fixed(path: &Path, fixed: &[u8], found: u64) -> Result<(u64, u64), CheckpointError> {
    let length = |problem, expected| CheckpointError::Length {
        path: path.into(),
        problem,
        found,
        expected,
    };
    let magic = &fixed[..fixed.len().min(MAGIC.len())];
    if magic.is_empty() || !MAGIC.starts_with(magic) {
        return Err(CheckpointError::Foreign {
            path: path.into(),
            looks_like: looks_like(fixed),
        });
    }
    if fixed.len() < FIXED_BYTES as usize {
        return Err(length("truncated", FIXED_BYTES + HASH_BYTES));
    }
    let number = |at: usize| {
        fixed[at..at + 8]
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
    };
    let version = (number(8) & 0xFFFF_FFFF) as u32;
    if version > VERSION {
        return Err(CheckpointError::Newer {
            path: path.into(),
            found: version,
        });
    }
    let (expected, header_bytes) = (number(16), number(24));
    let consistent = version == VERSION
        && expected
            .checked_sub(FIXED_BYTES + HASH_BYTES)
            .is_some_and(|content| header_bytes <= content);
    if !consistent {
        let problem = "its first 32 bytes contradict each other".into();
        return Err(CheckpointError::Corrupt {
            path: path.into(),
            problem,
        });
    }
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => Err(length("truncated", expected)),
        std::cmp::Ordering::Greater => Err(length("too long", expected)),
        std::cmp::Ordering::Equal => Ok((header_bytes, expected)),
    }
}

/// A guess at the format of a foreign file, from its first bytes.
fn looks_like(start: &[u8]) -> String {
    let known: [(&[u8], &str); 4] = [
        (b"PK\x03\x04", "it looks like a zip archive, as PyTorch writes"),
        (b"\x80\x02", "it looks like a Python pickle"),
        (b"\x89PNG", "it is a PNG image"),
        (b"{", "it looks like JSON"),
    ];
    if start.is_empty() {
        return "it is empty".into();
    }
    if start.len() > 9 && start[8] == b'{' {
        return "it looks like a safetensors file (weights, which `--resume` cannot go on from)".into();
    }
    let found = known.iter().find(|(magic, _)| start.starts_with(magic));
    found.map_or("its first bytes are not `FLOWCKPT`".into(), |(_, text)| {
        (*text).into()
    })
}
