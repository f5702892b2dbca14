//! What backward is told and gives.

use crate::tensors::RawTensor;
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use std::fmt;
use std::sync::Arc;

/// Which inputs of an operation want a gradient, and the gradients that its outputs received.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// One per output; absent where the loss does not reach it.
    pub output_gradients: &'a [Option<RawTensor>],
    /// One per input.
    pub wanted: &'a [bool],
}

impl Incoming<'_> {
    /// The gradient of the only output.
    ///
    /// # Panics
    /// If the operation has several outputs, one of them without gradient.
    pub fn gradient(&self) -> &RawTensor {
        self.output_gradients[0]
            .as_ref()
            .expect("a single output that is visited has a gradient")
    }
}

/// The backward of an operation: a gradient for every input that wants one, `None` or a spare value for the others.
/// It may run more than once.
pub type Backward = Arc<dyn Fn(Incoming<'_>) -> Vec<Option<RawTensor>> + Send + Sync>;

/// What backward needs, by the operation's name.
#[derive(Clone)]
pub(super) struct Saved {
    pub name: &'static str,
    /// One per input.
    pub wanted: Vec<bool>,
    pub backward: Backward,
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} inputs)", self.name, self.wanted.len())
    }
}

/// Gradients by leaf.
pub type Gradients = <Dispatch as AutodiffBackend>::Gradients;

/// The gradients of the leaves below `loss`, which holds one value.
///
/// # Panics
/// If `loss` depends on no leaf.
pub fn backward(loss: DispatchTensor) -> Gradients {
    <Dispatch as AutodiffBackend>::backward(loss)
}
