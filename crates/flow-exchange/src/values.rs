//! What is summed and sent, wherever it is.

use std::any::Any;

/// Flat f32 values, in one piece or several, on the host or a device. A transport on the host reads and writes them; one of a device takes
/// what is behind [`as_any`](Self::as_any), if it is that device's.
pub trait Values: Any + Send {
    /// How many values.
    fn count(&self) -> usize;

    /// All of them, in order.
    fn read(&self) -> Vec<f32>;

    /// Puts others in their place, as many as [`count`](Self::count).
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
