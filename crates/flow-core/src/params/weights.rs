//! The values of a layout's weights.

mod lower_halves;
mod parts;
mod storage;

use super::block_weights::PartsSet;
use super::{BlockWeights, Drawn, ParamKind, ParamLayout, ParamSpec, WeightStorage, WeightsUpdate};
use crate::device::{ComputeDevice, cpu};
use crate::error::CoreError;
use crate::low_precision::LowPrecision;
use crate::ops::Kernels;
use crate::rng::Purpose;
use crate::split_f32::{self, SplitF32};
use crate::tensors::{RawTensor, cast};
use burn::backend::TensorMetadata;
use burn::tensor::FloatDType;
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// One value per weight of a layout. Cloning shares the values; a changed value is a new one.
///
/// On a device that computes in 16 bits, models see copies in that type; they are made when first asked for after a change.
/// The values themselves stay f32, unless [`store`](Self::store) says otherwise. Frozen matrices may be stored in low precision
/// ([`low_precision`](Self::low_precision)): there is no other form of them, and products widen them.
#[derive(Clone, Debug)]
pub struct Weights {
    layout: Arc<ParamLayout>,
    /// Values, or upper halves of those that have a lower half.
    values: Arc<Vec<RawTensor>>,
    lowers: Arc<Vec<Option<RawTensor>>>,
    /// By place in the layout, whether this process keeps the lower half; it keeps all where processes share out none.
    kept_lowers: Option<Arc<[bool]>>,
    device: ComputeDevice,
    copies: OnceLock<Arc<Vec<RawTensor>>>,
    stored: Option<Stored>,
    /// Weights of which each process has a part. In the place of each `values` has that part, as one row; one zero where it is empty. Clones share
    /// a set until one of them is changed.
    parts: Option<Arc<PartsSet>>,
    /// By place in the layout; shorter where none is in low precision.
    low_precision: Arc<[Option<LowPrecision>]>,
    /// What products round trained matrices to, by place in the layout; shorter where they round none.
    rounded: Arc<[Option<LowPrecision>]>,
}

/// How the value of a weight is stored when it is made.
#[derive(Clone, Copy, Debug)]
enum Form {
    F32,
    Narrow(FloatDType),
    LowPrecision(LowPrecision),
    /// These of the values as one row, in f32 or another type: the others are those of other processes. One zero if there are none.
    Part(usize, usize, Option<FloatDType>),
}

/// Which weights are trained, and how these are stored.
#[derive(Clone, Debug)]
struct Stored {
    trained: Arc<[bool]>,
    storage: WeightStorage,
}

impl Weights {
    /// Initial values drawn from `seed`.
    pub fn init(layout: Arc<ParamLayout>, seed: u64, device: &ComputeDevice) -> Self {
        Self::drawn(layout, (seed, device), Drawn::All, |_| Form::F32)
    }

    /// Adapters drawn from `seed` as [`init`](Self::init) draws them, and zeros for what a file is about to give.
    pub fn init_adapters(layout: Arc<ParamLayout>, seed: u64, device: &ComputeDevice) -> Self {
        Self::drawn(layout, (seed, device), Drawn::Adapters, |_| Form::F32)
    }

