//! Hashes that the hub gives of a file: SHA-256 of a file of Git LFS, Git's SHA-1 of any other.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fmt;

/// The hash of a file's content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileHash {
    /// SHA-256 of the bytes, `lfs.oid` of the hub.
    Sha256([u8; 32]),
    /// SHA-1 of `blob SIZE`, a zero byte and the bytes: the name of a blob in Git, `oid` of the hub.
    GitBlob([u8; 20]),
}

impl FileHash {
    /// A SHA-256 of 64 hexadecimal digits.
    pub fn sha256(hex: &str) -> Option<Self> {
        bytes(hex).map(Self::Sha256)
    }

    /// The name of a blob in Git, 40 hexadecimal digits.
    pub fn git_blob(hex: &str) -> Option<Self> {
        bytes(hex).map(Self::GitBlob)
    }

    /// The name of the algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "Git blob SHA-1",
        }
    }

    /// Begins to hash a file of `size_bytes` bytes by the algorithm of this hash.
    pub(crate) fn hasher(&self, size_bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {size_bytes}\0"))),
        }
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Self::Sha256(bytes) => bytes,
            Self::GitBlob(bytes) => bytes,
        };
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.algorithm())
    }
}

/// A hash that is being computed.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> FileHash {
        match self {
            Self::Sha256(hasher) => FileHash::Sha256(hasher.finalize().into()),
            Self::GitBlob(hasher) => FileHash::GitBlob(hasher.finalize().into()),
        }
    }
}

fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let digits = hex.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hash: FileHash, content: &[u8]) -> FileHash {
        let mut hasher = hash.hasher(content.len() as u64);
        let (front, back) = content.split_at(content.len() / 2);
        hasher.update(front);
        hasher.update(back);
        hasher.finish()
    }

    #[test]
    fn a_blob_has_the_name_that_git_gives_it() {
        // `printf 'hello\n' | git hash-object --stdin`, and the same of nothing.
        let hello = FileHash::git_blob("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(of(hello, b"hello\n"), hello);
        let nothing = FileHash::git_blob("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391").unwrap();
        assert_eq!(of(nothing, b""), nothing);
    }

    #[test]
    fn a_file_of_lfs_has_the_sha_256_of_its_bytes() {
        // FIPS 180-2, example B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hash = FileHash::sha256(abc).unwrap();
        assert_eq!(of(hash, b"abc"), hash);
        assert_eq!(hash.to_string(), abc);
    }

    #[test]
    fn what_is_no_hash_is_none() {
        assert_eq!(FileHash::sha256(&"0".repeat(63)), None);
        assert_eq!(FileHash::sha256(&"g".repeat(64)), None);
        assert_eq!(FileHash::git_blob(&"+1".repeat(20)), None);
        assert_eq!(FileHash::git_blob(&"é".repeat(20)), None);
    }
}
