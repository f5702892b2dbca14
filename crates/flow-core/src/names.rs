//! Names that a config chooses from: what a registry answers where it does not have one.

use std::fmt;

/// Least Jaro-Winkler similarity of a name that may have been meant.
const ALIKE: f64 = 0.7;

/// A name that a registry does not have, with those it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// The name asked for.
    pub asked: String,
    /// All registered names, in the registry's order.
    pub available: Vec<String>,
    /// The registered name most like it (Jaro and Winkler), if one is like it.
    pub nearest: Option<String>,
}

impl UnknownName {
    /// `asked` is none of `available`. Case does not matter for likeness.
    pub fn new<'a>(asked: &str, available: impl IntoIterator<Item = &'a str>) -> Self {
        let available: Vec<String> = available.into_iter().map(str::to_owned).collect();
        let lower = asked.to_lowercase();
        let scored = available
            .iter()
            .map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &lower), name))
            .filter(|(likeness, _)| *likeness >= ALIKE);
        let nearest = scored
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, name)| name.clone());
        Self {
            asked: asked.to_owned(),
            available,
            nearest,
        }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let available = match &*self.available {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        write!(f, "`{}`; available: {available}", self.asked)?;
        match &self.nearest {
            Some(nearest) => write!(f, ". The nearest name is `{nearest}`"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownName {}
