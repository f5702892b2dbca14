//! Everything that is wrong with the tensors of a checkpoint, at once.

use std::fmt;
use std::path::PathBuf;

/// A tensor that the model does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its name in the file.
    pub name: String,
    /// The nearest name that the model has.
    pub nearest: Option<String>,
}

/// A weight that the file does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name in the model.
    pub name: String,
    /// The nearest name in the file that the model does not know.
    pub nearest: Option<String>,
}

/// A tensor of another shape than the weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshapen {
    /// Its name.
    pub name: String,
    /// Shape in the model.
    pub expected: Vec<usize>,
    /// Shape in the file.
    pub found: Vec<usize>,
}

/// A tensor that lies in several files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicated {
    /// Its name.
    pub name: String,
    /// The files.
    pub files: Vec<PathBuf>,
}

/// A tensor that is not in the file in which the index has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// Its name.
    pub name: String,
    /// The file of the index.
    pub file: PathBuf,
}

/// A tensor of a precision that weights cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its name.
    pub name: String,
    /// Its precision.
    pub dtype: String,
}

/// A tensor with a value that is infinite or not a number.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// Its name.
    pub name: String,
    /// The first such value.
    pub value: f32,
    /// Index of that value along each axis.
    pub place: Vec<usize>,
    /// How many values are not finite.
    pub count: usize,
}

/// How the tensors of a checkpoint differ from those of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The path that was loaded.
    pub path: PathBuf,
    /// Tensors that the model lacks.
    pub unknown: Vec<Unknown>,
    /// Weights that the checkpoint lacks.
    pub missing: Vec<Missing>,
    /// Tensors of another shape.
    pub misshapen: Vec<Misshapen>,
    /// Tensors in several files.
    pub duplicated: Vec<Duplicated>,
    /// Tensors that are not where the index says.
    pub misplaced: Vec<Misplaced>,
    /// Tensors of an unreadable precision.
    pub unreadable: Vec<Unreadable>,
    /// Tensors with values that are not finite.
    pub not_finite: Vec<NotFinite>,
    /// What the names have in common, and what to do about it.
    pub hint: Option<String>,
}

/// Lines shown of each kind; the fields hold all.
pub(super) const SHOWN: usize = 20;

impl LoadReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// How many things are wrong.
    pub fn count(&self) -> usize {
        let tensors = self.unknown.len() + self.missing.len() + self.misshapen.len();
        tensors + self.duplicated.len() + self.misplaced.len() + self.unreadable.len() + self.not_finite.len()
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    items: &[T],
    line: impl Fn(&T) -> String,
) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {heading} ({}):", items.len())?;
    for item in items.iter().take(SHOWN) {
        write!(f, "\n    {}", line(item))?;
    }
    match items.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, "\n    and {more} more"),
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let problems = match self.count() {
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        write!(
            f,
            "`{path}` does not fit the model, {problems}; nothing was loaded"
        )?;
        let near = |nearest: &Option<String>, label: &str| {
            nearest
                .as_ref()
                .map(|near| format!(" ({label} `{near}`)"))
                .unwrap_or_default()
        };
        list(f, "missing from the file", &self.missing, |it| {
            format!("{}{}", it.name, near(&it.nearest, "the file has"))
        })?;
        list(f, "unknown to the model", &self.unknown, |it| {
            format!("{}{}", it.name, near(&it.nearest, "the model has"))
        })?;
        list(f, "of another shape", &self.misshapen, |it| {
            format!(
                "{}: the model has {:?}, the file {:?}",
                it.name, it.expected, it.found
            )
        })?;
        list(f, "in several files", &self.duplicated, |it| {
            let files: Vec<_> = it.files.iter().map(|file| file.display().to_string()).collect();
            format!("{}: {}", it.name, files.join(", "))
        })?;
        list(
            f,
            "not in the file in which the index has them",
            &self.misplaced,
            |it| format!("{}: {}", it.name, it.file.display()),
        )?;
        list(
            f,
            "of a precision other than F32, BF16, F16",
            &self.unreadable,
            |it| format!("{}: {}", it.name, it.dtype),
        )?;
        list(f, "with values that are not finite", &self.not_finite, |it| {
            let further = match it.count {
                1 => String::new(),
                count => format!(", the first of {count}"),
            };
            format!("{}: {} at {:?}{further}", it.name, it.value, it.place)
        })?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LoadReport {}
