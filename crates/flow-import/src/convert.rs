//! Conversions of single values.

use toml_edit::{Array, Value};

use crate::rule::Conversion;
use crate::scalar::Scalar;
use crate::yaml::{self, Node, quote};

/// The value in the TOML, or why there is none.
pub(crate) fn convert(conversion: Conversion, node: &Node) -> Result<Value, String> {
    match conversion {
        Conversion::Number => number(node),
        Conversion::Integer | Conversion::Limit => integer(node),
        Conversion::Switch => match node.scalar() {
            Some(Scalar::Boolean(switch)) => Ok(Value::from(*switch)),
            _ => Err(not_a("true or false", node)),
        },
        Conversion::Text => match &node.value {
            yaml::Value::Scalar { raw, .. } => Ok(Value::from(raw.as_str())),
            _ => Err(not_a("a text", node)),
        },
        Conversion::Path => match &node.value {
            // Written as it is, it would make a folder called `~` or `$HOME`.
            yaml::Value::Scalar { raw, .. } => match flow_config::unexpanded(raw) {
                Some(part) => Err(format!("flow-train does not expand `{part}`: write the path out")),
                None => Ok(Value::from(raw.as_str())),
            },
            _ => Err(not_a("a path", node)),
        },
        Conversion::Range => match pair(node)? {
            Pair::One(one) => symmetric(node, &one),
            Pair::Two(lo, hi) => Ok(list([lo, hi])),
        },
        Conversion::Fraction => match pair(node)? {
            Pair::One(one) => Ok(list([Value::from(0.0), one])),
            Pair::Two(lo, hi) => Ok(list([lo, hi])),
        },
        Conversion::Symmetric => match pair(node)? {
            Pair::One(one) => Ok(one),
            Pair::Two(lo, hi) if float(&lo) == -float(&hi) => Ok(hi),
            Pair::Two(..) => Err("flow-train clamps to plus or minus one number".into()),
        },
        Conversion::Guidance => {
            let value = number(node)?;
            // Flow-Factory has guidance above 1 only, flow-train wherever the scale is not 1.
            Ok(if float(&value) <= 1.0 {
                Value::from(1.0)
            } else {
                value
            })
        }
        Conversion::Choice(choices) => {
            let written = node.flow();
            let found = choices.iter().find(|(theirs, _)| is_word(node, theirs));
            let known: Vec<&str> = choices.iter().map(|(theirs, _)| *theirs).collect();
            found.map(|(_, ours)| Value::from(*ours)).ok_or_else(|| {
                format!(
                    "flow-train has no counterpart of {written}; there is {}",
                    known.join(", ")
                )
            })
        }
        Conversion::Same(_) | Conversion::Joint(_) | Conversion::Nothing => {
            Err("it stands for itself".into())
        }
    }
}

/// Whether a value is one of these words. Case does not matter.
pub(crate) fn is_one_of(node: &Node, words: &[&str]) -> bool {
    words.iter().any(|word| is_word(node, word))
}

fn is_word(node: &Node, word: &str) -> bool {
    match node.scalar() {
        // `no` is a boolean to YAML.
        Some(Scalar::Boolean(switch)) => yaml_word(*switch).contains(&word),
        _ => node.flow().trim_matches('"').eq_ignore_ascii_case(word),
    }
}

fn yaml_word(switch: bool) -> &'static [&'static str] {
    if switch {
        &["true", "yes", "on"]
    } else {
        &["false", "no", "off"]
    }
}

/// A number, in the notation in which it was written where TOML has that notation.
pub(crate) fn number(node: &Node) -> Result<Value, String> {
    let yaml::Value::Scalar { raw, scalar } = &node.value else {
        return Err(not_a("a number", node));
    };
    let as_written: Option<Value> = raw.parse().ok();
    match scalar {
        Scalar::Integer(integer) => Ok(as_written
            .filter(|value| value.as_integer() == Some(*integer))
            .unwrap_or_else(|| Value::from(*integer))),
        Scalar::Float(number) => Ok(as_written
            .filter(|value| value.as_float() == Some(*number))
            .unwrap_or_else(|| Value::from(*number))),
        _ => Err(not_a("a number", node)),
    }
}

fn integer(node: &Node) -> Result<Value, String> {
    match number(node)? {
        Value::Integer(integer) => Ok(Value::Integer(integer)),
        Value::Float(number) if whole(*number.value()) => Ok(Value::from(*number.value() as i64)),
        _ => Err(not_a("a whole number", node)),
    }
}

fn whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 9e15
}

/// A number as f64, NaN if it is none.
pub(crate) fn float(value: &Value) -> f64 {
    let integer = value.as_integer().map(|integer| integer as f64);
    value.as_float().or(integer).unwrap_or(f64::NAN)
}

enum Pair {
    One(Value),
    Two(Value, Value),
}

fn pair(node: &Node) -> Result<Pair, String> {
    match node.list() {
        None => number(node)
            .map(Pair::One)
            .map_err(|_| not_a("a number or a list of two", node)),
        Some([lo, hi]) => Ok(Pair::Two(number(lo)?, number(hi)?)),
        Some(_) => Err(not_a("a list of two numbers", node)),
    }
}

/// `c` to `[-c, c]`, in the notation in which `c` was written.
fn symmetric(node: &Node, one: &Value) -> Result<Value, String> {
    if float(one).is_nan() || float(one) < 0.0 {
        return Err(not_a("a number of 0 or above, or a list of two", node));
    }
    let written = one.to_string();
    let negative: Option<Value> = format!("-{}", written.trim().trim_start_matches('+'))
        .parse()
        .ok();
    let negative = negative.unwrap_or_else(|| Value::from(-float(one)));
    Ok(list([negative, one.clone()]))
}

/// A list on one line.
pub(crate) fn list(values: impl IntoIterator<Item = Value>) -> Value {
    let mut array = Array::new();
    for mut value in values {
        value.decor_mut().clear();
        array.push(value);
    }
    Value::Array(array)
}

pub(crate) fn not_a(what: &str, node: &Node) -> String {
    let written = match &node.value {
        yaml::Value::Scalar {
            raw,
            scalar: Scalar::Text(_),
        } => quote(raw),
        yaml::Value::Scalar { .. } => node.flow(),
        yaml::Value::List(_) => "a list".into(),
        yaml::Value::Map(_) => "a map".into(),
    };
    format!("{written} is not {what}")
}
