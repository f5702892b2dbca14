//! Search through long lists.

/// The place of the first of `values` that is sought, as [`Iterator::position`]; faster where there are many values, and most likely
/// none of that kind.
pub fn first_position<T>(values: &[T], is_sought: impl Fn(&T) -> bool) -> Option<usize> {
    const AT_A_TIME: usize = 4096;
    // A look at many values without a branch: processors do it for several at once.
    let has = |some: &[T]| some.iter().fold(false, |any, value| any | is_sought(value));
    let start = values.chunks(AT_A_TIME).position(has)? * AT_A_TIME;
    let place = values[start..].iter().position(&is_sought)?;
    Some(start + place)
}
