//! The values of a layout's weights.

use super::{ParamKind, ParamLayout, ParamSpec};
use crate::rng::Purpose;
use crate::tensors::{Plain, cast, copy_again};
use crate::{CoreError, cpu, device::ComputeDevice};
use burn::backend::TensorMetadata;
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// One value per weight of a layout. Cloning shares the values; a changed value is a new one.
///
/// On a device that computes in 16 bits, models see copies in that type; they are made when first asked for after a change.
/// The values themselves stay as they are, f32 where they are trained.
#[derive(Clone, Debug)]
pub struct Weights {
    layout: Arc<ParamLayout>,
    values: Arc<Vec<Plain>>,
    device: ComputeDevice,
    copies: OnceLock<Arc<Vec<Plain>>>,
}

impl Weights {
    /// Initial values drawn from `seed`.
    pub fn init(layout: Arc<ParamLayout>, seed: u64, device: &ComputeDevice) -> Self {
        Self::drawn(layout, seed, device, |_| true)
    }

    /// Adapters drawn from `seed` as [`init`](Self::init) draws them, and zeros for what a file is about to give.
    pub fn init_adapters(layout: Arc<ParamLayout>, seed: u64, device: &ComputeDevice) -> Self {
        Self::drawn(layout, seed, device, |spec| spec.kind == ParamKind::Adapter)
    }

    /// All zero: for values that a file is about to give.
    pub fn zeros(layout: Arc<ParamLayout>, device: &ComputeDevice) -> Self {
        Self::drawn(layout, 0, device, |_| false)
    }

    /// Initial values of those that are `wanted`, zeros for the others.
    fn drawn(
        layout: Arc<ParamLayout>,
        seed: u64,
        device: &ComputeDevice,
        wanted: fn(&ParamSpec) -> bool,
    ) -> Self {
        let draw = |spec: &ParamSpec| {
            if !wanted(spec) {
                return None;
            }
            let purpose = if spec.kind == ParamKind::Adapter {
                Purpose::Adapter
            } else {
                Purpose::Weights
            };
            Some(spec.init.values(&spec.name, &spec.shape, seed, purpose))
        };
        // Some at a time, so that the host never holds them all.
        let several = 2 * rayon::current_num_threads();
        let values = layout.specs().chunks(several).flat_map(|specs| {
            let drawn: Vec<Option<Vec<f32>>> = specs.par_iter().map(draw).collect();
            let drawn = drawn.into_iter().zip(specs);
            drawn.map(|(values, spec)| match values {
                Some(values) => device.plain(values, &spec.shape),
                None => device.zeros(&spec.shape),
            })
        });
        let values = device.lasting(|| values.collect());
        Self::new(layout.clone(), values, device)
    }

    fn new(layout: Arc<ParamLayout>, values: Vec<Plain>, device: &ComputeDevice) -> Self {
        Self {
            layout,
            values: Arc::new(values),
            device: device.clone(),
            copies: OnceLock::new(),
        }
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// The values, in the layout's order.
    pub fn values(&self) -> &[Plain] {
        &self.values
    }

    /// What models compute with: the values, or copies of them in the device's type.
    pub(crate) fn shared(&self) -> Arc<Vec<Plain>> {
        let Some(dtype) = self.device.compute_dtype() else {
            return self.values.clone();
        };
        let cast_all = || self.values.iter().map(|value| cast(value, dtype)).collect();
        let copies = || Arc::new(self.device.lasting(cast_all));
        self.copies.get_or_init(copies).clone()
    }

    /// Replaces the value at `index`.
    ///
    /// # Errors
    /// [`CoreError::Shape`] if its shape is not the declared one.
    pub fn set(&mut self, index: usize, value: Plain) -> Result<(), CoreError> {
        let spec = &self.layout.specs()[index];
        let found = value.shape().to_vec();
        if found != spec.shape {
            return Err(CoreError::Shape {
                name: spec.name.clone(),
                expected: spec.shape.clone(),
                found,
            });
        }
        self.values_mut()[index] = value;
        Ok(())
    }

    /// Replaces the value at `index` by host values, row-major, in memory that lasts.
    ///
    /// # Errors
    /// [`CoreError::Shape`] if there are not as many as the declared shape has.
    pub fn set_host(&mut self, index: usize, values: Vec<f32>) -> Result<(), CoreError> {
        let spec = &self.layout.specs()[index];
        if values.len() != spec.shape.iter().product::<usize>() {
            return Err(CoreError::Shape {
                name: spec.name.clone(),
                expected: spec.shape.clone(),
                found: vec![values.len()],
            });
        }
        let device = &self.device;
        let value = device.lasting(|| device.plain(values, &spec.shape));
        self.values_mut()[index] = value;
        Ok(())
    }

    /// Mutable values. Those still held by a view or a snapshot are copied when a kernel writes them.
    pub fn values_mut(&mut self) -> &mut [Plain] {
        self.copies = OnceLock::new();
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// Changes values one by one, and with them the copies that models see, if these were made.
    pub fn update(&mut self) -> WeightsUpdate<'_> {
        WeightsUpdate {
            copies: self
                .copies
                .get_mut()
                .map(|copies| Arc::make_mut(copies).as_mut_slice()),
            values: Arc::make_mut(&mut self.values).as_mut_slice(),
        }
    }

    /// Keeps weights that are not `trained` (one flag each) in the type that models compute with, and in no other: what
    /// models see stays the same.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn freeze(&mut self, trained: &[bool]) {
        assert_eq!(trained.len(), self.layout.len(), "one flag per weight");
        let Some(dtype) = self.device.compute_dtype() else {
            return;
        };
        let device = self.device.clone();
        let values = self.values_mut().iter_mut().zip(trained);
        let frozen = values.filter(|(_, trained)| !**trained);
        device.lasting(|| frozen.for_each(|(value, _)| *value = cast(value, dtype)));
        device.release_unused();
    }

    /// The values at `index` on the host, row-major.
    pub fn host(&self, index: usize) -> Vec<f32> {
        cpu::to_host(&self.values[index])
    }
}

/// Values of weights that are being changed. See [`Weights::update`].
#[derive(Debug)]
pub struct WeightsUpdate<'a> {
    values: &'a mut [Plain],
    copies: Option<&'a mut [Plain]>,
}

impl WeightsUpdate<'_> {
    /// Every value in the layout's order, with the copy that models see, if there is one: it must be the value in its type
    /// afterwards.
    pub fn each(&mut self) -> impl Iterator<Item = (&mut Plain, Option<&mut Plain>)> {
        let copies = self.copies.as_deref_mut().into_iter().flatten().map(Some);
        let copies = copies.chain(std::iter::repeat_with(|| None));
        self.values.iter_mut().zip(copies)
    }

    /// Changes the value at `index`.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut Plain)) {
        self.change_with_copy(index, |value, copy| {
            change(value);
            if let Some(copy) = copy {
                copy_again(copy, value);
            }
        });
    }

    /// Changes the value at `index`, and the copy that models see, if there is one: it must be the value in its type
    /// afterwards.
    pub fn change_with_copy(&mut self, index: usize, change: impl FnOnce(&mut Plain, Option<&mut Plain>)) {
        let copy = self.copies.as_mut().map(|copies| &mut copies[index]);
        change(&mut self.values[index], copy);
    }
}
