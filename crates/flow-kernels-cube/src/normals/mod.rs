//! Standard normal values drawn where they are used: those of `flow_rng`, bit for bit.
//!
//! A thread takes one block of Philox, four words, and makes four values of it. Neither its neighbours nor the size of the batch
//! matter, so noise is the same whether a kernel draws it, the host does, or a step draws it while it is taken.

mod arithmetic;
mod box_muller;

use crate::Element;
use crate::buffer::{Buffer, Refusal, address_type, grid, lacks, width, wrong_length};
use crate::philox::philox;
use cubecl::prelude::*;
use flow_rng::Stream;

/// Threads of a block.
const THREADS: usize = 256;
/// Words that address a row.
pub(crate) const ADDRESS: usize = 2;

/// Which values: row `b` holds the first of `stream` at sample `samples[b]` and `step`, as many as a row has.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// Seed and purpose.
    pub stream: Stream,
    /// Samples, one a row.
    pub samples: &'a [u64],
    /// The step, below 2^24.
    pub step: u32,
}

/// What a stream and a step are in a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Words {
    pub key: [u32; 2],
    pub step: u32,
}

/// Whether the device of `client` has f64, and the instructions that round each operation by itself: NVIDIA's have.
pub fn drawn_by(client: &Client) -> bool {
    let properties = client.properties();
    properties.identity.fingerprint.starts_with("ptx_sm")
}

/// Values `at · N ..` of the row that `samples` address.
#[cube]
pub(crate) fn normal_values<N: Size>(
    samples: &[u32],
    row: usize,
    at: usize,
    step: u32,
    key_low: u32,
    key_high: u32,
) -> Vector<f32, N> {
    let width = N::value();
    let first = at * width;
    let words = philox(
        (first / 4) as u32,
        step,
        samples[row * ADDRESS],
        samples[row * ADDRESS + 1],
        key_low,
        key_high,
    );
    let mut values = Vector::<f32, N>::empty();
    if comptime!(width == 4) {
        let (a, b) = box_muller::pair(words.extract(0usize), words.extract(1usize));
        let (c, d) = box_muller::pair(words.extract(2usize), words.extract(3usize));
        values.insert(0usize, a);
        values.insert(1usize, b);
        values.insert(2usize, c);
        values.insert(3usize, d);
    } else {
        // A vector of two or one lies within a pair.
        let second = first % 4 >= 2;
        let (a, b) = box_muller::pair(
            select(second, words.extract(2usize), words.extract(0usize)),
            select(second, words.extract(3usize), words.extract(1usize)),
        );
        if comptime!(width == 2) {
            values.insert(0usize, a);
            values.insert(1usize, b);
        } else {
            values.insert(0usize, select(first % 2 == 1, b, a));
        }
    }
    values
}

/// `values [B, N]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn draw_normals<N: Size>(
    samples: &[u32],
    values: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    step: u32,
    key_low: u32,
    key_high: u32,
) {
    let at = ABSOLUTE_POS;
    if at < rows * vectors {
        values[at] = normal_values::<N>(samples, at / vectors, at % vectors, step, key_low, key_high);
    }
}

/// What a device says that cannot draw.
pub(crate) fn cannot_draw() -> Refusal {
    lacks(
        "noise that is drawn where it is used",
        "f64 as NVIDIA's GPUs have it",
    )
}

impl Drawn<'_> {
    pub(crate) fn words(&self) -> Words {
        let [step, ..] = self.stream.address(0, self.step);
        Words {
            key: self.stream.key(),
            step,
        }
    }

    /// Refuses it unless there is a sample for each of `rows`, and the device can draw.
    pub(crate) fn checked(self, client: &Client, rows: usize) -> Result<Self, Refusal> {
        if self.samples.len() != rows {
            return Err(wrong_length("samples", self.samples.len(), rows));
        }
        match drawn_by(client) {
            true => Ok(self),
            false => Err(cannot_draw()),
        }
    }

    /// The samples as a kernel takes them.
    pub(crate) fn samples(&self, client: &Client) -> BufferArg {
        let words = self.samples.iter().flat_map(|sample| {
            let [_, low, high] = self.stream.address(*sample, self.step);
            [low, high]
        });
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        let handle = client.create_from_slice(&bytes);
        // SAFETY: it was made for as many.
        unsafe { BufferArg::from_raw_parts(handle, ADDRESS * self.samples.len()) }
    }

    /// Draws `values [B, N]`, f32, with `N` the number of `values` by that of the samples.
    ///
    /// # Errors
    /// [`Refusal`] if they do not fit, or where the device cannot ([`drawn_by`]).
    ///
    /// # Panics
    /// If the step is 2^24 or more.
    pub fn draw(&self, client: &Client, values: &Buffer) -> Result<(), Refusal> {
        let rows = self.samples.len();
        self.checked(client, rows)?;
        let each = values.length.checked_div(rows).unwrap_or(0);
        values.expect_of("values", rows * each, Element::F32)?;
        if each == 0 {
            return Ok(());
        }
        let (vector, words) = (width(each, Element::F32), self.words());
        // SAFETY: the length was checked.
        unsafe {
            draw_normals::launch_unchecked(
                client,
                grid(client, (rows * each / vector).div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[values]),
                vector,
                self.samples(client),
                values.argument(),
                rows,
                each / vector,
                words.step,
                words.key[0],
                words.key[1],
            );
        }
        Ok(())
    }
}
