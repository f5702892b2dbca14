//! Things by name.

use crate::UnknownName;
use std::collections::BTreeMap;
use std::fmt;

/// A name that is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is {} {what} `{name}` already; register each name once", article(.what))]
pub struct NameTaken {
    /// What the registry holds, as a noun.
    pub what: &'static str,
    /// The name.
    pub name: String,
}

/// What became of a name that a registry had once, or that another program has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{asked}` {why}. {instead}")]
pub struct Removed {
    /// What the registry holds, as a noun.
    pub what: &'static str,
    /// The name asked for.
    pub asked: String,
    /// What became of it, without a full stop.
    pub why: String,
    /// What to write instead.
    pub instead: String,
}

/// Why a registry does not have a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// It never had it.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// It remembers what to write instead.
    #[error(transparent)]
    Removed(#[from] Removed),
}

#[derive(Clone)]
struct Entry<T> {
    name: String,
    value: T,
}

/// Things by name, each name once. Built by the program that uses it; there is no global one.
///
/// Neither case nor the joint of words (`-` or `_`) is a difference between names.
#[derive(Clone)]
pub struct Registry<T> {
    what: &'static str,
    entries: BTreeMap<String, Entry<T>>,
    removed: BTreeMap<String, (String, String)>,
}

impl<T> Registry<T> {
    /// An empty registry of `what`, a noun in the singular.
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            entries: BTreeMap::new(),
            removed: BTreeMap::new(),
        }
    }

    /// Adds a thing, and gives it back.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of this name.
    pub fn register(&mut self, name: &str, value: T) -> Result<&mut T, NameTaken> {
        let key = self.free(name)?;
        // Who registers a name that was remembered means their own.
        self.removed.remove(&key);
        let name = name.to_lowercase();
        let entry = Entry { name, value };
        Ok(&mut self.entries.entry(key).insert_entry(entry).into_mut().value)
    }

    /// Remembers a name that is not there any more, or is there elsewhere: `why` says what became of it, without a full
    /// stop, and `instead` what to write.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a thing of this name.
    pub fn remove(&mut self, name: &str, why: &str, instead: &str) -> Result<(), NameTaken> {
        let key = self.free(name)?;
        self.removed.insert(key, (why.into(), instead.into()));
        Ok(())
    }

    /// The thing of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.entries.get(&normal(name)).map(|entry| &entry.value)
    }

    /// The thing of this name.
    ///
    /// # Errors
    /// What to write instead: of a removed name its successor, of another one the nearest.
    pub fn find(&self, name: &str) -> Result<&T, NotFound> {
        let key = normal(name);
        if let Some(entry) = self.entries.get(&key) {
            return Ok(&entry.value);
        }
        Err(match self.removed.get(&key) {
            Some((why, instead)) => NotFound::Removed(Removed {
                what: self.what,
                asked: name.into(),
                why: why.clone(),
                instead: instead.clone(),
            }),
            None => NotFound::Unknown(UnknownName::new(self.what, name, self.names())),
        })
    }

    /// Names and things in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.values().map(|entry| (&*entry.name, &entry.value))
    }

    /// All names in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// All things in the order of their names.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    fn free(&self, name: &str) -> Result<String, NameTaken> {
        let key = normal(name);
        match self.entries.get(&key) {
            Some(entry) => Err(NameTaken {
                what: self.what,
                name: entry.name.clone(),
            }),
            None => Ok(key),
        }
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple(self.what)
            .field(&self.names().collect::<Vec<_>>())
            .finish()
    }
}

/// The article before a noun, by its first letter.
fn article(noun: &str) -> &'static str {
    match noun.starts_with(['a', 'e', 'i', 'o', 'u']) {
        true => "an",
        false => "a",
    }
}

fn normal(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}
