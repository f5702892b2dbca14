//! The CPU backend's memory, as slices: what a host kernel reads and returns.

use crate::tensors::{RawTensor, cast};
use burn::backend::flex::FlexTensor;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{FloatDType, TensorData};

/// Contiguous f32 values of a plain CPU tensor, row-major.
#[derive(Clone, Debug)]
pub struct CpuTensor {
    tensor: FlexTensor,
    shape: Vec<usize>,
}

impl CpuTensor {
    /// Reads `tensor`, copying only if it is a strided view.
    ///
    /// # Panics
    /// If the tensor is tracked, not f32, or on another device: kernels are chosen by device, so this is a bug.
    pub fn read(tensor: &RawTensor) -> Self {
        let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) = &tensor.kind else {
            panic!("a CPU kernel got a tensor that is not a plain CPU float tensor");
        };
        let shape = tensor.layout().shape().to_vec();
        let tensor = if tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
            tensor.clone()
        } else {
            tensor.to_contiguous()
        };
        Self { tensor, shape }
    }

    /// The shape, outermost axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, row-major.
    pub fn values(&self) -> &[f32] {
        let count = self.shape.iter().product();
        &self.tensor.storage::<f32>()[..count]
    }

    /// Product of all axes but the last, and the last: the tensor as a matrix.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        let columns = self.shape.last().copied().unwrap_or(1);
        let count: usize = self.shape.iter().product();
        (count.checked_div(columns).unwrap_or(0), columns)
    }
}

/// Integers of a plain CPU tensor, row-major.
///
/// # Panics
/// As [`CpuTensor::read`].
pub fn read_ints(tensor: &RawTensor) -> Vec<i64> {
    let DispatchTensorKind::Flex(BackendTensor::Int(tensor)) = &tensor.kind else {
        panic!("a CPU kernel got a tensor that is not a CPU integer tensor");
    };
    tensor.clone().into_data().iter::<i64>().collect()
}

/// A plain CPU tensor of `shape` holding `values`, without a copy.
///
/// # Panics
/// If the number of values is not the product of `shape`.
pub fn from_vec(values: Vec<f32>, shape: &[usize]) -> RawTensor {
    let tensor = FlexTensor::from_data(TensorData::new(values, shape.to_vec()));
    RawTensor {
        kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
        autodiff: Default::default(),
    }
}

/// A plain CPU tensor of `shape` holding integers.
///
/// # Panics
/// As [`from_vec`].
pub fn from_ints(values: Vec<i64>, shape: &[usize]) -> RawTensor {
    let tensor = FlexTensor::from_data(TensorData::new(values, shape.to_vec()));
    RawTensor {
        kind: DispatchTensorKind::Flex(BackendTensor::Int(tensor)),
        autodiff: Default::default(),
    }
}

/// Mutable values of a CPU tensor: in place if nothing else holds it, on a copy otherwise.
///
/// # Panics
/// As [`CpuTensor::read`].
pub fn update(tensor: &mut RawTensor, change: impl FnOnce(&mut [f32])) {
    let DispatchTensorKind::Flex(BackendTensor::Float(flex)) = &mut tensor.kind else {
        panic!("a CPU kernel got a tensor that is not a plain CPU float tensor");
    };
    if !(flex.is_contiguous() && flex.layout().start_offset() == 0) {
        *flex = flex.to_contiguous();
    }
    let count = flex.layout().num_elements();
    change(&mut flex.storage_mut::<f32>()[..count]);
}

/// The values of any plain tensor on the host, row-major, as f32.
pub fn to_host(tensor: &RawTensor) -> Vec<f32> {
    match &tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(_)) => {
            let tensor = cast(tensor, FloatDType::F32);
            CpuTensor::read(&tensor).values().to_vec()
        }
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => super::cube::to_host(tensor),
        _ => panic!("host reads of this device are not in this build"),
    }
}
