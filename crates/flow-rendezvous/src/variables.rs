//! Reading the variables that a launcher sets.

use crate::error::RendezvousError;

/// Variables by name; what is empty is not set.
pub(crate) struct Variables<F>(pub F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name)
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    }

    /// A number that may be missing.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<usize>, RendezvousError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(RendezvousError::Variable {
                variable: name,
                value,
                problem: "must be a whole number, at least 0".into(),
            }),
        }
    }

    /// A number that must be there, since `found` is.
    pub(crate) fn expected(
        &self,
        name: &'static str,
        found: &'static str,
        help: &str,
    ) -> Result<usize, RendezvousError> {
        self.number(name)?.ok_or_else(|| RendezvousError::Missing {
            found: format!("{found}={}", self.text(found).unwrap_or_default()),
            missing: name,
            help: help.into(),
        })
    }
}
