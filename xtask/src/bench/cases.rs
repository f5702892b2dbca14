//! Which of a benchmark's cases are asked for.

use anyhow::{Context, Result, bail};

/// The cases that `cases` asks for (`4` or `0-29`), of `count`; all without.
///
/// # Errors
/// If it is no range, or there are fewer cases.
pub(super) fn range(cases: Option<&str>, count: u64) -> Result<std::ops::Range<u64>> {
    let Some(cases) = cases else { return Ok(0..count) };
    let (first, last) = cases.split_once('-').unwrap_or((cases, cases));
    let number = |word: &str| {
        word.parse::<u64>()
            .with_context(|| format!("--cases is `{cases}`, but must be a number or two, as `0-29`"))
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last || last >= count {
        bail!("--cases is `{cases}`, but there are the cases 0-{}", count - 1);
    }
    Ok(first..last + 1)
}
