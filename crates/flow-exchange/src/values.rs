//! What is summed and sent, wherever it is.

use std::any::Any;

/// The type in which values are, and in which they travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueType {
    /// 32 bits. What is summed is of this type.
    #[default]
    F32,
    /// 16 bits: the upper half of an f32.
    Bf16,
}

impl ValueType {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Flat values, in one piece or several, on the host or a device. A transport on the host reads and writes them; one of a device takes
/// what is behind [`as_any`](Self::as_any), if it is that device's.
pub trait Values: Any + Send {
    /// How many values.
    fn count(&self) -> usize;

    /// Their type, the same on all ranks.
    fn value_type(&self) -> ValueType {
        ValueType::F32
    }

    /// All of them, in order, widened to f32, which changes none.
    fn read(&self) -> Vec<f32>;

    /// Puts others in their place, as many as [`count`](Self::count), each of which [their type](Self::value_type) has.
    fn write(&mut self, values: Vec<f32>);

    /// Itself, for whoever knows its type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Values on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostValues(pub Vec<f32>);

impl Values for HostValues {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn read(&self) -> Vec<f32> {
        self.0.clone()
    }

    fn write(&mut self, values: Vec<f32>) {
        self.0 = values;
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
