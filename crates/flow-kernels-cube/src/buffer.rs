//! Tensors on the device as the kernels take them, and what is refused before anything is launched.

use crate::Element;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
pub(crate) use flow_cube::launch::grid;
pub use flow_registry::Refusal;
use std::fmt::Display;

/// A tensor without gaps on the device, its shape known to the call that it takes part in.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Where it is. The address is a multiple of 16 bytes.
    pub handle: Handle,
    /// Number of values.
    pub length: usize,
    /// Their type.
    pub element: Element,
}

/// The tensor called `name` in the signature is not as long as the sizes of the call say.
pub(crate) fn wrong_length(name: &str, found: usize, expected: usize) -> Refusal {
    Refusal::because(format!(
        "`{name}` holds {found} values; the sizes of the call ask for {expected}"
    ))
}

/// The tensor called `name` in the signature is of another type than the call takes.
pub(crate) fn wrong_type(name: &str, found: Element, allowed: &str) -> Refusal {
    Refusal::because(format!("`{name}` is {}; the call takes {allowed}", found.name()))
}

/// The size called `name` in the signature is out of range.
pub(crate) fn wrong_size(name: &str, found: usize, allowed: impl Display) -> Refusal {
    Refusal::because(format!("`{name}` is {found}; allowed are {allowed}"))
}

/// The device has not what the call needs.
pub(crate) fn lacks(asked: &str, needed: &str) -> Refusal {
    Refusal::because(format!("{asked}: the device lacks {needed}"))
}

impl Buffer {
    /// Room for `length` values of type `element`, their values unspecified.
    pub fn empty(client: &Client, length: usize, element: Element) -> Self {
        Self {
            handle: client.empty((length * element.bytes()).max(16)),
            length,
            element,
        }
    }

    /// `values`, rounded to nearest, on the device.
    pub fn upload(client: &Client, values: &[f64], element: Element) -> Self {
        let bytes = element.encode(values);
        let bytes = if bytes.is_empty() { vec![0; 16] } else { bytes };
        Self {
            handle: client.create_from_slice(&bytes),
            length: values.len(),
            element,
        }
    }

    /// The values on the host; waits for the device. `None` if the device failed.
    pub fn download(&self, client: &Client) -> Option<Vec<f64>> {
        let bytes = client.read_one(self.handle.clone()).ok()?;
        Some(self.element.decode(&bytes[..self.length * self.element.bytes()]))
    }

    pub(crate) fn argument(&self) -> BufferArg {
        // SAFETY: `expect` compared the length with the call's sizes, and the handle holds as many values.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }

    /// Refuses the tensor unless it holds `expected` values.
    pub(crate) fn expect(&self, name: &'static str, expected: usize) -> Result<&Self, Refusal> {
        let held = self.handle.size_in_used() as usize / self.element.bytes();
        if self.length != expected || held < expected {
            let found = if self.length == expected {
                held
            } else {
                self.length
            };
            return Err(wrong_length(name, found, expected));
        }
        Ok(self)
    }

    /// Refuses the tensor unless it holds `expected` values of type `element`.
    pub(crate) fn expect_of(
        &self,
        name: &'static str,
        expected: usize,
        element: Element,
    ) -> Result<&Self, Refusal> {
        if self.element != element {
            return Err(wrong_type(name, self.element, element.name()));
        }
        self.expect(name, expected)
    }
}

/// Refuses `found` unless it is one of `1..=largest`.
pub(crate) fn at_least_one(name: &'static str, found: usize) -> Result<(), Refusal> {
    match found {
        0 => Err(wrong_size(name, found, "1 and more")),
        _ => Ok(()),
    }
}

/// Bits of an index into the longest of `buffers`.
pub(crate) fn address_type(buffers: &[&Buffer]) -> AddressType {
    let longest = buffers.iter().map(|buffer| buffer.length).max().unwrap_or(0);
    AddressType::from_len(longest)
}

/// Values that a thread reads at once from rows of `columns`: as many as divide a row and fill at most 16 bytes of
/// `element`. A function of the row alone, so that a sample's arithmetic does not depend on its batch.
pub(crate) fn width(columns: usize, element: Element) -> usize {
    let most = 16 / element.bytes();
    1 << columns.trailing_zeros().min(most.trailing_zeros())
}

/// Calls `$body` with `$type` as the Rust type of `$element`.
macro_rules! with_type {
    ($element:expr, $type:ident => $body:expr) => {
        match $element {
            $crate::Element::F32 => {
                type $type = f32;
                $body
            }
            $crate::Element::F16 => {
                type $type = half::f16;
                $body
            }
            $crate::Element::Bf16 => {
                type $type = half::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_type;