    /// As [`init_adapters`](Self::init_adapters), where only some are `trained` (one flag each): what the file gives for the others is
    /// [frozen](Self::freeze) as it comes, so that a device never holds them in f32, and those that `low_precision` has a form for (by
    /// place; it may be shorter than the layout) never in 16 bits.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn init_adapters_on_frozen(
        layout: Arc<ParamLayout>,
        seed: u64,
        device: &ComputeDevice,
        trained: &[bool],
        low_precision: Arc<[Option<LowPrecision>]>,
    ) -> Self {
        let drawn = (Drawn::Adapters, trained);
        Self::on_frozen(layout, (seed, device), drawn, low_precision, None)
    }

    /// Weights of which `blocks` has some in parts, trained or not: those that are `drawn` from a seed as [`init`](Self::init) draws them, and
    /// zeros for the others. What is not `trained` (one flag each) is [frozen](Self::freeze) as it comes; of what is in parts, only
    /// this process's part goes to the device. None is in low precision.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn init_on_parts(
        layout: Arc<ParamLayout>,
        (seed, device): (u64, &ComputeDevice),
        (drawn, trained): (Drawn, &[bool]),
        blocks: Arc<dyn BlockWeights>,
    ) -> Self {
        let none = Arc::from([]);
        Self::on_frozen(layout, (seed, device), (drawn, trained), none, Some(blocks))
    }

    fn on_frozen(
        layout: Arc<ParamLayout>,
        place: (u64, &ComputeDevice),
        (drawn, trained): (Drawn, &[bool]),
        low_precision: Arc<[Option<LowPrecision>]>,
        blocks: Option<Arc<dyn BlockWeights>>,
    ) -> Self {
        assert_eq!(trained.len(), layout.len(), "one flag per weight");
        let device = place.1;
        let part = |index: usize| blocks.as_ref().and_then(|blocks| blocks.own_part(index));
        let form = |index: usize| {
            let frozen = device.compute_dtype().filter(|_| !trained[index]);
            match (part(index), form_of(&low_precision, index), frozen) {
                (Some(part), _, frozen) => Form::Part(part.start, part.end, frozen),
                (None, Some(of), _) => Form::LowPrecision(of),
                (None, None, Some(dtype)) => Form::Narrow(dtype),
                (None, None, None) => Form::F32,
            }
        };
        let mut weights = Self::drawn(layout, place, drawn, form);
        weights.low_precision = low_precision;
        if let Some(blocks) = blocks {
            let parts = PartsSet::open(blocks);
            parts.show_all(&weights.values);
            weights.parts = Some(Arc::new(parts));
        }
        if device.compute_dtype().is_some() {
            weights.stored = Some(Stored {
                trained: trained.into(),
                storage: WeightStorage::Whole,
            });
        }
        device.release_unused();
        weights
    }

    /// All zero: for values that a file is about to give.
    pub fn zeros(layout: Arc<ParamLayout>, device: &ComputeDevice) -> Self {
        Self::drawn(layout, (0, device), Drawn::Nothing, |_| Form::F32)
    }

    /// Weights of what `value` gives for each weight of the layout, asked for one after another: so files of many gigabytes are never on
    /// the host as a whole. A device that computes in 16 bits may be given values of that type; if all are, there is no other copy of
    /// them. What is given should be in [memory that lasts](ComputeDevice::with_persistent_allocation).
    ///
    /// # Errors
    /// What `value` gives; [`CoreError::Shape`] if a value has not the declared shape.
    pub fn from_values<E: From<CoreError>>(
        layout: Arc<ParamLayout>,
        device: &ComputeDevice,
        value: impl Fn(usize, &ParamSpec) -> Result<RawTensor, E>,
    ) -> Result<Self, E> {
        Self::from_stored(layout, device, Arc::from([]), value)
    }

    /// As [`from_values`](Self::from_values), where `value` gives those that `low_precision` has a form for in that form: what
    /// [`stored`](Self::stored) gives of other weights.
    ///
    /// # Errors
    /// As [`from_values`](Self::from_values).
    pub fn from_stored<E: From<CoreError>>(
        layout: Arc<ParamLayout>,
        device: &ComputeDevice,
        low_precision: Arc<[Option<LowPrecision>]>,
        value: impl Fn(usize, &ParamSpec) -> Result<RawTensor, E>,
    ) -> Result<Self, E> {
        let checked = |(index, spec): (usize, &ParamSpec)| {
            let given = value(index, spec)?;
            let found = given.shape().to_vec();
            let in_form = form_of(&low_precision, index).map(|of| of.is_stored_in(&given));
            if !in_form.unwrap_or(found == spec.shape) {
                return Err(E::from(CoreError::Shape {
                    name: spec.name.clone(),
                    expected: spec.shape.clone(),
                    found,
                }));
            }
            Ok(given)
        };
        let specs = layout.specs().iter().enumerate();
        let values = specs.map(checked).collect::<Result<_, E>>()?;
        Ok(Self {
            low_precision: low_precision.clone(),
            ..Self::new(layout.clone(), values, device)
        })
    }

    /// Initial values, drawn from a seed, of those that are `wanted`, and zeros for the others; in the form that `form` has for the
    /// place of a weight.
    fn drawn(
        layout: Arc<ParamLayout>,
        (seed, device): (u64, &ComputeDevice),
        wanted: Drawn,
        form: impl Fn(usize) -> Form + Sync,
    ) -> Self {
        let draw = |spec: &ParamSpec| {
            if !wanted.has(spec) {
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
        let form = &form;
        let values = layout
            .specs()
            .chunks(several)
            .enumerate()
            .flat_map(|(chunk, specs)| {
                let drawn: Vec<Option<Vec<f32>>> = specs.par_iter().map(draw).collect();
                let drawn = (chunk * several..).zip(drawn.into_iter().zip(specs));
                drawn.map(move |(index, (values, spec))| match (values, form(index)) {
                    (Some(values), Form::F32) => device.plain(values, &spec.shape),
                    (Some(values), Form::Narrow(dtype)) => cast(&device.plain(values, &spec.shape), dtype),
                    (Some(values), Form::LowPrecision(of)) => {
                        device.words(of.quantise(&values).expect("drawn values are finite"))
                    }
                    (None, Form::F32) => device.zeros(&spec.shape),
                    (None, Form::Narrow(dtype)) => device.zeros_in(&spec.shape, dtype),
                    (None, Form::LowPrecision(of)) => device.zero_words(of.words()),
                    (Some(values), Form::Part(start, end, dtype)) if start < end => {
                        let value = device.plain(values[start..end].to_vec(), &[end - start]);
                        dtype.map_or(value.clone(), |dtype| cast(&value, dtype))
                    }
                    (_, Form::Part(start, end, dtype)) => {
                        device.zeros_in(&[(end - start).max(1)], dtype.unwrap_or(FloatDType::F32))
                    }
                })
            });
        let values = device.with_persistent_allocation(|| values.collect());
        Self::new(layout.clone(), values, device)
    }

    fn new(layout: Arc<ParamLayout>, values: Vec<RawTensor>, device: &ComputeDevice) -> Self {
        Self {
            layout,
            lowers: Arc::new(vec![None; values.len()]),
            kept_lowers: None,
            values: Arc::new(values),
            device: device.clone(),
            copies: OnceLock::new(),
            stored: None,
            parts: None,
            low_precision: Arc::from([]),
            rounded: Arc::from([]),
        }
    }

    /// The form of the weight at `index` if it is stored in low precision.
    pub fn low_precision(&self, index: usize) -> Option<LowPrecision> {
        form_of(&self.low_precision, index)
    }

    /// The forms of all weights, by place; shorter than the layout where none is in low precision.
    pub fn forms(&self) -> &Arc<[Option<LowPrecision>]> {
        &self.low_precision
    }

    /// What products round trained matrices to, by place; shorter than the layout where they round none.
    pub fn rounded(&self) -> &Arc<[Option<LowPrecision>]> {
        &self.rounded
    }

    /// Has products round the matrices that `rounded` has a form for to that form, each time from the values that models see. So codes are
    /// a function of these, whatever changes them; how they are stored stays as it is.
    pub fn round_in_products(&mut self, rounded: Arc<[Option<LowPrecision>]>) {
        self.rounded = rounded;
    }

    /// Stores the weights that `low_precision` has a form for in that form, and keeps those in it that are replaced later. They
    /// must not be trained.
    ///
    /// # Errors
    /// [`CoreError::NotFinite`] if a value has no code. Weights before it are stored then.
    ///
    /// # Panics
    /// If processes have parts of one of them.
    pub fn store_in_low_precision(
        &mut self,
        low_precision: Arc<[Option<LowPrecision>]>,
    ) -> Result<(), CoreError> {
        for index in 0..self.layout.len() {
            let Some(of) = form_of(&low_precision, index) else {
                continue;
            };
            if self.low_precision(index) != Some(of) {
                let value = self.in_low_precision(index, of, &self.host(index))?;
                self.replace(index, value);
            }
        }
        self.low_precision = low_precision;
        // What was replaced.
        self.device.release_unused();
        Ok(())
    }

    /// The values of the weight at `index` in a form of low precision, in memory that lasts.
    fn in_low_precision(
        &self,
        index: usize,
        of: LowPrecision,
        values: &[f32],
    ) -> Result<RawTensor, CoreError> {
        let words = of.quantise(values).map_err(|_| CoreError::NotFinite {
            name: self.layout.specs()[index].name.clone(),
            format: of.format,
        })?;
        let device = &self.device;
        Ok(device.with_persistent_allocation(|| device.words(words)))
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// What is stored of each weight in the layout's order: the value, or the upper half of one in halves; of one that processes have parts of,
    /// this one's part as one row, or one zero if it is empty.
    pub fn stored(&self) -> &[RawTensor] {
        &self.values
    }

    /// The values at `indices`: as they are stored, or put together from their halves by `kernels`.
    ///
    /// # Panics
    /// If another process has the lower half of one.
    pub fn values(&self, indices: &[usize], kernels: &dyn Kernels) -> Vec<RawTensor> {
        let halves = |index: &usize| {
            self.expect_lower_half(*index);
            let lower = self.lowers[*index].clone()?;
            let upper = self.values[*index].clone();
            Some(SplitF32 { upper, lower })
        };
        let halves: Vec<SplitF32> = indices.iter().filter_map(halves).collect();
        let mut joined = kernels.ops().weights.join(&halves).into_iter();
        let value = |index: &usize| match &self.lowers[*index] {
            Some(_) => joined.next().expect("kernels join all they are given"),
            None => self.values[*index].clone(),
        };
        indices.iter().map(value).collect()
    }

    /// What models compute with: the values, or copies of them in the device's type.
    pub(crate) fn shared(&self) -> Arc<Vec<RawTensor>> {
        let Some(dtype) = self.device.compute_dtype() else {
            return self.values.clone();
        };
        let is_computed_with = |(index, value): (usize, &RawTensor)| {
            self.low_precision(index).is_some() || self.is_in_parts(index) || value.dtype() == dtype.into()
        };
        if self.values.iter().enumerate().all(is_computed_with) {
            return self.values.clone();
        }
        let copy = |(index, value): (usize, &RawTensor)| match self.low_precision(index) {
            Some(_) => value.clone(),
            // Its whole block is gathered in that type. A second handle to a part would keep it from changing where it is.
            None if self.is_in_parts(index) => self.device.zeros_in(&[1], dtype),
            None => cast(value, dtype),
        };
        let cast_all = || self.values.iter().enumerate().map(copy).collect();
        let copies = || Arc::new(self.device.with_persistent_allocation(cast_all));
        self.copies.get_or_init(copies).clone()
    }

    /// Replaces the value at `index`. What is in low precision takes a value in its form, too; of what processes have parts of, each keeps
    /// its own.
    ///
    /// # Errors
    /// [`CoreError::Shape`] if its shape is not the declared one; [`CoreError::NotFinite`] if what is in low precision has no code for
    /// a value.
    pub fn set(&mut self, index: usize, value: RawTensor) -> Result<(), CoreError> {
        let form = self.low_precision(index);
        if form.is_some_and(|of| of.is_stored_in(&value)) {
            self.replace(index, value);
            return Ok(());
        }
        let spec = &self.layout.specs()[index];
        let found = value.shape().to_vec();
        if found != spec.shape {
            return Err(CoreError::Shape {
                name: spec.name.clone(),
                expected: spec.shape.clone(),
                found,
            });
        }
        if self.is_in_parts(index) {
            return self.set_host(index, cpu::to_host(&value));
        }
        let value = match form {
            Some(of) => self.in_low_precision(index, of, &cpu::to_host(&value))?,
            None => value,
        };
        self.replace(index, value);
        Ok(())
    }

    /// Puts what this process has of the weight at `index` in the place of what it had.
    fn replace(&mut self, index: usize, value: RawTensor) {
        self.own_set();
        self.copies = OnceLock::new();
        Arc::make_mut(&mut self.values)[index] = value;
        Arc::make_mut(&mut self.lowers)[index] = None;
        self.show(index);
    }

    /// Shows the part of the weight at `index` to whoever gathers blocks, if processes have parts of it.
    fn show(&self, index: usize) {
        if let Some(parts) = self.parts.as_ref().filter(|parts| parts.has(index)) {
            parts.blocks.show(parts.number, index, self.values[index].clone());
        }
    }

    /// The type that the weight at `index` is kept in, if that is not f32: what is not trained is frozen as it comes.
    fn frozen_dtype(&self, index: usize) -> Option<FloatDType> {
        let stored = self.stored.as_ref()?;
        let is_frozen = !stored.trained[index] && self.low_precision(index).is_none();
        self.device.compute_dtype().filter(|_| is_frozen)
    }

    /// Replaces the value at `index` by bf16 values as files have them, row-major and little-endian, in memory that lasts. What is
    /// frozen in bf16 takes them as they are, without a copy on the host.
    ///
    /// # Errors
    /// As [`set_host`](Self::set_host).
    pub fn set_host_bf16(&mut self, index: usize, bytes: bytes::Bytes) -> Result<(), CoreError> {
        let spec = &self.layout.specs()[index];
        let whole = bytes.len() == 2 * spec.shape.iter().product::<usize>();
        let (part, shape) = self.here(index);
        if whole && self.frozen_dtype(index) == Some(FloatDType::BF16) && !part.is_empty() {
            let (device, here) = (&self.device, bytes.slice(2 * part.start..2 * part.end));
            let value = device.with_persistent_allocation(|| device.plain_bf16(here, &shape));
            if let Some(value) = value {
                self.replace(index, value);
                return Ok(());
            }
        }
        let wide = |two: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        self.set_host(index, bytes.par_chunks_exact(2).map(wide).collect())
    }

    /// Replaces the value at `index` by host values, row-major, in memory that lasts.
    ///
    /// # Errors
    /// [`CoreError::Shape`] if there are not as many as the declared shape has; [`CoreError::NotFinite`] if what is in low precision has
    /// no code for a value.
    pub fn set_host(&mut self, index: usize, values: Vec<f32>) -> Result<(), CoreError> {
        let spec = &self.layout.specs()[index];
        if values.len() != spec.shape.iter().product::<usize>() {
            return Err(CoreError::Shape {
                name: spec.name.clone(),
                expected: spec.shape.clone(),
                found: vec![values.len()],
            });
        }
        if let Some(of) = self.low_precision(index) {
            let value = self.in_low_precision(index, of, &values)?;
            self.replace(index, value);
            return Ok(());
        }
        // Before it is known whether there is something to replace: sets are opened alike on all processes.
        self.own_set();
        let (part, shape) = self.here(index);
        if part.is_empty() {
            // The parts of others change all the same, and a block that was gathered before has the old ones.
            self.show(index);
            return Ok(());
        }
        let values = match part.len() == values.len() {
            true => values,
            false => values[part].to_vec(),
        };
        let device = &self.device;
        let frozen = self.frozen_dtype(index);
        let rounded = match frozen {
            Some(FloatDType::BF16) => {
                device.with_persistent_allocation(|| device.plain_rounded_bf16(&values, &shape))
            }
            _ => None,
        };
        let value = match (rounded, frozen) {
            (Some(value), _) => value,
            // The f32 values are gone after this, so they need no memory that lasts.
            (None, Some(dtype)) => {
                let value = device.plain(values, &shape);
                device.with_persistent_allocation(|| cast(&value, dtype))
            }
            (None, None) => device.with_persistent_allocation(|| device.plain(values, &shape)),
        };
        self.replace(index, value);
        Ok(())
    }

    /// Mutable values, none of them in halves. Those still held by a view or a snapshot are copied when a kernel writes them.
    ///
    /// # Panics
    /// If processes have parts of some: [`update`](Self::update) changes those. If another process has the lower half of one.
    pub fn values_mut(&mut self) -> &mut [RawTensor] {
        assert!(self.parts.is_none(), "weights in parts are changed by an update");
        for index in 0..self.values.len() {
            if self.lowers[index].is_some() || self.lacks_lower_half(index) {
                let (values, device) = (self.host(index), self.device.clone());
                let shape = &self.layout.specs()[index].shape;
                let value = device.with_persistent_allocation(|| device.plain(values, shape));
                self.replace(index, value);
            }
        }
        self.copies = OnceLock::new();
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// Changes values one by one, and with them the copies that models see, if these were made.
    pub fn update(&mut self) -> WeightsUpdate<'_> {
        let narrow = |stored: &Stored| stored.storage != WeightStorage::Whole;
        if self.stored.as_ref().is_some_and(narrow) {
            // If there are copies, some values were replaced and not settled; others are their own copies.
            self.copies = OnceLock::new();
        }
        self.hide_parts();
        WeightsUpdate::new(
            Arc::make_mut(&mut self.values).as_mut_slice(),
            Arc::make_mut(&mut self.lowers).as_mut_slice(),
            (self.copies.get_mut()).map(|copies| Arc::make_mut(copies).as_mut_slice()),
            self.parts.as_deref(),
        )
    }

    /// The values at `index` on the host, row-major.
    ///
    /// # Panics
    /// If processes have parts of them: none of these has all. If another process has their lower half.
    pub fn host(&self, index: usize) -> Vec<f32> {
        assert!(
            !self.is_in_parts(index),
            "the weight `{}` is shared out over processes, none of which has all of it",
            self.layout.specs()[index].name
        );
        if let Some(of) = self.low_precision(index) {
            return of.host(&self.values[index]);
        }
        self.expect_lower_half(index);
        self.stored_on_host(index)
    }

    /// The value at `index` as it is stored, put together from its halves.
    fn stored_on_host(&self, index: usize) -> Vec<f32> {
        match &self.lowers[index] {
            Some(lower) => {
                let (uppers, lowers) = (split_f32::bits(&self.values[index]), split_f32::bits(lower));
                let pairs = uppers.into_iter().zip(lowers);
                pairs
                    .map(|(upper, lower)| split_f32::join([upper, lower]))
                    .collect()
            }
            None => cpu::to_host(&self.values[index]),
        }
    }
}

/// The form of the weight at `index` if it is in low precision.
fn form_of(forms: &[Option<LowPrecision>], index: usize) -> Option<LowPrecision> {
    forms.get(index).copied().flatten()
}
