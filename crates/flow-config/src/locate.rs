//! Where in the texts of a config a diagnostic belongs that knows the path of its key only.

use std::ops::Range;

use crate::diagnostic::{Diagnostic, Layer};
use crate::overrides::key_path;
use crate::tree::{Node, Segment, Value};

/// `diagnostic` with its place: the first of its paths that somebody wrote. If its key is not there at all, since it is
/// the one that is missing, the place is that of the table that lacks it. A key that has its default has no place.
pub(crate) fn place(document: &Node, diagnostic: Diagnostic) -> Diagnostic {
    let paths = std::iter::once(&diagnostic.path).chain(&diagnostic.related);
    let written = paths.into_iter().find_map(|path| {
        let node = walk(document, &key_path(path)?)?;
        Some((path.clone(), node.origin?, span(node, diagnostic.at_key)))
    });
    if let Some((path, source, span)) = written {
        let mut related: Vec<String> = std::iter::once(&diagnostic.path)
            .chain(&diagnostic.related)
            .filter(|other| **other != path)
            .cloned()
            .collect();
        related.retain(|other| !other.is_empty());
        return diagnostic.path(path).related(related).at(source, span);
    }
    match lacking(document, &diagnostic.path) {
        Some((source, span)) => diagnostic.at(source, span),
        None => {
            let value = key_path(&diagnostic.path).and_then(|names| walk(document, &names));
            let empty = |node: &Node| matches!(&node.value, Value::Array(entries) if entries.is_empty());
            let layer = value.filter(|node| !empty(node)).map(|_| Layer::Default);
            Diagnostic { layer, ..diagnostic }
        }
    }
}

/// The place of the lowest table above `path` that is there, if `path` is not and the table is written.
fn lacking(document: &Node, path: &str) -> Option<(usize, Range<usize>)> {
    let mut names = key_path(path)?;
    if walk(document, &names).is_some() {
        return None;
    }
    while names.pop().is_some() && !names.is_empty() {
        if let Some(node) = walk(document, &names) {
            return Some((node.origin?, span(node, false)));
        }
    }
    None
}

/// The value at a path. Indices of lists are names too; a single table stands for a list of one.
fn walk<'d>(document: &'d Node, names: &[String]) -> Option<&'d Node> {
    names.iter().try_fold(document, |node, name| {
        let key = node.get(&Segment::Key(name.clone()));
        key.or_else(|| node.get(&Segment::Index(name.parse().ok()?)))
    })
}

/// What to underline: a value, or the key of what is not a plain value or should not be there.
fn span(node: &Node, at_key: bool) -> Range<usize> {
    let by_key = at_key || matches!(node.value, Value::Table(_));
    if by_key && !node.key_span.is_empty() {
        node.key_span.clone()
    } else {
        node.span.clone()
    }
}
