//! `--set a.b=value`: values given on the command line.

use toml::de::{DeTable, DeValue};

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::schema::View;
use crate::tree::{Node, Segment, Value, dotted, from_value, merge};

/// One parsed override.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    path: Vec<Segment>,
    node: Node,
}

impl Override {
    /// The value, if this override is of the key `key` at the top.
    pub(crate) fn value_of(&self, key: &str) -> Option<&Node> {
        (self.path == [Segment::Key(key.to_owned())]).then_some(&self.node)
    }
}

/// Parses `a.b=value`. The value is TOML; what is not TOML and does not look like it is taken as a text, so that
/// `--set run.name=test` needs no quotes within quotes.
pub(crate) fn parse(text: &str, source: usize, problems: &mut Vec<Diagnostic>) -> Option<Override> {
    let bad = |message: String, span| {
        Diagnostic::error(codes::BAD_OVERRIDE, message)
            .at(source, span)
            .help("write it as `section.key=value`, for example `optimizer.learning_rate=1e-4`")
    };
    let Some(equals) = position_of_equals(text) else {
        problems.push(bad(format!("the override `{text}` has no `=`"), 0..text.len()));
        return None;
    };
    // Blanks around a value are the shell's or a slip, and mean nothing.
    let value = text[equals + 1..].trim_start();
    let (key, begins) = (&text[..equals], text.len() - value.len());
    let value = value.trim_end();
    let Some(names) = key_path(key) else {
        problems.push(bad(format!("`{key}` is not a key"), 0..equals));
        return None;
    };
    let (parsed, errors) = DeValue::parse_recoverable(value);
    let mut node = if errors.is_empty() {
        from_value(&parsed, source, 0..equals, problems)
    } else if value.is_empty() {
        let message = format!("the override `{text}` gives no value");
        let help = format!("write one behind the `=`; an empty text is --set \"{key}=''\"");
        problems.push(bad(message, 0..text.len()).help(help));
        return None;
    } else if value.starts_with(['"', '\'', '[', '{']) {
        let message = format!(
            "the value of the override `{text}` is not TOML: {}",
            errors[0].message()
        );
        let mut problem = bad(message, equals + 1..text.len());
        if let Some(mended) = with_quotes(value) {
            problem = problem.help(format!(
                "texts in a list or a table stand in quotes, and the shell takes them away unless all of it is quoted: \
                 --set '{key}={mended}'"
            ));
        }
        problems.push(problem);
        return None;
    } else {
        Node {
            value: Value::String(value.to_owned()),
            origin: Some(source),
            span: 0..value.len(),
            key_span: 0..equals,
        }
    };
    shift_spans(&mut node, begins);
    node.key_span = 0..equals;
    Some(Override {
        path: names.into_iter().map(Segment::Key).collect(),
        node,
    })
}

/// A list or a table with its bare words in quotes, as it was before a shell took them away; nothing if it is no TOML then.
fn with_quotes(value: &str) -> Option<String> {
    let is_of_word = |c: char| c.is_alphanumeric() || "_-.*/".contains(c);
    let mut mended = String::with_capacity(value.len() + 8);
    let mut rest = value;
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        let length = match quote {
            None if is_of_word(c) => rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len()),
            _ => c.len_utf8(),
        };
        let (word, behind) = rest.split_at(length);
        let is_text = quote.is_none()
            && (c.is_alphabetic() || "_*/".contains(c))
            && !["true", "false", "inf", "nan"].contains(&word)
            && !behind.trim_start().starts_with('=');
        match is_text {
            true => mended.push_str(&format!("\"{word}\"")),
            false => mended.push_str(word),
        }
        quote = match (quote, c) {
            (None, '"' | '\'') => Some(c),
            (Some(open), c) if c == open => None,
            (open, _) => open,
        };
        rest = behind;
    }
    let is_other = mended != value && !mended.contains('\'');
    (is_other && DeValue::parse_recoverable(&mended).1.is_empty()).then_some(mended)
}

/// The first `=` outside quotes.
fn position_of_equals(text: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(index, c)| {
        match (quote, c) {
            (None, '=') => return Some(index),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        None
    })
}

/// The names of a dotted TOML key, or nothing if it is none.
pub(crate) fn key_path(key: &str) -> Option<Vec<String>> {
    // Newlines would let a key smuggle in further keys.
    if key.contains(['\n', '\r', '#', '=']) {
        return None;
    }
    let line = format!("{key} = 0");
    let table = DeTable::parse(&line).ok()?;
    let mut names = Vec::new();
    let mut table = table.get_ref();
    loop {
        let (name, value) = table.iter().next()?;
        names.push(name.get_ref().clone().into_owned());
        match value.get_ref() {
            DeValue::Table(next) => table = next,
            _ => return Some(names),
        }
    }
}

