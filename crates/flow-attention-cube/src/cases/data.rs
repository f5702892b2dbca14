//! Inputs of a case, and tensors as they lie in memory.

use super::case::{Case, Layout};
use flow_rng::{Purpose, Stream};

/// A tensor `[B, H, S, D]` on the host: exact values of what the device is given, in logical order.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// `[B, H, S, D]`.
    pub shape: [usize; 4],
    /// Elements from one to the next in memory, of each axis.
    pub strides: [usize; 4],
    /// Elements of the memory.
    pub length: usize,
    /// Values in the order of `shape`.
    pub values: Vec<f64>,
}

impl Operand {
    /// A tensor with these values in this layout.
    pub fn new(case: &Case, shape: [usize; 4], values: Vec<f64>) -> Self {
        let [batch, heads, tokens, channels] = shape;
        let (strides, length) = match case.layout {
            Layout::Contiguous => (
                [heads * tokens * channels, tokens * channels, channels, 1],
                batch * heads * tokens * channels,
            ),
            Layout::TokensFirst => (
                [heads * tokens * channels, channels, heads * channels, 1],
                batch * heads * tokens * channels,
            ),
            Layout::Sliced => {
                // Rows stay 16-byte aligned where channels are a multiple of 8.
                let row = channels + 64 / case.element.bytes();
                let head = (tokens + 3) * row;
                ([heads * head, head, row, 1], batch * heads * head)
            }
            Layout::Transposed => (
                [heads * tokens * channels, tokens * channels, 1, tokens],
                batch * heads * tokens * channels,
            ),
        };
        Self {
            shape,
            strides,
            length,
            values,
        }
    }

    /// Where in memory each value lies, in logical order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let [batch, heads, tokens, channels] = self.shape;
        let [b, h, s, d] = self.strides;
        (0..batch * heads * tokens * channels).map(move |i| {
            let (row, channel) = (i / channels, i % channels);
            let (head, token) = (row / tokens, row % tokens);
            head / heads * b + head % heads * h + token * s + channel * d
        })
    }

    /// The memory: values where they belong, NaN elsewhere.
    pub fn memory(&self) -> Vec<f64> {
        let mut memory = self.poison();
        self.places()
            .zip(&self.values)
            .for_each(|(place, value)| memory[place] = *value);
        memory
    }

    /// Memory of the same size with nothing but NaN, for results.
    pub fn poison(&self) -> Vec<f64> {
        vec![f64::NAN; self.length]
    }

    /// Values read back from memory, in logical order.
    ///
    /// # Errors
    /// Where something was written that is no element of the tensor.
    pub fn read(&self, memory: &[f64]) -> Result<Vec<f64>, String> {
        let mut inside = vec![false; memory.len()];
        let values = self.places().map(|place| {
            inside[place] = true;
            memory[place]
        });
        let values = values.collect();
        match (0..memory.len()).find(|&i| !inside[i] && !memory[i].is_nan()) {
            Some(place) => Err(format!(
                "element {place} is outside of the tensor but was written"
            )),
            None => Ok(values),
        }
    }
}

/// Inputs of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Queries.
    pub q: Operand,
    /// Keys of each segment.
    pub k: [Operand; 2],
    /// Values of each segment.
    pub v: [Operand; 2],
    /// Gradient of the result.
    pub d_o: Operand,
}

impl Data {
    /// Normal values, the same for a case and a seed always, rounded to the case's element type.
    pub fn new(case: &Case, seed: u64) -> Self {
        let stream = Stream::new(seed, Purpose::Test);
        let operand = |which: u32, shape: [usize; 4]| {
            let mut values = vec![0.0f32; shape.iter().product()];
            stream.at(which.into(), 0).fill_normal(&mut values);
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            Operand::new(case, shape, case.element.decode(&case.element.encode(&values)))
        };
        Self {
            q: operand(0, case.query_shape()),
            k: [operand(1, case.key_shape(0)), operand(2, case.key_shape(1))],
            v: [operand(3, case.key_shape(0)), operand(4, case.key_shape(1))],
            d_o: operand(5, case.query_shape()),
        }
    }
}
