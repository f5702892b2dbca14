//! Which layers a pattern of a config names.

/// Whether `pattern` names the layer `name`: as a whole or from a dot on, `*` standing for any characters.
///
/// ```
/// use flow_registry::names_layer;
///
/// assert!(names_layer("attn.to_*", "blocks.3.attn.to_q"));
/// assert!(!names_layer("to", "blocks.3.attn.to_q"));
/// ```
pub fn names_layer(pattern: &str, name: &str) -> bool {
    let from_a_dot = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
    std::iter::once(name)
        .chain(from_a_dot)
        .any(|end| glob(pattern, end))
}

/// Whether all of `text` fits `pattern`. Greedy with one point of return, so linear in practice and never worse than
/// the product of the lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            retry = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((star, at)) = retry {
            retry = Some((star, at + 1));
            p = star + 1;
            t = at + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}