/// Moves spans that count from the value to count from the start of the override.
fn shift_spans(node: &mut Node, by: usize) {
    for span in [&mut node.span, &mut node.key_span] {
        *span = span.start + by..span.end + by;
    }
    match &mut node.value {
        Value::Table(table) => table.values_mut().for_each(|node| shift_spans(node, by)),
        Value::Array(entries) => entries.iter_mut().for_each(|node| shift_spans(node, by)),
        _ => {}
    }
}

/// Lays overrides on a document. Those that choose a variant come first, so that their order on the command line does
/// not matter; otherwise later ones win.
pub(crate) fn apply(
    document: &mut Node,
    overrides: Vec<Override>,
    schema: &View<'_>,
    problems: &mut Vec<Diagnostic>,
) {
    let chooses = |one: &Override| {
        let Some((Segment::Key(last), section)) = one.path.split_last() else {
            return false;
        };
        let view = section.iter().fold(
            View {
                nodes: schema.nodes.clone(),
                ..*schema
            },
            |view, s| view.child(s),
        );
        view.tag() == Some(last)
    };
    let (first, rest): (Vec<_>, Vec<_>) = overrides.into_iter().partition(chooses);
    for one in first.into_iter().chain(rest) {
        set(document, &one.path, 0, &one.node, schema, problems);
    }
}

fn set(
    target: &mut Node,
    path: &[Segment],
    depth: usize,
    node: &Node,
    schema: &View<'_>,
    problems: &mut Vec<Diagnostic>,
) {
    let Some(Segment::Key(key)) = path.get(depth) else {
        return merge(target, node.clone(), schema);
    };
    // A single table stands for a list of one, so its entry 0 is itself.
    if matches!(&target.value, Value::Table(table) if key == "0" && !table.contains_key(key))
        && schema.expanded().iter().any(|one| one.get("items").is_some())
    {
        return set(
            target,
            path,
            depth + 1,
            node,
            &schema.child(&Segment::Index(0)),
            problems,
        );
    }
    if let Value::Array(entries) = &mut target.value {
        let index = key.parse::<usize>().ok().filter(|index| *index <= entries.len());
        let Some(index) = index else {
            let list = dotted(&path[..depth]);
            let message = match (key.parse::<usize>(), entries.len()) {
                (Ok(index), 0) => format!("`{list}` is empty, so there is no entry {index}"),
                (Ok(index), count) => {
                    format!("`{list}` has no entry {index}: entries are 0 to {}", count - 1)
                }
                (Err(_), _) => format!("`{list}` is a list: name an entry by its number, not by `{key}`"),
            };
            problems.push(
                Diagnostic::error(codes::BAD_OVERRIDE, message)
                    .path(dotted(path))
                    .at(node.origin.unwrap_or_default(), node.key_span.clone())
                    .help(format!("`{list}.{}` would add an entry", entries.len())),
            );
            return;
        };
        if index == entries.len() {
            entries.push(Node {
                key_span: node.key_span.clone(),
                ..Node::empty_table(node.origin)
            });
        }
        return set(
            &mut entries[index],
            path,
            depth + 1,
            node,
            &schema.child(&Segment::Index(index)),
            problems,
        );
    }
    // A path through a value that is no table makes it one; the schema check then says what is wrong, if anything.
    let last = depth + 1 == path.len();
    if last {
        let mut over = Node {
            key_span: node.key_span.clone(),
            ..Node::empty_table(None)
        };
        if let Value::Table(table) = &mut over.value {
            table.insert(key.clone(), node.clone());
        }
        if !matches!(target.value, Value::Table(_)) {
            over.origin = node.origin;
        }
        return merge(target, over, schema);
    }
    if !matches!(target.value, Value::Table(_)) {
        *target = Node {
            key_span: node.key_span.clone(),
            ..Node::empty_table(node.origin)
        };
    }
    let Value::Table(table) = &mut target.value else {
        return;
    };
    let child = table.entry(key.clone()).or_insert_with(|| Node {
        key_span: node.key_span.clone(),
        ..Node::empty_table(node.origin)
    });
    set(
        child,
        path,
        depth + 1,
        node,
        &schema.child(&Segment::Key(key.clone())),
        problems,
    );
}
