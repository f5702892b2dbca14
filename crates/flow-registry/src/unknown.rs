//! What a registry says where it does not have a name.

use crate::nearest;
use std::fmt;

/// A name that nothing has, with those there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What was asked for, as a noun: `reward`.
    pub what: &'static str,
    /// The name asked for.
    pub asked: String,
    /// All names, in the registry's order.
    pub available: Vec<String>,
    /// The name [`nearest`] to it, if one is near.
    pub nearest: Option<String>,
}

impl UnknownName {
    /// `asked` is none of `available`.
    pub fn new<'a>(what: &'static str, asked: &str, available: impl IntoIterator<Item = &'a str>) -> Self {
        let available: Vec<String> = available.into_iter().map(str::to_owned).collect();
        let nearest = nearest(asked, available.iter().map(String::as_str)).map(str::to_owned);
        Self {
            what,
            asked: asked.to_owned(),
            available,
            nearest,
        }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let available = match &*self.available {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        write!(
            formatter,
            "there is no {} `{}`; available: {available}",
            self.what, self.asked
        )?;
        match &self.nearest {
            Some(nearest) => write!(formatter, ". The nearest name is `{nearest}`"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownName {}
