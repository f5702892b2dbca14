//! From what a pickle says to where tensors are in the file.

use super::entries::Entries;
use super::machine::{Built, Tensor, Value, run};
use safetensors::Dtype;
use std::ops::Range;

/// The dictionary of weights in a checkpoint that holds more than weights.
const WEIGHTS: &str = "state_dict";
const PICKLE: &str = "data.pkl";

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlace {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Of the file.
    pub bytes: Range<usize>,
}

/// The tensors of the file `bytes`.
pub fn places(bytes: &[u8], entries: &Entries) -> Result<Vec<TensorPlace>, String> {
    let ending = format!("/{PICKLE}");
    let mut pickles = entries.iter().filter(|(name, _)| name.ends_with(&ending));
    let (Some((name, range)), None) = (pickles.next(), pickles.next()) else {
        return Err(format!(
            "it is a zip without the one `{PICKLE}` that `torch.save` writes"
        ));
    };
    let folder = &name[..name.len() - PICKLE.len()];
    if let Some(order) = entries
        .get(&format!("{folder}byteorder"))
        .map(|order| &bytes[order.clone()])
        && order != b"little"
    {
        return Err("its values are big-endian".into());
    }
    let (root, built) = run(&bytes[range.clone()])?;
    let weights = dictionary(root, &built).ok_or("it holds no dictionary of tensors")?;
    let inner = (weights.iter()).find_map(|(name, value)| match *name {
        WEIGHTS => dictionary(*value, &built),
        _ => None,
    });
    let named = inner.unwrap_or(weights);
    let tensors = named.into_iter().filter_map(|(name, value)| match value {
        Value::Tensor(place) => Some((name, &built.tensors[place])),
        _ => None,
    });
    let places = tensors.map(|(name, tensor)| {
        let key = format!("{folder}data/{}", tensor.storage.key);
        let storage = entries
            .get(&key)
            .ok_or("values of it are not in the file".to_owned());
        let place = storage.and_then(|storage| place(name, tensor, storage));
        place.map_err(|problem| format!("tensor `{}`: {problem}", name.escape_debug()))
    });
    places.collect()
}

/// The entries of a dictionary whose keys are texts.
fn dictionary<'p>(value: Value<'p>, built: &Built<'p>) -> Option<Vec<(&'p str, Value<'p>)>> {
    let Value::Container(place) = value else {
        return None;
    };
    let entries = built.containers[place].as_chunks::<2>().0.iter();
    let named = entries.filter_map(|[key, value]| match key {
        Value::Text(key) => Some((*key, *value)),
        _ => None,
    });
    Some(named.collect())
}

fn place(name: &str, tensor: &Tensor<'_>, storage: &Range<usize>) -> Result<TensorPlace, String> {
    let (dtype, width) = match tensor.storage.sort {
        "Float" => (Dtype::F32, 4),
        "Half" => (Dtype::F16, 2),
        "BFloat16" => (Dtype::BF16, 2),
        "Double" => (Dtype::F64, 8),
        "Long" => (Dtype::I64, 8),
        "Int" => (Dtype::I32, 4),
        "Byte" => (Dtype::U8, 1),
        "Bool" => (Dtype::BOOL, 1),
        other => {
            return Err(format!(
                "it is of the precision `{}`, which is not read here",
                other.escape_debug()
            ));
        }
    };
    let outside = || "it reaches beyond its values".to_owned();
    let sizes = tensor.shape.iter().map(|size| usize::try_from(*size));
    let shape: Vec<usize> = sizes.collect::<Result<_, _>>().map_err(|_| outside())?;
    let count = shape
        .iter()
        .try_fold(1usize, |count, size| count.checked_mul(*size));
    let count = count.ok_or_else(outside)?;
    if !is_row_major(&shape, &tensor.strides) {
        return Err(
            "its values are not in the order of its axes; call `.contiguous()` on it before it is saved"
                .into(),
        );
    }
    let first = usize::try_from(tensor.offset)
        .ok()
        .and_then(|first| first.checked_mul(width));
    let start = first.and_then(|first| first.checked_add(storage.start));
    let length = count.checked_mul(width);
    let end = start
        .zip(length)
        .and_then(|(start, length)| start.checked_add(length));
    let bytes = start.zip(end).filter(|(_, end)| *end <= storage.end);
    let (start, end) = bytes.ok_or_else(outside)?;
    Ok(TensorPlace {
        name: name.to_owned(),
        dtype,
        shape,
        bytes: start..end,
    })
}

/// Whether values lie one after the other, the last axis innermost.
fn is_row_major(shape: &[usize], strides: &[i64]) -> bool {
    let mut step = 1i64;
    if shape.len() != strides.len() {
        return false;
    }
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        // The stride of an axis of one value is never used.
        let fits = *size <= 1 || *stride == step;
        step = step.saturating_mul(*size as i64);
        fits
    })
}
