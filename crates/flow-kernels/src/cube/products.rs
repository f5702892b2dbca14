//! Matrix products with the kernels of `flow-matmul-cube`, each kind and size made ready once.

use super::operand::Operand;
use flow_core::cube::CubeDevice;
use flow_kernels_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Prepared};
use flow_matmul_cube::problem::{Matmul, Refusal};
use flow_matmul_cube::tensors::{Matrix, Operands};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// One product made ready on each device that asked for it.
type OnDevices = Vec<(CubeDevice, Arc<Prepared>)>;

/// Products made ready, by what they are and by device.
#[derive(Debug)]
pub(super) struct Products {
    pub(super) known: Mutex<HashMap<Matmul, OnDevices>>,
    #[cfg(feature = "cuda")]
    precompiler: flow_precompile::Precompiler,
    /// What gradients of a layer's matrix are stored as.
    pub gradients: Element,
}

/// The tensor as rows of its last axis.
pub(super) fn matrix(operand: &Operand) -> Matrix {
    let (rows, columns) = operand.rows_and_columns();
    Matrix::contiguous(operand.buffer().handle, [rows, columns])
}

/// A part of the tensor's values: `columns` of each row of `stride`, from the value at `start` on.
pub(super) fn part(operand: &Operand, start: usize, [rows, columns]: [usize; 2], stride: usize) -> Matrix {
    let bytes = start * operand.element().bytes();
    Matrix {
        handle: operand.buffer().handle.offset_start(bytes as u64),
        rows,
        columns,
        stride,
    }
}

/// At which multiples of bytes a [`part`] may begin on the device of `on`.
pub(super) fn part_alignment(on: &Operand) -> usize {
    // CUDA's kernels get addresses, of which the products want 16 bytes; others get buffers with offsets.
    match DeviceCapabilities::of(on.client()).ampere {
        true => 16,
        false => (on.client().properties().memory.alignment as usize).max(16),
    }
}

impl Products {
    /// None is ready. Gradients of matrices are stored as `gradients`.
    pub fn storing(gradients: Element) -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            #[cfg(feature = "cuda")]
            precompiler: flow_precompile::Precompiler::default(),
            gradients,
        })
    }

    /// Computes `call` on the device of `on`; a result without values needs none.
    ///
    /// # Panics
    /// If the operands are not those of the call: a bug of the glue.
    pub fn run(&self, on: &Operand, call: Matmul, operands: &Operands<'_>) {
        if call.m == 0 || call.n == 0 {
            return;
        }
        let computed = self
            .prepared(on, call, operands)
            .and_then(|prepared| prepared.run(operands));
        if let Err(declined) = computed {
            panic!("operation `linear`, {call:?}: {declined}");
        }
    }

    /// The kernel of each kind of product that was asked for: columns, summands and layout, whatever the number of rows. Sorted.
    pub fn names(&self) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_call = |(call, on_devices): (&Matmul, &OnDevices)| {
            let (n, k, layout, element) = (call.n, call.k, call.layout, call.element);
            let kernels = on_devices.iter().map(move |(_, prepared)| {
                format!(
                    "{n} columns of {k} summands, {layout:?}, {element:?}: {}",
                    prepared.plan().name()
                )
            });
            kernels.collect::<Vec<_>>()
        };
        let all: BTreeSet<String> = known.iter().flat_map(of_call).collect();
        all.into_iter().collect()
    }

    /// Rows of a call begin where its columns and type say, so the first operands stand for all.
    fn prepared(&self, on: &Operand, call: Matmul, like: &Operands<'_>) -> Result<Arc<Prepared>, Refusal> {
        // A panic while the lock was held left the list whole: entries are pushed at once.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_call = known.entry(call).or_default();
        if let Some((_, prepared)) = of_call.iter().find(|(device, _)| device == on.device()) {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::for_operands(on.client(), call, like)?);
        #[cfg(feature = "cuda")]
        self.compile_ahead(on.client(), &prepared);
        of_call.push((on.device().clone(), prepared.clone()));
        Ok(prepared)
    }

    /// Begins to compile what the call launches, and what its backward pass will. The host runs ahead of the device's thread by
    /// some thirty launches only, less than a block has, so without this a layer's backward pass is not known in time.
    #[cfg(feature = "cuda")]
    fn compile_ahead(&self, client: &flow_core::cube::Client, prepared: &Prepared) {
        self.precompiler.compile(client, || {
            let capabilities = DeviceCapabilities::of(client);
            let backward = super::backward_products::backward_of(prepared.call(), self.gradients);
            let backward = backward.into_iter().filter_map(move |call| {
                let plan = flow_matmul_cube::prepared::Plan::new(&call, capabilities).ok()?;
                Some(plan.kernels(client, &call))
            });
            prepared.kernels().into_iter().chain(backward.flatten())
        });
    }
}
