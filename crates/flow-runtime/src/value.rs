//! Values of options, and how they are read from a config.

use crate::{Kind, codes};
use serde_json::Value as Json;
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest name of an environment, in characters.
const NAME_CHARS: usize = 100;
/// Longest path, in characters; in bytes that is `PATH_MAX` of Linux.
pub(crate) const PATH_CHARS: usize = 4096;

/// The value of an option, in its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of [`Kind::Integer`].
    Integer(u64),
    /// Of [`Kind::Choice`], and of [`Kind::Place`] if it is a word.
    Word(&'static str),
    /// Of [`Kind::Name`].
    Name(String),
    /// Of [`Kind::File`].
    File(PathBuf),
    /// Of [`Kind::Place`] if it is not a word.
    Directory(PathBuf),
}

impl Value {
    /// The value as the runtime's configuration writes it in JSON.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => (*value).into(),
            Self::Word(value) => (*value).into(),
            Self::Name(value) => value.as_str().into(),
            Self::File(path) => text(path),
            Self::Directory(path) => serde_json::json!({ "directory": text(path) }),
        }
    }
}

/// Paths are UTF-8, since [`read_path`] refuses others; so nothing is lost here.
fn text(path: &Path) -> Json {
    path.to_string_lossy().into_owned().into()
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_json().fmt(formatter)
    }
}

/// Why a JSON value is not a value of an option.
pub(crate) struct Unfit {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) nearest: Option<String>,
}

impl Unfit {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            nearest: None,
        }
    }
}

impl Kind {
    /// Reads a value; relative paths start from `base`.
    pub(crate) fn read(&self, json: &Json, base: &Path) -> Result<Value, Unfit> {
        match (self, json) {
            (Self::Bool, Json::Bool(value)) => Ok(Value::Bool(*value)),
            (Self::Integer { min, max }, Json::Number(number)) => match whole(number) {
                Some(value) if value < i128::from(*min) || value > i128::from(*max) => Err(Unfit::new(
                    codes::OUT_OF_RANGE,
                    format!("{number} is out of range"),
                )),
                Some(value) => Ok(Value::Integer(value as u64)),
                None => Err(Unfit::new(
                    codes::WRONG_TYPE,
                    format!("{number} is not a whole number"),
                )),
            },
            (Self::Choice(words), Json::String(word)) => choose(words, word),
            (Self::Name, Json::String(name)) => read_name(name),
            (Self::File, Json::String(path)) => Ok(Value::File(read_path(path, base)?)),
            (Self::Place(words), Json::String(word)) => choose(words, word),
            (Self::Place(_), Json::Object(table)) => match table.get("directory") {
                Some(Json::String(path)) if table.len() == 1 => Ok(Value::Directory(read_path(path, base)?)),
                _ => Err(Unfit::new(
                    codes::WRONG_TYPE,
                    "the table must have the key `directory`, a path, and no other",
                )),
            },
            _ => Err(Unfit::new(
                codes::WRONG_TYPE,
                format!("{} does not fit", name_of(json)),
            )),
        }
    }
}

/// A whole number, exactly; `None` if there is a fraction.
fn whole(number: &serde_json::Number) -> Option<i128> {
    let exact = number.as_u64().map(i128::from);
    exact.or(number.as_i64().map(i128::from)).or_else(|| {
        let float = number.as_f64()?;
        // The cast saturates, and what it saturates to is out of every range.
        (float.fract() == 0.0).then_some(float as i128)
    })
}

fn choose(words: &[&'static str], asked: &str) -> Result<Value, Unfit> {
    match words.iter().find(|word| **word == asked) {
        Some(word) => Ok(Value::Word(word)),
        None => Err(Unfit {
            nearest: nearest(asked, words.iter().copied()),
            ..Unfit::new(
                codes::UNKNOWN_CHOICE,
                format!("\"{asked}\" is not one of its values"),
            )
        }),
    }
}

/// CubeCL silently replaces whatever is not of this form, so the name would not be the one that was asked for.
fn read_name(name: &str) -> Result<Value, Unfit> {
    let length = name.chars().count();
    if length == 0 || length > NAME_CHARS {
        return Err(Unfit::new(
            codes::OUT_OF_RANGE,
            format!("a name of {length} characters is out of range"),
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.chars().all(plain) || name.chars().all(|c| c == '.') {
        return Err(Unfit::new(
            codes::BAD_TEXT,
            format!("\"{}\" has other characters, or only dots", name.escape_debug()),
        ));
    }
    Ok(Value::Name(name.to_owned()))
}

fn read_path(path: &str, base: &Path) -> Result<PathBuf, Unfit> {
    let length = path.chars().count();
    if length == 0 || length > PATH_CHARS {
        return Err(Unfit::new(
            codes::OUT_OF_RANGE,
            format!("a path of {length} characters is out of range"),
        ));
    }
    if path.contains('\0') {
        return Err(Unfit::new(codes::BAD_TEXT, "the path has a null character"));
    }
    // As for every path of a config.
    if let Some(part) = flow_config::unexpanded(path) {
        return Err(Unfit::new(
            codes::BAD_TEXT,
            format!("`{part}` is not expanded: write the path out"),
        ));
    }
    let path = base.join(path);
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(Unfit::new(
            codes::BAD_TEXT,
            format!("the folder that it starts from, {}, is not UTF-8", base.display()),
        )),
    }
}

fn name_of(json: &Json) -> String {
    match json {
        Json::Null => "null".into(),
        Json::Bool(value) => format!("{value}"),
        Json::Number(value) => format!("{value}"),
        Json::String(value) => format!("the string {value:?}"),
        Json::Array(_) => "an array".into(),
        Json::Object(_) => "a table".into(),
    }
}

/// The known text that is most like `asked`, unless none is like it.
pub(crate) fn nearest<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    flow_registry::nearest(asked, known).map(str::to_owned)
}
