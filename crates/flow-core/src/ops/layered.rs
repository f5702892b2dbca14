//! Kernels around others: what counts, times, records or replaces some operations, and hands on the rest.

use super::{KernelOps, Kernels, OnFused};
use crate::device::graph::Recorder;
use burn::tensor::{DType, FloatDType};
use std::fmt::Debug;
use std::sync::Arc;

/// A layer around other kernels. Whatever a layer does not state, the kernels within answer; their fused form, and that with
/// other gradients, get the same layer around them.
///
/// Nothing can be forgotten: no method of [`Kernels`] and of the traits in [`KernelOps`] has a body, so a method that is added
/// there does not compile until it is handed on here, or answered by who implements that trait.
///
/// ```
/// use flow_core::ops::{KernelOps, Kernels, LayeredKernels};
/// use std::sync::Arc;
///
/// /// The same kernels under another name.
/// #[derive(Debug)]
/// struct Renamed(Arc<dyn Kernels>);
///
/// impl LayeredKernels for Renamed {
///     fn inner(&self) -> &dyn Kernels {
///         &*self.0
///     }
///     fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
///         Arc::new(Self(inner))
///     }
///     fn name(&self) -> &str {
///         "renamed"
///     }
/// }
/// ```
///
/// A group of operations is answered whole, so a layer that leaves an operation out of a group does not compile:
///
/// ```compile_fail,E0046
/// use flow_core::{Noise, RawTensor, device::ComputeDevice};
/// use flow_core::ops::{SamplerOps, SdeOutputs, SdeStep};
///
/// #[derive(Debug)]
/// struct Counting<'a>(&'a dyn SamplerOps);
///
/// impl SamplerOps for Counting<'_> {
///     fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor {
///         self.0.noise(noise, device)
///     }
///     fn sde_step(&self, step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs {
///         self.0.sde_step(step, noise)
///     }
///     // `sde_step_drawn` is missing.
/// }
/// ```
pub trait LayeredKernels: Debug + Send + Sync {
    /// The kernels within.
    fn inner(&self) -> &dyn Kernels;

    /// The same layer around `inner`.
    fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels>;

    /// See [`Kernels::name`].
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// See [`Kernels::recorder`].
    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        self.inner().recorder()
    }

    /// See [`Kernels::ops`]. A layer names its own groups and takes the rest by `..self.inner().ops()`.
    fn ops(&self) -> KernelOps<'_> {
        self.inner().ops()
    }
}

impl<L: LayeredKernels> Kernels for L {
    fn name(&self) -> &str {
        LayeredKernels::name(self)
    }

    fn activations(&self) -> DType {
        self.inner().activations()
    }

    fn is_row_independent(&self) -> bool {
        self.inner().is_row_independent()
    }

    fn products(&self) -> Vec<String> {
        self.inner().products()
    }

    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        LayeredKernels::recorder(self)
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        let inner = self.inner().fused(on_fused)?;
        Some(self.around(inner))
    }

    fn with_matrix_gradients(&self, dtype: FloatDType) -> Option<Arc<dyn Kernels>> {
        let inner = self.inner().with_matrix_gradients(dtype)?;
        Some(self.around(inner))
    }

    fn ops(&self) -> KernelOps<'_> {
        LayeredKernels::ops(self)
    }
}
