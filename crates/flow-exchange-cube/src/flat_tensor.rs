//! Several tensors as one row of values.

use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Slice, Tensor};
use flow_core::device::ComputeDevice;
use flow_core::tensors::{cast, stacked};
use flow_core::{RawTensor, cpu};
use flow_exchange::{ValueType, Values};
use std::any::Any;

/// Several tensors as one row of values of one type, on the device that they are on.
#[derive(Clone, Debug)]
pub struct FlatTensor {
    device: ComputeDevice,
    /// One axis, without gaps.
    values: RawTensor,
}

impl FlatTensor {
    /// Copies tensors, given with their shapes, one behind the other, as f32. An absent one becomes -0: the one number that changes no
    /// other when it is added.
    ///
    /// # Panics
    /// If a tensor has not as many values as its shape.
    pub fn pack<'a>(
        device: &ComputeDevice,
        tensors: impl IntoIterator<Item = (Option<&'a RawTensor>, &'a [usize])>,
    ) -> Self {
        Self::pack_as(device, ValueType::F32, tensors)
    }

    /// As [`pack`](Self::pack), in any type: what is of another one is rounded to it.
    ///
    /// # Panics
    /// As [`pack`](Self::pack).
    pub fn pack_as<'a>(
        device: &ComputeDevice,
        of: ValueType,
        tensors: impl IntoIterator<Item = (Option<&'a RawTensor>, &'a [usize])>,
    ) -> Self {
        let dtype = float_dtype(of);
        let mut rows = Vec::new();
        for (tensor, shape) in tensors {
            let size: usize = shape.iter().product();
            if size == 0 {
                continue;
            }
            rows.push(match tensor {
                Some(tensor) => Dispatch::float_reshape(cast(tensor, dtype), [size].into()),
                None => {
                    Tensor::<1>::full([size], -0.0f32, (device.burn(), DType::from(dtype))).into_dispatch()
                }
            });
        }
        let values = match rows.len() {
            0 => device.zeros_in(&[0], dtype),
            _ => stacked(rows),
        };
        Self {
            device: device.clone(),
            values,
        }
    }

    /// Tensors of these shapes, in the order in which they were packed.
    ///
    /// # Panics
    /// If they have not as many values together.
    pub fn unpack<'a>(self, shapes: impl IntoIterator<Item = &'a [usize]>) -> Vec<RawTensor> {
        let mut at = 0;
        let tensors = shapes.into_iter().map(|shape| {
            let size: usize = shape.iter().product();
            if size == 0 {
                return self.device.zeros(shape);
            }
            let range = at..at + size;
            at += size;
            let row = Dispatch::float_slice(self.values.clone(), &[Slice::from(range)]);
            Dispatch::float_reshape(row, shape.to_vec().into())
        });
        let tensors = tensors.collect();
        assert_eq!(at, self.count(), "as many values as were packed");
        tensors
    }

    /// The row.
    pub fn values(&self) -> &RawTensor {
        &self.values
    }

    /// A row as long, of the same type, its values unspecified.
    pub fn empty_like(&self) -> RawTensor {
        self.device.empty_in(&[self.count()], self.dtype())
    }

    fn dtype(&self) -> FloatDType {
        self.values.dtype().into()
    }

    /// Puts another row in its place.
    ///
    /// # Panics
    /// If it has another number of values, or values of another type.
    pub fn replace(&mut self, values: RawTensor) {
        assert_eq!(values.dtype(), self.values.dtype(), "a row of the same type");
        assert_eq!(
            flow_core::tensors::shape(&values),
            [self.count()],
            "a row as long"
        );
        self.values = values;
    }

    /// Where it is.
    pub fn device(&self) -> &ComputeDevice {
        &self.device
    }
}

impl Values for FlatTensor {
    fn count(&self) -> usize {
        flow_core::tensors::shape(&self.values)[0]
    }

    fn value_type(&self) -> ValueType {
        match self.dtype() {
            FloatDType::BF16 => ValueType::Bf16,
            _ => ValueType::F32,
        }
    }

    fn read(&self) -> Vec<f32> {
        match self.count() {
            0 => Vec::new(),
            _ => cpu::to_host(&self.values),
        }
    }

    fn write(&mut self, values: Vec<f32>) {
        let shape = [values.len()];
        self.replace(cast(&self.device.plain(values, &shape), self.dtype()));
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// What Burn calls a type.
fn float_dtype(of: ValueType) -> FloatDType {
    match of {
        ValueType::F32 => FloatDType::F32,
        ValueType::Bf16 => FloatDType::BF16,
    }
}
