//! What a registry says where it does not have a name.

use crate::{Refusal, nearest};
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

    /// That the name is not there, and which names are.
    pub fn refusal(&self) -> Refusal {
        let available = match &*self.available {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let nearest = self.nearest.as_ref();
        let nearest = nearest.map(|nearest| format!(". The nearest name is `{nearest}`"));
        Refusal::new(
            format!("there is no {} `{}`", self.what, self.asked),
            format!("available: {available}{}", nearest.unwrap_or_default()),
        )
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.refusal().sentence())
    }
}

impl std::error::Error for UnknownName {}
